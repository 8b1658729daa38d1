"""Every plan of a grid against live servers in virtual time: what is measured, told, and not hidden."""

from __future__ import annotations

import dataclasses

import pytest

from loadtest.errors import LoadTestError
from loadtest.experiments.tune import grid
from loadtest.experiments.tune.candidate import DEFAULT
from loadtest.experiments.tune.curve import ALL_KEPT, NONE_KEPT, fit_peak
from loadtest.experiments.tune.evidence import list_seen
from loadtest.experiments.tune.experiment import UP_S
from loadtest.experiments.tune.grid import (
    AT_ITS_PACE,
    AT_USUAL_PACE,
    KIND,
    MOST_TRIES,
    PACE_WITHIN,
    TIMES,
    find_peaks,
    judge,
    list_met,
    list_names,
    make_experiment,
    pick_batches,
)
from loadtest.experiments.tune.prepare import Wish
from loadtest.experiments.tune.race import FINALS, GRID
from loadtest.experiments.tune.raced import FINAL, list_finals
from loadtest.experiments.tune.run import run_grid
from loadtest.experiments.tune.space import read_space
from loadtest.experiments.tune.windows import REQUESTS_TIMES
from loadtest.report.grid import make_grid_section
from loadtest.results.kept import keep_block, start_result
from loadtest.results.stats import least_requests
from loadtest.results.trial import KeptBlock
from loadtest.simulation.search import Limit
from tests.loadtest.experiments.tune.live import plan
from tests.loadtest.experiments.tune.results import (
    ONLY_LIVE_LATER_MS,
    ask_for_both_cores,
    halve_both_cores,
    make_asked,
    make_course,
    make_profile,
    measure_block,
    run_tune,
)
from tests.loadtest.experiments.tune.test_experiment import spoil
from tests.loadtest.making import HOST

OLD = plan(16, 20)


def run_whole(
    folder, *, truth=lambda _: 1.0, change=lambda block: block, race=None, plans=(), drift=0.04,
    default=OLD, asked=None,
):  # fmt: skip
    """A race, then the grid about it."""
    asked = asked or {}
    race = race or run_tune(folder / "race", default=default, truth=truth, asked=asked)
    experiment = make_experiment(make_course(default, **asked), make_asked(default, **asked), race, plans)
    kept = start_result(KIND, experiment.name, experiment.asked, folder / "grid", HOST)
    assert experiment.estimate(kept) > 0
    while (block := experiment.next_block(kept)) is not None:
        measured, records = measure_block(block, default, truth, number=len(kept.blocks), drift=drift)
        kept = keep_block(kept, change(measured), records)
    return kept


@pytest.fixture(scope="module")
def race(tmp_path_factory):
    return run_tune(tmp_path_factory.mktemp("race"), default=OLD)


@pytest.fixture(scope="module")
def whole(race, tmp_path_factory):
    return run_whole(tmp_path_factory.mktemp("whole"), race=race)


def test_every_plan_is_measured_and_the_best_meet_the_tuned_one(whole):
    names = list_names(read_space(whole.asked), whole.asked)
    measured = {name for block in whole.blocks if block.name.startswith("grid") for name in block.systems}
    assert measured == set(names)
    assert len(names) == 3 * 4 + 1
    finals = list_final_blocks(whole)
    assert len(finals) >= FINALS
    assert len({frozenset(block.systems) for block in finals}) == 1
    assert whole.asked["tuned"] in finals[0].systems
    assert len(finals[0].systems) == 3


def test_it_is_judged_by_the_finals_and_by_what_was_simulated(whole):
    tuned, p50, p99, near_p50, near_p99, *paced = judge(whole)
    assert tuned.limit == 0.95
    assert tuned.met
    assert p50.figure.value >= 0.9
    assert p99.what.startswith("resnet50: points whose p99 was simulated within 15%")
    # Times of batches hardly differ here, and windows are long enough.
    assert p99.why == "an exact simulator would have 100%"
    assert near_p50.why == near_p99.why
    assert near_p50.why.endswith(f" of 13 plans, {AT_USUAL_PACE}")
    assert [one.why for one in paced] == [AT_ITS_PACE] * 2
    assert paced[0].figure.value >= 0.9


def test_a_plan_that_the_race_missed_is_found(race, tmp_path):
    """It is live a quarter faster than its times say."""
    raced = race.find("race-1").systems
    missed = next(name for name in list_names(read_space(make_asked(OLD)), {})[1:] if name not in raced)
    kept = run_whole(tmp_path, truth=lambda name: 0.75 if name == missed else 1.0, race=race)
    verdict = judge(kept)[0]
    assert verdict.why == f"the best: {missed}"
    assert not verdict.met


