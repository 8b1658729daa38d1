"""A whole tuning on files: what comes next follows from what is kept; what is bad is named, not judged."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from loadtest.errors import LoadTestError
from loadtest.experiments.tune.candidate import DEFAULT, list_candidates
from loadtest.experiments.tune.curve import NONE_KEPT
from loadtest.experiments.tune.outcome import (
    LEAST_GAIN,
    choose,
    find_outcome,
    judge,
    list_out,
    list_seen,
    split_latencies,
)
from loadtest.report.tune import make_tune_section
from loadtest.results.kept import read_kept
from tests.loadtest.experiments.tune.results import (
    BEST,
    DEFAULT_PEAK,
    MIX,
    MODEL,
    SIZES,
    find_best,
    make_default,
    run_tune,
)
from tests.loadtest.making import make_scenario
from tests.loadtest.simulated import simulate_series

WHOLE = ["start", "candidates", "final-1", "final-2"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run_tune(tmp_path_factory.mktemp("whole"))


def list_names(kept):
    return [block.name for block in kept.blocks]


def test_the_candidates_are_the_defaults_neighbours():
    default = dataclasses.replace(make_default(), cores_per_worker=2)
    found = list_candidates(default, {MODEL: SIZES}, free_layout=True)
    assert [one.name for one in found] == ["w2x2-b4", "w2x2-b16", "w1x4-b8", "w4x1-b8"]
    fixed = list_candidates(default, {MODEL: range(1, 10)}, free_layout=False)
    assert [one.name for one in fixed] == ["w2x2-b4"]
    mixed = list_candidates(make_default(("bert", MODEL)), {"bert": SIZES, MODEL: SIZES}, free_layout=True)
    batches = ["w2x1-b4-b8", "w2x1-b16-b8", "w2x1-b8-b4", "w2x1-b8-b16"]
    assert [one.name for one in mixed] == [*batches, "w1x2-b8-b8"]


def test_all_plans_are_measured_alike_and_the_best_meets_the_default_about_its_own_peak(whole):
    assert list_names(whole) == WHOLE
    assert sum(block.seconds for block in whole.blocks) <= 1.05 * 60 * 30
    seen = list_seen(whole)
    rates = {}
    for one in seen:
        rates.setdefault((one.block, one.plan), set()).add(one.rate)
    first = [found for (block, _), found in rates.items() if block == "candidates"]
    assert len(first) == 4
    assert all(found == first[0] and len(found) == 3 for found in first)
    assert {plan for block, plan in rates if block == "final-2"} == {DEFAULT, BEST}
    assert max(rates["final-2", DEFAULT]) < min(rates["final-2", BEST])


def test_the_best_plan_is_chosen_with_its_evidence(whole):
    found = find_outcome(whole)
    assert (found.adopted, found.served.name) == (True, BEST)
    assert found.served.peak.value == pytest.approx(find_best(BEST), rel=0.06)
    assert found.find_row(DEFAULT).peak.value == pytest.approx(DEFAULT_PEAK, rel=0.06)
    assert found.ratio.low > 1.25
    assert choose(found, alone=True) == {"batch": {MODEL: 4}}
    assert all(verdict.met for verdict in judge(whole))


def test_a_tuning_that_was_cut_off_goes_on_as_it_would_have(whole, tmp_path):
    """Every block follows from the kept ones alone."""
    cut = run_tune(tmp_path, blocks=2)
    resumed = run_tune(tmp_path, kept=read_kept(cut.folder))
    assert list_names(resumed) == list_names(whole)
    assert [*list_seen(resumed)] == [*list_seen(whole)]


@pytest.mark.parametrize("seed", ["a", "b", "c"])
def test_on_a_machine_that_drifts_a_better_plan_is_found_and_of_equal_ones_the_default_stays(tmp_path, seed):
    """A tie with the best is as good."""
    better = {DEFAULT: 100.0, BEST: 123.0, "w2x1-b16": 125.0}
    found = find_outcome(run_tune(tmp_path / "a", peaks=lambda name: better.get(name, 100.0), seed=seed))
    assert found.served.name in (BEST, "w2x1-b16")
    equal = find_outcome(run_tune(tmp_path / "b", peaks=lambda _: 100.0, seed=seed))
    assert not equal.adopted
    assert choose(equal, alone=True) == {}


@pytest.mark.parametrize(("other", "adopted"), [(92.0, False), (150.0, True)])
def test_another_layout_is_chosen_where_it_is_better_and_nobody_shares_it(tmp_path, other, adopted):
    def find(name):
        return {DEFAULT: 100.0, "w1x2-b8": other}.get(name, 90.0)

    found = find_outcome(run_tune(tmp_path, peaks=find))
    assert found.adopted is adopted
    assert choose(found, alone=True) == ({"workers": 1, "cores_per_worker": 2} if adopted else {})
    assert choose(found, alone=False) == {}


def test_of_a_mix_each_model_must_keep_the_limit(tmp_path):
    kept = run_tune(tmp_path, shares=MIX, peaks=lambda name: 150.0 if name == "w2x1-b8-b16" else 100.0)
    found = find_outcome(kept)
    assert (kept.name, found.what) == ("tune-bert-resnet50", "30% bert, 70% resnet50")
    assert choose(found, alone=True) == {"batch": {MODEL: 16}}
    assert kept.find("start").trials[0].level == 2 * 2 * (8 + 8)


def spoil(name, blocks=("candidates", "final-1", "final-2"), trial=None, refused=None, **facts):
    """Facts or trials of a system in some blocks."""

    def change(block):
        if name not in block.systems or block.name not in blocks:
            return block
        spoilt = dataclasses.replace(block.systems[name], **facts)
        trials = [
            dataclasses.replace(one, **trial) if trial and one.system == name else one for one in block.trials
        ]
        return dataclasses.replace(
            block,
            systems={**block.systems, name: spoilt},
            trials=tuple(trials),
            refused={name: refused} if refused else {},
        )

    return change


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"pids_after": (1, 3)}, "a worker died"),
        ({"verify_after": {"good": False, "findings": []}}, "verify failed after the run"),
        ({"trial": {"warm_up": True}, "refused": "BATCH must be less"}, "BATCH must be less"),
    ],
)
def test_a_plan_that_is_bad_is_named_and_cannot_win(tmp_path, how, why):
    kept = run_tune(tmp_path, change=spoil(BEST, **how))
    found = find_outcome(kept)
    row = found.find_row(BEST)
    assert row.peak is None
    assert row.invalid.startswith(why)
    assert found.best != BEST
    assert BEST not in kept.find("final-1").systems
    assert not any(doubt.invalid for doubt in make_tune_section(kept).findings)


def test_a_default_in_doubt_gives_no_figure(tmp_path):
    kept = run_tune(tmp_path, change=spoil(DEFAULT, verify_after={"good": False, "findings": []}))
    assert list_names(kept) == WHOLE[:2]
    (verdict,) = judge(kept)
    assert verdict.figure is None
    assert "the default plan is INVALID: verify failed after the run" in verdict.why
    empty = run_tune(tmp_path / "empty", blocks=0)
    assert judge(empty)[0].figure is None
    assert not make_tune_section(empty).whole


@pytest.mark.parametrize("how", [{"minutes": 6}, {"memory_mib": 3.5 * (700 + 320)}])
def test_what_budget_or_memory_have_no_room_for_is_named(tmp_path, how):
    kept = run_tune(tmp_path, blocks=2, **how)
    assert len(kept.find("candidates").systems) == 3
    left = [row for row in find_outcome(kept).rows if row.peak is None]
    assert [(row.name, row.invalid) for row in left] == [("w1x2-b8", "")]
    (table,) = make_tune_section(kept).tables
    assert [row[0] for row in table.rows if "left out" in row[-1]] == ["w1x2-b8"]


def test_without_memory_for_two_servers_nothing_is_measured(tmp_path):
    with pytest.raises(LoadTestError, match=r"must be up together: got 1000 MiB for them"):
        run_tune(tmp_path, blocks=2, memory_mib=1000.0)


@pytest.mark.parametrize(("other", "finals"), [(1.5, 2), (0.9, 1)])
def test_without_budget_the_final_is_held_again_only_where_the_candidate_seems_better(
    tmp_path, other, finals
):
    """No plan is chosen by three repeats."""
    kept = run_tune(tmp_path, minutes=5, peaks=lambda name: DEFAULT_PEAK * (other if name == BEST else 1.0))
    assert list_names(kept) == WHOLE[: 2 + finals]
    assert find_outcome(kept).adopted is (other > 1)


def test_a_final_none_of_whose_windows_may_be_quoted_is_held_again(tmp_path):
    kept = run_tune(tmp_path, change=spoil(BEST, ["final-1"], trial={"generator_cores": (0.95,)}))
    assert list_names(kept) == [*WHOLE, "final-3"]
    found = find_outcome(kept)
    assert (found.repeats, found.adopted) == (6, True)


def test_five_repeats_are_what_a_choice_needs(tmp_path):
    found = find_outcome(run_tune(tmp_path, blocks=3))
    assert found.ratio.low > LEAST_GAIN
    assert (found.repeats, found.served.name) == (3, DEFAULT)


def test_a_busy_generator_or_machine_costs_windows_and_no_plan(tmp_path):
    kept = run_tune(tmp_path, blocks=2, change=spoil(BEST, trial={"generator_cores": (0.95,)}))
    assert list_out(kept) == {}
    assert BEST not in {one.plan for one in list_seen(kept)}
    assert find_outcome(kept).find_row(BEST).invalid


def test_a_default_that_keeps_the_limit_at_no_rate_is_beaten_by_a_plan_that_does(tmp_path):
    """Its closed loop is fast all the same."""
    kept = run_tune(tmp_path, blocks=1, peaks=lambda _: 100.0)
    kept = run_tune(tmp_path, kept=kept, peaks=lambda name: 100.0 if name == BEST else 20.0)
    found = find_outcome(kept)
    assert found.find_row(DEFAULT).peak.boundary == NONE_KEPT
    assert found.adopted
    assert "at least" in found.bound


def test_failed_requests_are_infinitely_late():
    """However fast they were refused."""

    def refuse(records):
        records.status[::10] = 503

    scenario = make_scenario("open", duration_s=10.0, warm_up_s=1.0, repeats=1)
    (found,) = split_latencies(simulate_series(scenario, level=20, change=refuse), ())
    assert np.isinf(found).mean() == pytest.approx(0.1, abs=0.02)
    assert math.isfinite(found.min())
