"""Lines follow from the kept JSON alone."""

from __future__ import annotations

import pytest

from loadtest.report import describe_accuracy, describe_cpu, describe_limit, find_doubts, render_result

ACCURACY = {
    "agreement": 0.995,
    "samples": 80,
    "source": "synthetic",
    "largest_probability_difference": 0.02498,
    "least_cosine": 0.99872,
    "labelled_accuracy": None,
}


def make_repeat(*, by_role=None, others=0.0, stolen=0.0, model_share=None):
    use = {"seconds": 12.5, "by_role": by_role or {}, "others": others, "stolen": stolen}
    return {"model_share": model_share, "seconds": 10.0, "cpu": use}


def side(name, rate, **values):
    spread = {"median": rate, "low": rate - 1, "high": rate + 1}
    repeats = [make_repeat(**values)] * 2
    return {"name": name, "how": "by hand", "requests_per_second": spread, "repeats": repeats}


def result(accuracy):
    goal = {"what": "kit / stock", "value": 12.5, "limit": 12.0, "at_least": True, "unit": "×", "how": ""}
    worker = {
        "precision": "int8",
        "weights": "random (seed 0)",
        "accuracy": accuracy,
        "self_check": {"relative_error": 0.00002},
    }
    return {
        "row": "resnet50-int8",
        "title": "ResNet50",
        "cpus": 2,
        "judged": "kit",
        "sides": [
            side("kit", 125.0, by_role={"worker": 18.0}),
            side("in-process", 130.0, model_share=0.8),
        ],
        "goals": [{**goal, "met": True}],
        "notes": ["a note"],
        "servers": {"kit": {"workers": [worker]}},
    }


def test_a_row_prints_rates_verdict_accuracy_notes_and_profile():
    lines = render_result(result(ACCURACY))
    assert lines[0] == "resnet50-int8: ResNet50"
    assert lines[1].split() == ["kit", "125.00", "req/s", "(124.00-126.00)", "by", "hand"]
    assert lines[3] == "  kit / stock: 12.5×, target ≥ 12×: met"
    assert lines[4].startswith("  accuracy of int8 (random (seed 0)): 99.5 % of answers as FP32 on 80 synth")
    assert lines[5] == "  a note"
    assert lines[6].startswith("  CPU of kit: workers 90.0 %")
    assert lines[7].startswith("  limit (in-process): 80.0 %")


def test_fp32_has_its_self_check_instead_of_the_gate():
    assert "logits within 2e-05 of eager at load" in render_result(result(None))[4]


@pytest.mark.parametrize(("labelled", "known"), [(None, False), (0.913, True)])
def test_labelled_accuracy_is_shown_where_there_is_one(labelled, known):
    text = describe_accuracy({**ACCURACY, "labelled_accuracy": labelled})
    assert "largest probability difference 0.0250, least cosine 0.9987" in text
    assert ("labelled accuracy 91.3 %" in text) is known


def test_cpu_shares_are_of_the_whole_machine():
    repeats = [
        make_repeat(by_role={"worker": 16.0, "TorchServe": 1.0, "load generator": 0.5}, others=1.0),
        make_repeat(by_role={"worker": 18.0, "TorchServe": 1.0, "load generator": 0.5}, stolen=0.5),
    ]
    assert describe_cpu(repeats, cpus=2) == (
        "workers 85.0 %, TorchServe's Java 5.0 %, load generator 2.5 %, others and the host 3.0 % of 2 CPUs; "
        "the rest was idle"
    )


@pytest.mark.parametrize(("others", "stolen", "doubted"), [(2.5, 0.0, False), (1.3, 1.3, True), (9, 0, True)])
def test_a_disturbed_side_makes_the_row_invalid(others, stolen, doubted):
    disturbed = side("stock", 1.0, others=others, stolen=stolen)
    kept = {"cpus": 2, "sides": [side("kit", 1.0, others=0.1), disturbed]}
    doubts = find_doubts(kept)
    assert [one.split(":")[0] for one in doubts] == ["INVALID"] * doubted
    assert all("while stock was measured" in one and "measure again" in one for one in doubts)


def test_a_row_without_sides_is_not_doubted():
    assert find_doubts({"cpus": 2, "sides": []}) == []


def test_the_limit_says_what_the_model_alone_would_reach():
    assert "80.0 % of its time is the model, which alone would reach 125.00 a second" in describe_limit(
        side("in-process", 100.0, model_share=0.8)
    )
