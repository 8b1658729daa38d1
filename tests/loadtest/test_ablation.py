"""Each step differs from the one it is compared with in a setting alone, and comes out as a ratio to it."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from loadtest.errors import LoadTestError
from loadtest.experiments.ablation import cut_groups, judge, make_load, run
from loadtest.experiments.steps import (
    BERT,
    RESNET50,
    TOP,
    Settings,
    Step,
    choose,
    list_backends,
    list_steps,
    make_arguments,
)
from loadtest.report import render_markdown
from loadtest.results import plain
from loadtest.stats import Interval
from tests.loadtest.making import make_series, reading
from tests.plans import make_instance

INSTANCE = make_instance(1, worker_cpus=((0,), (1,)))


@pytest.mark.parametrize("model", [RESNET50, BERT])
def test_each_step_changes_something_and_stands_on_one_before_it(model):
    steps = {step.name: step for step in list_steps(model)}
    names = [*steps]
    for step in [*steps.values()][1:]:
        assert names.index(step.before) < names.index(step.name) or step.removed
        assert step.settings != steps[step.before].settings
    assert steps[TOP].settings == Settings()
    assert all(step.before == TOP for step in steps.values() if step.removed)


MEANINGLESS = {RESNET50: {"buckets", "without-packing"}, BERT: {"channels-last", "without-channels-last"}}


@pytest.mark.parametrize(("model", "missing"), MEANINGLESS.items())
def test_what_means_nothing_for_a_model_is_no_step(model, missing):
    names = {step.name for step in list_steps(model)}
    other = {step.name for step in list_steps(BERT if model == RESNET50 else RESNET50)}
    assert missing & names == set()
    assert missing <= other


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        (TOP, "PRECISION=int8 BATCH=16 DELAY_MS=20"),
        ("with-fp32", "PRECISION=fp32 BATCH=8 DELAY_MS=20"),
        ("without-ipex", "PRECISION=int8 BACKEND=eager BATCH=16 DELAY_MS=20"),
        ("with-gnu", "PRECISION=int8 OPENMP=gnu BATCH=16 DELAY_MS=20"),
        ("without-pinning", "PRECISION=int8 PINNING=0 BATCH=16 DELAY_MS=20"),
        ("without-batches", "PRECISION=int8 MODE=latency WORKERS=2 CORES_PER_WORKER=1"),
        (
            "kit-off",
            "PRECISION=fp32 BACKEND=eager ALLOCATOR=system OPENMP=gnu PINNING=0 "
            "OFF=channels_last,trace,freeze MODE=latency WORKERS=1",
        ),
        (
            "compile",
            "PRECISION=fp32 BACKEND=inductor ALLOCATOR=system OPENMP=gnu PINNING=0 OFF=freeze "
            "MODE=latency WORKERS=1",
        ),
    ],
)
def test_a_step_is_asked_of_the_kit_in_its_own_words(name, arguments):
    step = next(step for step in list_steps(RESNET50) if step.name == name)
    assert " ".join(make_arguments(step.settings, INSTANCE, RESNET50)) == arguments


def test_backends_are_compared_with_the_first_of_their_precision():
    steps = {step.label: step for step in list_backends()}
    assert steps["ipex int8"].before == "ipex-fp32"
    assert all(
        step.before == f"ipex-{step.settings.precision}" or step.settings.backend == "ipex"
        for step in steps.values()
    )


def test_a_trial_takes_some_steps_and_compares_with_these_alone():
    steps = list_steps(RESNET50)
    chosen = choose(steps, ["jemalloc", "openmp"])
    assert [(step.name, step.before) for step in chosen] == [("jemalloc", None), ("openmp", "jemalloc")]
    assert choose(steps, []) == steps
    with pytest.raises(LoadTestError, match="got no-such"):
        choose(steps, ["no-such"])


def test_plain_torchserve_as_it_comes_has_longer_windows_and_the_one_with_a_batch_its_users():
    steps = {step.name: step for step in list_steps(RESNET50)}
    loads = {name: make_load(steps[name], RESNET50, 4.0) for name in ("plain", "plain-one", TOP)}
    assert [(one.users, one.duration_s) for one in loads.values()] == [(8, 16.0), (32, 4.0), (64, 4.0)]


def make_steps(*names):
    """A chain."""
    before = [None, *names]
    return [
        Step(name=name, label=name, settings=Settings(), before=before[n]) for n, name in enumerate(names)
    ]


def test_groups_are_as_large_as_memory_allows_and_carry_over_what_is_compared():
    steps = make_steps("a", "b", "c", "d")
    assert cut_groups(steps, lambda _: 100, 1000) == [["a", "b", "c", "d"]]
    assert cut_groups(steps, lambda _: 100, 250) == [["a", "b"], ["b", "c"], ["c", "d"]]
    with pytest.raises(LoadTestError, match="a, b must be up together and need 200 MiB: got 150 MiB"):
        cut_groups(steps, lambda _: 100, 150)


@pytest.mark.parametrize(
    ("ratio", "added", "removed"),
    [
        ((1.2, 1.1, 1.3), "helps", "better without it on this host"),
        ((0.8, 0.7, 0.9), "slows", "worth having"),
        ((1.0, 0.9, 1.1), "no gain seen on this host", "not missed on this host"),
        ((1.0, 0.5, 2.0), "too few repeats to say", "too few repeats to say"),
    ],
)
def test_words_follow_from_the_interval(ratio, added, removed):
    interval = Interval(value=ratio[0], low=ratio[1], high=ratio[2])
    assert (judge(interval, removed=False), judge(interval, removed=True)) == (added, removed)


def read_ablation(tmp_path, blocks, steps, **more):
    asked = {
        "model": "bert", "what": "settings", "seconds": 3.75,
        "steps": [plain(asdict(step)) for step in steps],
        "archive": {"weights": "random", "notes": ["a note"]},
        "groups": [[one.server for one in series] for series in blocks],
    }  # fmt: skip
    named = {f"from-{series[-1].server}": series for series in blocks}
    return run(reading(tmp_path, named, kind="ablation", name="settings-bert", asked=asked, **more))


def series(name, *rates, **changes):
    return make_series(name, rates, **changes)


def test_ratios_are_of_turns_and_multiply_over_blocks(tmp_path):
    steps = make_steps("a", "b", "c")
    blocks = [
        [series("a", 10.0, 10.1, 9.9), series("b", 20.0, 20.2, 19.8)],
        [series("b", 10.0, 10.1, 9.9), series("c", 30.0, 30.3, 29.7)],
    ]
    result = read_ablation(tmp_path, blocks, steps)
    assert [round(one.figure.value, 3) for one in result.verdicts] == [10.0, 2.0, 3.0]
    table = result.tables[0].frame
    assert [getattr(cell, "value", cell) for cell in table["ratio to the first"]] == [
        None,
        pytest.approx(2),
        pytest.approx(6),
    ]
    assert table["verdict"].tolist() == [None, "helps", "helps"]
    assert result.passed
    assert result.plots[0].svg.startswith(b"<?xml")


def test_a_step_in_doubt_shows_no_figure_and_one_above_it_no_ratio_to_it(tmp_path):
    steps = make_steps("a", "b", "c")
    blocks = [[series("a", 10.0, 10.1), series("b", 20.0, 20.1, errors=3), series("c", 30.0, 30.1)]]
    result = read_ablation(tmp_path, blocks, steps)
    frame = result.tables[0].frame
    assert frame["requests/s"].tolist()[1] == "INVALID"
    assert [cell is None for cell in frame["ratio to the one before"]] == [True, True, True]
    assert not result.valid
    assert not result.passed
    assert "20.0" not in render_markdown(result, reading(tmp_path, {}).kept).split("## Where the CPU")[0]


def test_what_the_kit_rejects_is_told_and_is_no_failure(tmp_path):
    steps = make_steps("a", "b")
    rejected = {"from-a": {"b": "INT8 needs another backend"}}
    result = read_ablation(tmp_path, [[series("a", 10.0, 10.1)]], steps, rejected=rejected)
    assert result.tables[0].frame["verdict"].tolist() == [
        None,
        "cannot be served here: INT8 needs another backend",
    ]
    assert result.passed