def test_plans_that_keep_the_limit_at_no_rate_are_served_beside_those_that_do(tmp_path):
    asked, late = ask_for_both_cores(ONLY_LIVE_LATER_MS), "w2x1-b1-d1"
    how = {"default": plan(1), "asked": asked, "truth": halve_both_cores}
    kept = run_whole(tmp_path, plans=(late,), **how)
    tuned = kept.asked["tuned"]
    peaks = find_peaks(read_space(kept.asked), kept)
    assert tuned.startswith("w1x2")
    assert (peaks[late].boundary, peaks[tuned].known) == (NONE_KEPT, True)
    assert judge(kept)[0].why == "the finals were not measured"


def test_a_tuned_plan_that_kept_no_rate_meets_the_best_all_the_same(race, tmp_path):
    """Else one slow minute, or a wrong choice, would leave the grid without its verdict."""
    tuned = make_experiment(make_course(OLD), make_asked(OLD), race).asked["tuned"]
    kept = run_whole(tmp_path, truth=lambda name: 1.8 if name in (tuned, DEFAULT) else 1.0, race=race)
    finals = list_final_blocks(kept)
    assert len(finals) >= FINALS
    assert all(tuned in block.systems for block in finals)
    assert judge(kept)[0].figure.value < 0.8


def test_a_plan_that_met_a_slow_minute_in_the_grid_is_met_again_about_its_peak(race, tmp_path):
    """All rates of its first final lie below its peak."""
    named, kept_blocks = plan(8, 20).name, []

    def slow_at_first(name):
        return 1.3 if name == named and not any(named in block.systems for block in kept_blocks) else 1.0

    def note(block):
        kept_blocks.append(block)
        return block

    kept = run_whole(tmp_path, race=race, plans=(named,), truth=slow_at_first, change=note)
    space, finals = read_space(kept.asked), list_finals(list_seen(kept), named)
    cut = keep_first(kept, kept.blocks.index(list_final_blocks(kept)[0]) + 1)
    assert fit_peak(list_finals(list_seen(cut), named), space.limit).boundary == ALL_KEPT
    assert judge(cut)[0].why.endswith(f"{named}; the peak of {named} lies beyond the rates that were tried")
    assert fit_peak(finals, space.limit).known
    assert judge(kept)[0].figure.value == pytest.approx(1.0, abs=0.08)


def test_what_is_left_counts_down_to_nothing(race, tmp_path):
    """`start`, the plans and the finals that are still to come."""
    plans = (plan(8, 20).name,)
    kept = run_whole(tmp_path, race=race, plans=plans)
    experiment = make_experiment(make_course(OLD), make_asked(OLD), race, plans)
    left = [experiment.estimate(keep_first(kept, count)) for count in range(len(kept.blocks) + 1)]
    assert left == sorted(left, reverse=True)
    assert left[-1] == 0.0
    # Of five servers, whose starts are no part of these blocks' seconds.
    took = 5 * UP_S + sum(block.seconds for block in kept.blocks)
    assert left[0] == pytest.approx(took, rel=0.2)


def test_what_slow_minutes_cost_is_told_apart(race, tmp_path):
    """The simulator's times are of the usual pace; what workers took is seen apart from latencies."""
    kept = run_whole(tmp_path, race=race, drift=0.15)
    met = list_met(read_space(kept.asked), kept)
    near = [one for one in met if abs(one.pace - 1) <= PACE_WITHIN]
    _, p50, _, near_p50, near_p99, *_ = judge(kept)
    assert not p50.met
    assert near_p50.why.startswith(f"{len(near)} of {len(met)} plans")
    assert near_p50.figure.value >= 0.9
    assert near_p99.figure.value >= 0.9


def test_where_no_plan_met_the_usual_pace_nothing_fails_by_it(whole, monkeypatch):
    monkeypatch.setattr(grid, "PACE_WITHIN", -1.0)
    told = judge(whole)
    assert all(verdict.figure for verdict in told)
    assert [one.why for one in told[3:]] == [AT_ITS_PACE] * 2


def test_a_slow_minute_of_another_layout_is_told_too(tmp_path):
    """Beside what its workers took in `start`, however few of its plans are measured."""
    usual, slow = plan(4).name, "w1x2-b4-d1"

    def truth(name):
        return halve_both_cores(name) * (1.15 if name == slow else 1.0)

    asked = ask_for_both_cores(200.0)
    kept = run_whole(tmp_path, default=plan(2), asked=asked, truth=truth, plans=(usual, slow), drift=0.0)
    met = {one.plan: one for one in list_met(read_space(kept.asked), kept)}
    assert met[usual].pace == pytest.approx(1.0, abs=PACE_WITHIN)
    assert met[slow].pace == pytest.approx(1.15, rel=PACE_WITHIN)
    assert met[slow].paced[0] == pytest.approx(met[slow].p50[1], rel=0.03)


def test_the_chance_of_few_requests_is_told(whole, monkeypatch):
    """Draws of times with a heavy tail are as far from each other as live windows would be."""
    monkeypatch.setattr(grid, "read_space", lambda asked: spread_times(read_space(asked)))
    _, _, p99, *_ = judge(whole)
    assert 0.2 < float(p99.why.removeprefix("an exact simulator would have ").rstrip("%")) / 100 < 0.9


