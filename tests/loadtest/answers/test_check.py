"""Right, wrong and mixed-up answers are told apart, within the archive's tolerance."""

from __future__ import annotations

import json

import numpy as np
import pytest

from loadtest.answers.check import (
    Expected,
    Tolerance,
    add_checks,
    check_answers,
    find_fault,
    find_pairs_told_apart,
)
from loadtest.drivers.records import Recorder, make_records

TIGHT = Tolerance(relative=0.01, absolute=0.001)


def text(good: float) -> dict:
    return {"label": "good" if good > 0.5 else "bad", "probabilities": {"good": good, "bad": 1 - good}}


def image(**probabilities: float) -> list[dict]:
    listed = enumerate(sorted(probabilities.items(), key=lambda pair: -pair[1]))
    return [{"label": label, "index": n, "probability": p} for n, (label, p) in listed]


@pytest.mark.parametrize(
    ("got", "expected", "fault"),
    [
        (text(0.9), text(0.9), None),
        (text(0.905), text(0.9), None),
        (text(0.92), text(0.9), "expected 'good' with 0.9000 ± 0.0100: got 0.9200"),
        (text(0.1), text(0.9), "expected 'good' with 0.9000"),
        (text(float("nan")), text(0.9), "expected 'good' with 0.9000"),
        ({"code": 503}, text(0.9), "no answer of this model"),
        ("gibberish", text(0.9), "no answer of this model"),
        ([], image(cat=0.5), "no answer of this model"),
        (image(cat=0.5, dog=0.3), image(cat=0.5, dog=0.3), None),
        (image(dog=0.3, cow=0.2), image(cat=0.5, dog=0.3), "expected 'cat' with 0.5000"),
        # Left out of the best few, it may have as much as the least of them.
        (image(dog=0.3, cow=0.2999), image(cat=0.3, dog=0.3), None),
        # TorchServe's own image_classifier answers labels alone.
        ({"cat": 0.5, "dog": 0.3}, image(cat=0.5, dog=0.3), None),
        ({"cat": 0.4, "dog": 0.3}, image(cat=0.5, dog=0.3), "expected 'cat' with 0.5000"),
    ],
)
def test_faults(got, expected, fault):
    found = find_fault(got, expected, TIGHT)
    assert found is None if fault is None else fault in found


def test_a_loose_tolerance_still_asks_for_the_label():
    loose = Tolerance(relative=0.0, absolute=0.2)
    assert (
        find_fault(image(dog=0.9, cat=0.75), image(cat=0.9, dog=0.05), loose)
        == "expected 'cat': got 'dog' with 0.9000"
    )


def records_of(*answers: tuple[int, object], status: int = 200):
    recorder = Recorder()
    for payload, answer in answers:
        body = json.dumps(answer)
        recorder.add(
            payload=payload, scheduled=float("nan"), sent=0, ended=1, status=status, body=body, error=""
        )
    return make_records(recorder.rows, list(recorder.answers))


def expect(*answers: object, fp32: tuple | None = None, tolerance: Tolerance = TIGHT) -> Expected:
    return Expected(source="test", answers=answers, tolerances=(tolerance,) * len(answers), fp32=fp32)


TWO = (text(0.9), text(0.2))


def test_every_answer_is_judged_and_a_mix_up_is_wrong():
    found = check_answers(
        [records_of(*[(0, text(0.9))] * 5, (1, text(0.2)), (1, text(0.9)))], expect(*TWO, fp32=TWO)
    )
    assert (found.checked, found.wrong) == (7, 1)
    assert found.examples == ("payload 1: expected 'bad' with 0.8000 ± 0.0090: got 0.1000",)
    assert (found.labels_same, found.labels_judged) == (6, 7)
    assert found.largest_difference == pytest.approx(0.7)


def test_failed_requests_are_not_judged():
    found = check_answers([records_of((0, {"code": 503}), status=503)], expect(*TWO, fp32=TWO))
    assert (found.checked, found.labels_judged, found.largest_difference) == (0, 0, None)


def test_each_payload_has_the_tolerance_of_its_model():
    loose = Tolerance(relative=0.0, absolute=0.2)
    expected = Expected(source="test", answers=TWO, tolerances=(TIGHT, loose), fp32=None)
    assert check_answers([records_of((0, text(0.8)), (1, text(0.1)))], expected).wrong == 1


def test_near_ties_do_not_count_for_agreement_but_differences_do():
    near = (image(cat=0.45, dog=0.44),)
    swapped = records_of((0, image(dog=0.45, cat=0.44)))
    found = check_answers([swapped], expect(*near, fp32=near))
    assert (found.labels_judged, found.largest_difference) == (0, pytest.approx(0.01))


def test_labels_are_compared_whatever_form_an_answer_has():
    fp32 = (image(cat=0.7, dog=0.2),)
    runs = [records_of((0, {"cat": 0.69, "dog": 0.2})), records_of((0, {"code": 500}))]
    found = check_answers(runs, expect({"cat": 0.69, "dog": 0.2}, fp32=fp32))
    assert (found.wrong, found.labels_same, found.labels_judged) == (1, 1, 2)
    assert found.largest_difference == pytest.approx(0.01)


def test_without_fp32_no_label_is_judged():
    found = check_answers([records_of((0, text(0.9)))], expect(*TWO))
    assert (found.checked, found.labels_judged, found.largest_difference) == (1, 0, None)


def test_several_trials_add_up():
    expected = expect(*TWO, fp32=TWO)
    one, other = (
        check_answers([records_of(*answers)], expected)
        for answers in ([(0, text(0.9)), (1, text(0.8))], [(0, text(0.899))])
    )
    found = add_checks([one, other])
    assert (found.checked, found.wrong, len(found.examples)) == (3, 1, 1)
    assert (found.labels_same, found.labels_judged) == (2, 3)
    assert (found.largest_difference, found.source) == (pytest.approx(0.6), "test")
    assert add_checks([check_answers([], expect(*TWO))] * 2).largest_difference is None


def test_how_many_payloads_can_be_told_apart_is_known():
    assert find_pairs_told_apart([(one, TIGHT) for one in TWO]) == 1.0
    assert find_pairs_told_apart([(text(0.9), TIGHT)]) == 1.0
    same = [(one, TIGHT) for one in (text(0.9), text(0.9), text(0.2))]
    assert find_pairs_told_apart(same) == pytest.approx(4 / 6)


def test_of_many_payloads_evenly_chosen_ones_are_compared():
    exact = Tolerance(relative=0, absolute=1e-4)
    equal, different = [text(0.9)] * 300, [text(0.55 + number / 1000) for number in range(300)]
    found = find_pairs_told_apart([(one, exact) for one in (*equal, *different)])
    # 30 of the 60 that are compared are equal.
    assert found == pytest.approx(1 - 30 * 29 / (60 * 59))


def test_equal_answers_are_kept_once_and_no_more_than_can_be_held():
    recorder = Recorder(most_answers=2)
    for number, body in enumerate(["a", "a", "b", "c", "a"]):
        recorder.add(payload=0, scheduled=0, sent=0, ended=number, status=200, body=body, error="")
    assert [row[5] for row in recorder.rows] == [0, 0, 1, -1, 0]
    assert np.array_equal(make_records(recorder.rows, list(recorder.answers)).answer, [0, 0, 1, -1, 0])
