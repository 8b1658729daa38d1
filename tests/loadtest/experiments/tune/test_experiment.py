"""A whole race on files: what comes next follows from what is kept; what is bad is named, not judged."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from loadtest.errors import LoadTestError
from loadtest.experiments.tune.candidate import DEFAULT, list_candidates
from loadtest.experiments.tune.curve import NONE_KEPT
from loadtest.experiments.tune.evidence import find_spent, list_out, list_seen, split_latencies
from loadtest.experiments.tune.outcome import choose, describe_gain, find_outcome, judge
from loadtest.report.tune import make_tune_section
from loadtest.results.kept import read_kept
from tests.loadtest.experiments.tune.results import (
    BEST,
    DEFAULT_PEAK,
    MIX,
    MODEL,
    SIZES,
    find_best,
    is_near,
    make_default,
    run_tune,
)
from tests.loadtest.making import make_scenario
from tests.loadtest.simulated import simulate_series


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run_tune(tmp_path_factory.mktemp("whole"))


def test_the_candidates_are_the_defaults_neighbours():
    default = dataclasses.replace(make_default(), cores_per_worker=2)
    found = list_candidates(default, {MODEL: SIZES}, free_layout=True)
    assert [one.name for one in found] == ["w2x2-b4", "w2x2-b16", "w1x4-b8", "w4x1-b8"]
    fixed = list_candidates(default, {MODEL: range(1, 10)}, free_layout=False)
    assert [one.name for one in fixed] == ["w2x2-b4"]
    mixed = list_candidates(make_default(("bert", MODEL)), {"bert": SIZES, MODEL: SIZES}, free_layout=True)
    assert [one.name for one in mixed] == [
        "w2x1-b4-b8",
        "w2x1-b16-b8",
        "w2x1-b8-b4",
        "w2x1-b8-b16",
        "w1x2-b8-b8",
    ]


def test_a_race_begins_with_the_default_and_keeps_its_budget(whole):
    names = [block.name for block in whole.blocks]
    assert names[:2] == ["start", "race-1"]
    assert [name for name in names if name.startswith("final")] == ["final-1", "final-2"]
    assert find_spent(whole) <= 1.05 * 60 * 30


def test_the_best_plan_is_chosen_with_its_evidence(whole):
    found = find_outcome(whole)
    assert (found.adopted, found.best.name) == (True, BEST)
    assert is_near(found.best.peak.value, find_best(BEST))
    assert is_near(found.find_row(DEFAULT).peak.value, DEFAULT_PEAK)
    assert found.ratio.low > 1.25
    assert choose(found, alone=True) == {"batch": {MODEL: 4}}
    assert describe_gain(found, "results/x").endswith("trials in results/x")
    peak, ratio = judge(whole)
    assert peak.met
    assert (ratio.unit, ratio.why) == ("×", "chosen")


def test_a_race_that_was_cut_off_goes_on_as_it_would_have(whole, tmp_path):
    """Every stage follows from the kept blocks alone."""
    cut = run_tune(tmp_path, blocks=2)
    resumed = run_tune(tmp_path, kept=read_kept(cut.folder))
    assert [block.name for block in resumed.blocks] == [block.name for block in whole.blocks]
    assert [one.quoted_ms for one in list_seen(resumed)] == [one.quoted_ms for one in list_seen(whole)]


def test_a_good_default_stays(tmp_path):
    kept = run_tune(tmp_path, peaks=lambda name: 100.0 if name == DEFAULT else 92.0)
    found = find_outcome(kept)
    assert not found.adopted
    assert found.best.name == DEFAULT
    assert choose(found, alone=True) == {}
    assert "the default is right" in describe_gain(found, "results/x")
    assert all(verdict.met for verdict in judge(kept))


def test_another_layout_is_chosen_where_nobody_shares_it(tmp_path):
    kept = run_tune(tmp_path, peaks=lambda name: 150.0 if name == "w1x2-b8" else 100.0)
    found = find_outcome(kept)
    assert choose(found, alone=True) == {"workers": 1, "cores_per_worker": 2}
    assert choose(found, alone=False) == {}


def test_of_a_mix_each_model_must_keep_the_limit(tmp_path):
    kept = run_tune(tmp_path, shares=MIX, peaks=lambda name: 150.0 if name == "w2x1-b8-b16" else 100.0)
    found = find_outcome(kept)
    assert (kept.name, found.what) == ("tune-bert-resnet50", "30% bert, 70% resnet50")
    assert choose(found, alone=True) == {"batch": {MODEL: 16}}
    closed = kept.find("start").trials[0]
    assert closed.level == 2 * 2 * (8 + 8)


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
def test_a_plan_that_crashed_or_was_not_verified_is_named_and_has_no_figure(tmp_path, facts, why):
    kept = run_tune(tmp_path, change=spoil(BEST, **facts))
    found = find_outcome(kept)
    row = found.find_row(BEST)
    assert row.peak is None
    assert row.invalid.startswith(why)
    assert found.winner != BEST
    assert BEST not in kept.find("final-1").systems


def test_a_plan_that_the_kit_refuses_is_named(tmp_path):
    def refuse(block):
        if BEST not in block.systems:
            return block
        trials = tuple(dataclasses.replace(one, warm_up=one.system == BEST) for one in block.trials)
        return dataclasses.replace(block, trials=trials, refused={BEST: "BATCH must be less"})

    kept = run_tune(tmp_path, blocks=2, change=refuse)
    assert list_out(kept) == {BEST: "BATCH must be less"}


def test_a_default_in_doubt_gives_no_figure(tmp_path):
    kept = run_tune(tmp_path, change=spoil(DEFAULT, verify_after={"good": False, "findings": []}))
    (verdict,) = judge(kept)
    assert verdict.figure is None
    assert "the default plan is INVALID: verify failed after the run" in verdict.why
    empty = run_tune(tmp_path / "empty", blocks=0)
    assert judge(empty)[0].figure is None
    assert not make_tune_section(empty).whole


def test_little_budget_means_fewer_plans_and_little_memory_too(tmp_path):
    few = run_tune(tmp_path / "few", blocks=2, minutes=6)
    assert len(few.find("race-1").systems) == 3
    narrow = run_tune(tmp_path / "narrow", memory_mib=2.5 * (700 + 320))
    assert {len(block.systems) for block in narrow.blocks if block.name != "start"} == {2}
    assert find_outcome(narrow).best.name == BEST
    with pytest.raises(LoadTestError, match=r"must be up together: got 1000 MiB for them"):
        run_tune(tmp_path / "none", blocks=2, memory_mib=1000.0)


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
    assert find_outcome(kept).rows[-1].peak is None


def test_a_default_that_keeps_the_limit_at_no_rate_is_beaten_by_a_plan_that_does(tmp_path):
    """Its closed loop is fast all the same."""

    def find(name):
        return 100.0 if name == BEST else 20.0

    kept = run_tune(tmp_path, blocks=1, peaks=lambda _: 100.0)
    kept = run_tune(tmp_path, kept=kept, peaks=find)
    found = find_outcome(kept)
    assert found.find_row(DEFAULT).peak.boundary == NONE_KEPT
    assert found.adopted
    told = ", at least: the default keeps p99 ≤ 200 ms at no rate that was tried"
    assert told in describe_gain(found, "results/x")
    assert told in str(make_tune_section(kept).notes)


def test_failed_requests_are_infinitely_late():
    """However fast they were refused."""

    def refuse(records):
        records.status[::10] = 503

    scenario = make_scenario("open", duration_s=10.0, warm_up_s=1.0, repeats=1)
    (found,) = split_latencies(simulate_series(scenario, level=20, change=refuse), ())
    assert np.isinf(found).mean() == pytest.approx(0.1, abs=0.02)
    assert np.isfinite(found).any()