def spread_times(space):
    """One batch in a hundred takes six times as long."""
    heavy = tuple(
        (layout, dataclasses.replace(times, samples=tuple(
            (batch, (*[seconds[0]] * 99, 6 * seconds[0])) for batch, seconds in times.samples
        )))
        for layout, times in space.times
    )  # fmt: skip
    return dataclasses.replace(space, times=heavy)


def test_the_simulator_is_told_wrong_where_it_is(race, tmp_path):
    """All but the default take a third longer than it was told."""
    kept = run_whole(tmp_path, truth=lambda name: 1.0 if name == DEFAULT else 1.33, race=race)
    _, *told = judge(kept)
    assert not any(verdict.met for verdict in told[:2])
    tries = [name for block in kept.blocks if block.name.startswith("grid") for name in block.systems]
    assert max(map(tries.count, tries)) == MOST_TRIES


def test_the_page_shows_every_plan_and_names_what_is_invalid(race, tmp_path):
    out = plan(2, 50).name
    kept = run_whole(tmp_path, change=spoil(out, verify_after={"good": False, "findings": []}), race=race)
    section = make_grid_section(kept)
    rows = {row[0]: row for row in section.tables[0].rows}
    assert rows[out][1] == "INVALID"
    assert f"{OLD.name} (default)" in rows
    assert [doubt.where for doubt in section.findings] == [out]
    assert section.whole


def test_named_plans_alone_meet_the_tuned_one(race, tmp_path):
    named = plan(8, 20).name
    kept = run_whole(tmp_path, truth=lambda name: 1.25 if name == named else 1.0, race=race, plans=(named,))
    measured = {name for block in kept.blocks for name in block.systems}
    assert measured == {DEFAULT, named, kept.asked["tuned"]}
    verdict = judge(kept)[0]
    assert verdict.what.endswith(f"the tuned plan, {kept.asked['tuned']}, against the best of 2")
    assert verdict.figure.value > 1.1
    section = make_grid_section(kept)
    assert {row[0] for row in section.tables[0].rows} == {named, kept.asked["tuned"]}
    assert section.whole
    assert count_fewest_requests(kept) == pytest.approx(TIMES * least_requests(99), rel=0.02)


def test_batches_double_as_far_as_one_alone_keeps_the_limit():
    """16 take 171 ms of one core, 86 of both."""
    both = [make_profile(2, 1), make_profile(1, 2, 0.5)]
    spaces = [
        read_space(make_asked(OLD, batches=[1, 2, 3, 4, 6, 8, 12, 16], profiles=profiles, limit=limit))
        for profiles in (both[:1], both)
        for limit in ({"percentile": 99.0, "ms": 100.0}, {"percentile": 99.0, "ms": 200.0})
    ]
    assert [pick_batches(space)[-1] for space in spaces] == [8, 16, 16, 16]
    assert pick_batches(spaces[-1]) == [1, 2, 4, 8, 16]
    assert len(list_names(spaces[-1], {})) == 2 * (1 + 4 * 4)  # the default among them


def test_a_whole_grid_has_the_windows_of_the_race(whole):
    assert count_fewest_requests(whole) == pytest.approx(REQUESTS_TIMES[0] * least_requests(99), rel=0.02)


def keep_first(kept, blocks: int):
    """As it was when so many had been measured."""
    return dataclasses.replace(kept, blocks=kept.blocks[:blocks])


def list_final_blocks(kept) -> list[KeptBlock]:
    return [block for block in kept.blocks if block.name.startswith(FINAL)]


def count_fewest_requests(kept) -> float:
    """Of its windows."""
    trials = [trial for block in kept.blocks if block.name.startswith(GRID) for trial in block.trials]
    return min(trial.scenario.duration_s * trial.level for trial in trials)


@pytest.mark.parametrize("name", ["b4", "w3x1-b4-d1", "w2x1-b3-d1", "default"])
def test_what_is_no_plan_of_the_race_is_refused(race, tmp_path, name):
    known = f"GRID must be 0, 1, or plans such as {OLD.name}, "
    with pytest.raises(LoadTestError, match=f"{known}.*: got {name}"):
        run_whole(tmp_path, race=race, plans=(name,))


def test_it_needs_a_race_of_the_same_limit_and_one_model(race):
    wish = Wish(
        models=("resnet50",), limit=Limit(percentile=99.0, seconds=0.1), minutes=15, payloads="", given={},
        timings="", run_dir=race.folder,
    )  # fmt: skip
    with pytest.raises(LoadTestError, match=r"GRID needs a latest race with the limit .*100.*: got .*200"):
        run_grid(wish, None, results=race.folder.parent, resume="")
    two = dataclasses.replace(wish, models=("bert", "resnet50"))
    with pytest.raises(LoadTestError, match="GRID is of one model: got 2"):
        run_grid(two, None, results=race.folder.parent, resume="")
