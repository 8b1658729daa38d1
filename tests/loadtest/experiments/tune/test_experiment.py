"""A whole race on files: what comes next follows from what is kept; what is bad is named, not judged."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from loadtest.errors import LoadTestError
from loadtest.experiments.tune.candidate import DEFAULT, Candidate, list_candidates
from loadtest.experiments.tune.curve import NONE_KEPT
from loadtest.experiments.tune.evidence import find_spent, list_latencies, list_out, list_seen
from loadtest.experiments.tune.experiment import fit_windows
from loadtest.experiments.tune.outcome import choose, describe_gain, find_outcome, judge
from loadtest.report.tune import make_tune_section
from loadtest.results.kept import read_kept
from tests.loadtest.experiments.tune.live import plan
from tests.loadtest.experiments.tune.results import (
    MODEL,
    ONLY_LIVE_LATER_MS,
    ask_for_both_cores,
    halve_both_cores,
    make_course,
    run_tune,
)
from tests.loadtest.making import make_scenario
from tests.loadtest.simulated import simulate_series


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run_tune(tmp_path_factory.mktemp("whole"))


def test_a_race_begins_with_the_default_and_ends_with_the_winners_saturation(whole):
    names = [block.name for block in whole.blocks]
    assert names[:2] == ["start", "race-1"]
    assert names[-1] == "saturated"
    assert [name for name in names if name.startswith("final")] == ["final-1", "final-2"]
    # The rates of the finals, and so their length, are known only after the rounds.
    assert find_spent(whole) <= 1.05 * 60 * 15


def test_the_best_plan_is_chosen_with_its_evidence(whole):
    found = find_outcome(whole)
    assert found.adopted
    assert found.best.candidate.batch in (2, 4, 8)
    assert found.best.candidate.delay_ms == 1
    assert found.ratio.low > 1.25
    assert 0.8 < found.reached <= 1
    assert found.best.peak.value <= found.queueing_limit <= found.saturated[DEFAULT] * 1.3
    assert found.best.predicted < found.ideal < found.queueing_limit
    assert choose(found, alone=True) == {
        "batch": {MODEL: found.best.candidate.batch}, "delay_ms": {MODEL: 1},
    }  # fmt: skip
    told = describe_gain(found, "results/x")
    assert "/s at p99 ≤ 200 ms against " in told
    assert "of the queueing limit; trials in results/x" in told
    peak, ratio = judge(whole)
    assert peak.met
    assert (ratio.unit, ratio.why) == ("×", "chosen")


def test_predictions_are_near_what_is_measured(whole):
    """Within the drift; of those that are out of the race a few windows are all there is."""
    found = find_outcome(whole)
    for row in found.rows:
        near = 0.12 if row.name in (DEFAULT, found.winner) else 0.25
        assert row.predicted == pytest.approx(row.peak.value, rel=near), row.name


def test_a_race_that_was_cut_off_goes_on_as_it_would_have(whole, tmp_path):
    """Every stage follows from the kept blocks alone."""
    cut = run_tune(tmp_path, blocks=2)
    resumed = run_tune(tmp_path, kept=read_kept(cut.folder))
    assert [block.name for block in resumed.blocks] == [block.name for block in whole.blocks]
    assert [one.quoted_ms for one in list_seen(resumed)] == [one.quoted_ms for one in list_seen(whole)]


def test_a_good_default_stays(tmp_path):
    """Live, all others are a little slower than their profile says."""
    kept = run_tune(tmp_path, default=plan(4), truth=lambda name: 1.0 if name == DEFAULT else 1.1)
    found = find_outcome(kept)
    assert not found.adopted
    assert found.best.name == DEFAULT
    assert choose(found, alone=True) == {}
    assert "the default is right" in describe_gain(found, "results/x")
    assert all(verdict.met for verdict in judge(kept))


def spoil(name: str, **facts):
    """A system of every block after the start."""

    def change(block):
        if name not in block.systems or block.name == "start":
            return block
        spoilt = dataclasses.replace(block.systems[name], **facts)
        return dataclasses.replace(block, systems={**block.systems, name: spoilt})

    return change


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"verify_after": {"good": False, "findings": []}}, "verify failed after the run"),
        ({"pids_after": (1, 3)}, "a worker died and was started again"),
    ],
)
def test_a_plan_that_crashed_or_was_not_verified_is_named_and_has_no_figure(tmp_path, whole, facts, why):
    best = find_outcome(whole).winner
    kept = run_tune(tmp_path, change=spoil(best, **facts))
    found = find_outcome(kept)
    row = found.find_row(best)
    assert row.peak is None
    assert row.invalid.startswith(why)
    assert found.winner != best
    assert best not in kept.find("final-1").systems


def test_a_plan_that_the_kit_refuses_is_named(tmp_path, whole):
    best = find_outcome(whole).winner

    def refuse(block):
        if best not in block.systems:
            return block
        return dataclasses.replace(
            block,
            trials=tuple(dataclasses.replace(one, warm_up=one.system == best) for one in block.trials),
            refused={best: "BATCH must be less"},
        )

    kept = run_tune(tmp_path, blocks=2, change=refuse)
    assert list_out(kept) == {best: "BATCH must be less"}


def test_a_default_in_doubt_gives_no_figure(tmp_path):
    kept = run_tune(tmp_path, change=spoil(DEFAULT, verify_after={"good": False, "findings": []}))
    (verdict,) = judge(kept)
    assert verdict.figure is None
    assert "the default plan is INVALID: verify failed after the run" in verdict.why


def test_little_budget_means_fewer_plans_and_little_memory_too(tmp_path):
    few = run_tune(tmp_path / "few", blocks=2, minutes=6)
    assert len(few.find("race-1").systems) == 3
    narrow = run_tune(tmp_path / "narrow", blocks=2, memory_mib=1500.0)
    assert len(narrow.find("race-1").systems) == 2
    with pytest.raises(LoadTestError, match=r"must be up together: got 1000 MiB for them"):
        run_tune(tmp_path / "none", blocks=2, memory_mib=1000.0)


def test_with_budget_left_the_winner_meets_itself_with_other_libraries(tmp_path):
    def truth(name):
        return 0.9 if name.endswith("tcmalloc") else 1.0

    kept = run_tune(tmp_path, minutes=60, truth=truth)
    found = find_outcome(kept)
    assert [(one.item, one.value, one.better) for one in found.changes] == [
        ("allocator", "tcmalloc", True), ("openmp", "gnu", False),
    ]  # fmt: skip
    assert choose(found, alone=True)["allocator"] == "tcmalloc"
    assert "allocator" not in choose(found, alone=False)


def test_a_busy_generator_or_machine_costs_windows_and_no_plan(tmp_path):
    def busy(block):
        trials = tuple(
            dataclasses.replace(one, generator_cores=(0.95,)) if one.system != DEFAULT else one
            for one in block.trials
        )
        return dataclasses.replace(block, trials=trials)

    kept = run_tune(tmp_path, blocks=2, change=lambda block: busy(block) if block.name == "race-1" else block)
    assert list_out(kept) == {}
    assert {one.plan for one in list_seen(kept)} == {DEFAULT}
    row = find_outcome(kept).rows[-1]
    assert (row.peak, row.invalid) == (None, "no window of it may be quoted: the machine was not quiet")


def test_a_limit_that_no_plan_keeps_is_refused(tmp_path):
    told = "SLO_P99_MS must be a limit that some plan can keep: got p99 ≤ {} ms, and {}"
    course = make_course(plan(16, 20), limit={"percentile": 99.0, "ms": 10.0})
    with pytest.raises(LoadTestError, match=told.format(10, "by the model's own times every plan is later")):
        fit_windows(course)
    asked = {"limit": {"percentile": 99.0, "ms": ONLY_LIVE_LATER_MS}, "batches": [1, 2]}
    live = told.format(15, "with what the server was seen to take .*; fewer workers of more cores are")
    with pytest.raises(LoadTestError, match=live):
        run_tune(tmp_path, default=plan(1), asked=asked)


def test_a_limit_that_other_workers_do_not_keep_either_is_refused_without_naming_them():
    course = make_course(plan(1), **ask_for_both_cores(5.0))
    with pytest.raises(LoadTestError, match=r"ask for a higher one$"):
        fit_windows(course)


@pytest.mark.parametrize("limit_ms", [13.0, ONLY_LIVE_LATER_MS])
def test_a_default_that_keeps_the_limit_at_no_rate_is_beaten_by_a_plan_that_does(tmp_path, limit_ms):
    asked = ask_for_both_cores(limit_ms)
    kept = run_tune(tmp_path, default=plan(1), truth=halve_both_cores, asked=asked)
    found = find_outcome(kept)
    default = found.find_row(DEFAULT)
    assert (default.predicted, default.peak.boundary) == (0.0, NONE_KEPT)
    assert found.adopted
    assert found.best.candidate.layout == (1, 2)
    told = f", at least: the default keeps p99 ≤ {limit_ms:g} ms at no rate that was tried"
    assert told in describe_gain(found, "results/x")
    assert judge(kept)[1].why == f"chosen{told}"
    assert told in str(make_tune_section(kept).notes)


def test_windows_are_as_long_as_leaves_the_budget_room_for_the_finals():
    long, short = (make_course(plan(16, 20), minutes=minutes) for minutes in (60, 5))
    assert fit_windows(long) == long
    fitted = fit_windows(short)
    assert (long.windows.times, fitted.windows.times) == (2, 1)
    assert fitted.windows.plan_seconds(10.0) == 0.5 * long.windows.plan_seconds(10.0)
    assert short.budget_s < fitted.least_s < long.least_s < long.budget_s


def test_what_is_left_counts_the_finals_that_are_never_saved(tmp_path):
    course = make_course(plan(16, 20), minutes=0.01)
    estimates = [course.estimate(run_tune(tmp_path / str(n), minutes=0.01, blocks=n)) for n in range(5)]
    assert estimates[0] == course.least_s > estimates[1]
    assert estimates[1] == estimates[2] > 100.0
    assert estimates[3] > 100.0  # a second one: the winner seems better
    assert estimates[4] == 0.0


@pytest.mark.parametrize("name", ["w2x1-b4-d1", "w1x2-b16-d20-tcmalloc", "w4x1-b1-d1-gnu"])
def test_a_plans_name_says_all_of_it(name):
    assert Candidate.parse(name).name == name


def test_candidates_of_one_request_have_one_delay():
    assert [one.name for one in list_candidates([(2, 1)], (1, 4), (1, 5))] == [
        "w2x1-b1-d1", "w2x1-b4-d1", "w2x1-b4-d5",
    ]  # fmt: skip


def test_failed_requests_are_infinitely_late():
    """However fast they were refused."""

    def refuse(records):
        records.status[::10] = 503

    scenario = make_scenario("open", duration_s=10.0, warm_up_s=1.0, repeats=1)
    found = list_latencies(simulate_series(scenario, level=20, change=refuse))
    assert np.isinf(found).mean() == pytest.approx(0.1, abs=0.02)
    assert np.isfinite(found).any()
