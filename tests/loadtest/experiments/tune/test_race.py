"""The best plan or a tie 19 times of 20 under drift; of equal plans the default 19 times of 20."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from loadtest.experiments.tune.candidate import DEFAULT, Candidate
from loadtest.experiments.tune.curve import Seen, compare_peaks, fit_peak
from loadtest.experiments.tune.race import MOST_ROUNDS, OUTWARD, Race, Stage, is_slower
from loadtest.experiments.tune.raced import LEAST_GAIN, Raced, RacedPlan, compare_finals, list_finals
from loadtest.simulation.search import LONG, Limit, find_peak
from tests.loadtest.experiments.tune.live import Machine, make_times, plan

LIMIT = Limit(percentile=99.0, seconds=0.2)
TRIES = 20
TIE = 0.97
"""Of the best true peak: what repeats of this length can tell apart."""


def run_race(machine: Machine, predicted: Mapping[str, float], *, affords: int = 9, most_up: int = 99):
    """Winner, its ratio to the default, and all windows; `affords` so many stages more."""
    seen: list[Seen] = []
    done: dict[str, Sequence[str]] = {}

    def make_race() -> Race:
        return Race(predicted=predicted, limit=LIMIT, done=done, most_up=most_up)

    while stage := make_race().next_stage(seen, lambda *_: len(done) <= affords):
        seen += measure_stage(machine, stage)
        done[stage.name] = tuple(stage.rates)
    winner = make_race().find_winner(seen)
    sides = [list_finals(seen, name) for name in (DEFAULT, winner)]
    return winner, compare_peaks(sides[0], sides[1], LIMIT) if winner else None, seen


def measure_stage(machine: Machine, stage: Stage) -> list[Seen]:
    return [
        measure_window(machine, stage, name, rate, repeat)
        for repeat in range(stage.repeats)
        for name, rates in stage.rates.items()
        for rate in rates
    ]


def measure_window(machine: Machine, stage: Stage, name: str, rate: float, repeat: int) -> Seen:
    quoted, late = machine.measure(name, rate, arrivals=f"{stage.name} {repeat}", limit=LIMIT)
    return Seen(
        plan=name, block=stage.name, repeat=repeat, rate=rate, arrived=rate, quoted_ms=quoted, late=late
    )


def test_who_does_not_fit_into_memory_has_a_round_of_its_own_with_the_default():
    """The third is the best, and would never have been raced."""
    others = {plan(2).name: 1.1, plan(8).name: 1.1, plan(4).name: 1.0}
    servers = {
        DEFAULT: (plan(16, 20), make_times()),
        **{name: (Candidate.parse(name), make_times(slower)) for name, slower in others.items()},
    }
    predicted = {plan(2).name: 166.0, plan(8).name: 165.5, plan(4).name: 165.0, DEFAULT: 110.0}
    winner, ratio, seen = run_race(Machine(servers=servers, drift=0.0), predicted, most_up=2)
    blocks = {}
    for one in seen:
        blocks.setdefault(one.block, set()).add(one.plan)
    assert [blocks[f"race-{n}"] for n in (1, 2, 3)] == [{DEFAULT, name} for name in others]
    assert max(map(len, blocks.values())) == 2
    assert winner == plan(4).name
    assert ratio.low > LEAST_GAIN


def find_true_peak(server) -> float:
    one, times = server
    return find_peak(one.simulate_as(100), times, LIMIT, requests=LONG)


def test_the_best_plan_or_a_tie_is_found_where_the_prediction_is_wrong_and_the_machine_drifts():
    """What is predicted best is slower live than it was alone; the default batches too much."""
    usual = make_times()
    servers = {
        DEFAULT: (plan(16, 20), usual),
        **{one.name: (one, usual) for one in (plan(4), plan(2), plan(1))},
        plan(8).name: (plan(8), make_times(1.15)),
    }
    peaks = {name: find_true_peak(server) for name, server in servers.items()}
    predicted = {name: 110.0 if name == DEFAULT else 168.0 for name in servers} | {plan(8).name: 172.0}
    good, gains = 0, []
    for seed in range(TRIES):
        winner, ratio, _ = run_race(Machine(servers=servers, seed=seed), predicted)
        good += winner is not None and ratio.low > LEAST_GAIN and peaks[winner] >= TIE * max(peaks.values())
        gains.append(ratio.low <= peaks[winner] / peaks[DEFAULT] <= ratio.high)
    assert good >= 19
    assert sum(gains) >= 18


def test_of_equal_plans_the_default_is_right():
    one, times = plan(4), make_times()
    servers = dict.fromkeys((DEFAULT, *(plan(4, delay).name for delay in (2, 3, 5, 6))), (one, times))
    predicted = dict.fromkeys(servers, 165.0)
    gains = [run_race(Machine(servers=servers, seed=seed), predicted)[1] for seed in range(TRIES)]
    assert sum(gain is None or gain.low <= LEAST_GAIN for gain in gains) >= 19


SERVERS = {DEFAULT: (plan(16, 20), make_times()), plan(4).name: (plan(4), make_times())}
PREDICTED = {plan(4).name: 165.0, DEFAULT: 110.0}


def test_the_finals_are_about_each_plans_own_peak_with_the_same_arrivals():
    winner, ratio, seen = run_race(Machine(servers=SERVERS, drift=0.0), PREDICTED)
    assert winner == plan(4).name
    finals = {name: [one.rate for one in list_finals(seen, name)] for name in SERVERS}
    assert max(finals[DEFAULT]) < min(finals[winner])
    assert ratio.value == pytest.approx(165 / 113, rel=0.08)


def see_final(name: str, peak: float, finals: tuple[str, ...] = ("final-1",)) -> list[Seen]:
    """Three repeats about a peak, in a round before as well."""
    return [
        Seen(plan=name, block=block, repeat=repeat, rate=share * peak, arrived=share * peak,
             quoted_ms=20_000 * late, late=late)
        for block in ("race-1", *finals)
        for repeat in range(3)
        for share, late in ((0.9, 0.001), (1.0, 0.01), (1.1, 0.05))
    ]  # fmt: skip


@pytest.mark.parametrize(("other", "again"), [(90.0, False), (100.0, False), (100.5, False), (120.0, True)])
def test_without_budget_the_finals_are_held_again_only_where_the_winner_seems_better(other, again):
    """Seen: of two plans that hardly differ, whichever was not the default was chosen by three repeats."""
    name = plan(4).name
    pair = (DEFAULT, name)
    race = Race(predicted=dict.fromkeys(pair, 100.0), limit=LIMIT, done={"race-1": pair, "final-1": pair})
    stage = race.next_stage([*see_final(DEFAULT, 100.0), *see_final(name, other)], lambda *_: False)
    assert (stage.name if stage else None) == ("final-2" if again else None)


def test_where_the_budget_is_short_a_second_final_has_fewer_repeats():
    pair = (DEFAULT, plan(4).name)
    race = Race(predicted=dict.fromkeys(pair, 100.0), limit=LIMIT, done={"race-1": pair, "final-1": pair})
    seen = [one for name in pair for one in see_final(name, 100.0)]
    stages = [race.next_stage(seen, lambda one, _, most=most: one.repeats <= most) for most in (3, 2, 1)]
    assert [stage.repeats if stage else 0 for stage in stages] == [3, 2, 0]


def test_a_final_none_of_whose_windows_may_be_quoted_is_held_again_for_a_winner():
    name = plan(4).name
    pair = (DEFAULT, name)
    done = dict.fromkeys(("race-1", "final-1", "final-2"), pair)
    race = Race(predicted=dict.fromkeys(pair, 100.0), limit=LIMIT, done=done)
    stage = race.next_stage([*see_final(DEFAULT, 100.0), *see_final(name, 120.0)], lambda *_: False)
    assert stage.name == "final-3"


@pytest.mark.parametrize(
    ("other", "finals", "why_not"),
    [
        (120.0, ("final-1", "final-2"), ""),
        (120.0, ("final-1",), "by fewer than 5 repeats"),
        (100.0, ("final-1", "final-2"), "nothing that was raced is better"),
    ],
)
def test_who_is_chosen_is_better_in_more_repeats_than_one_final_has(other, finals, why_not):
    peaks = {DEFAULT: 100.0, plan(4).name: other}
    # The default was measured in both; the other's windows of one may be in doubt.
    held = {DEFAULT: ("final-1", "final-2"), plan(4).name: finals}
    seen = [one for name, peak in peaks.items() for one in see_final(name, peak, held[name])]
    found = Raced(
        limit=LIMIT,
        rows=tuple(
            RacedPlan(name=name, predicted=100.0, peak=fit_peak(list_finals(seen, name), LIMIT), windows=9)
            for name in peaks
        ),
        winner=plan(4).name,
        ratio=compare_finals(seen, plan(4).name, LIMIT),
        seen=tuple(seen),
    )
    assert found.adopted == (not why_not)
    assert why_not in found.why_not
    assert found.best.name == (plan(4).name if found.adopted else DEFAULT)


def test_without_budget_a_clear_winner_is_told_all_the_same():
    _, ratio, seen = run_race(Machine(servers=SERVERS), PREDICTED, affords=0)
    assert list(dict.fromkeys(one.block for one in seen)) == ["race-1", "final-1", "final-2"]
    assert ratio is not None


def test_without_budget_the_finals_are_held_again_where_they_did_not_meet_the_defaults_peak():
    """Seen: a host that stood still in the one round of the race sent the finals too high, and all their
    windows broke the limit."""
    slow = {name: (one, make_times(1.2)) for name, (one, _) in SERVERS.items()}
    _, _, seen = run_race(Machine(servers=slow, drift=0.0), PREDICTED, affords=0)
    assert list(dict.fromkeys(one.block for one in seen)) == ["race-1", "final-1", "final-2"]
    assert fit_peak(list_finals(seen, DEFAULT), LIMIT).known


def test_where_the_default_leads_the_best_of_the_others_meets_it_in_the_finals():
    """A few windows of a round do not tell that it is right."""
    servers = {DEFAULT: SERVERS[plan(4).name], plan(3, 10).name: (plan(3, 10), make_times(1.05))}
    predicted = {plan(3, 10).name: 170.0, DEFAULT: 165.0}
    winner, ratio, seen = run_race(Machine(servers=servers, drift=0.0), predicted, affords=0)
    assert winner == plan(3, 10).name
    assert ratio.value < 1
    assert {one.plan for one in seen if one.block.startswith("final")} == set(servers)


def test_where_all_others_are_dropped_the_defaults_peak_is_still_measured_in_the_finals():
    servers = {DEFAULT: SERVERS[plan(4).name], plan(16, 20).name: (plan(16, 20), make_times())}
    predicted = {plan(16, 20).name: 170.0, DEFAULT: 165.0}
    winner, ratio, seen = run_race(Machine(servers=servers, drift=0.0), predicted)
    assert (winner, ratio) == (None, None)
    assert {one.plan for one in seen if one.block.startswith("final")} == {DEFAULT}


def test_a_default_that_leads_is_measured_until_its_peak_is_between_the_rates():
    """Live it is half as fast as predicted."""
    servers = {name: (one, make_times(2.0)) for name, (one, _) in SERVERS.items()}
    servers[plan(4).name] = (plan(4), make_times(4.0))
    servers[DEFAULT] = (plan(4), make_times(2.0))
    predicted = {plan(4).name: 120.0, DEFAULT: 110.0}
    _, _, seen = run_race(Machine(servers=servers, drift=0.0), predicted)
    own = [one for one in seen if one.plan == DEFAULT]
    assert len({one.block for one in own if one.block.startswith("race")}) == 1 + MOST_ROUNDS
    assert min(one.rate for one in own) < 110 * 0.88 / OUTWARD


def test_who_is_out_takes_no_part_and_cannot_win():
    race = Race(predicted=PREDICTED, limit=LIMIT, done={}, out=frozenset({plan(4).name}))
    stage = race.next_stage([], lambda *_: True)
    assert list(stage.rates) == [DEFAULT]
    assert race.find_winner(measure_stage(Machine(servers=SERVERS), stage)) is None


def test_a_stage_whose_windows_were_all_disturbed_is_not_measured_for_ever():
    race = Race(predicted=PREDICTED, limit=LIMIT, done={"race-1": tuple(SERVERS)})
    assert race.next_stage([], lambda *_: True) is None


def see(name: str, rate: float, ms: float) -> Seen:
    return Seen(plan=name, block="race-1", repeat=0, rate=rate, arrived=rate, quoted_ms=ms, late=0.0)


@pytest.mark.parametrize(
    ("other", "slower"),
    [
        ((110, 120, 130, 140, 150), True),  # always slower: five pairs tell it
        ((110, 120, 130, 140), True),
        ((110, 120, 130), False),  # three cannot
        ((110, 90, 130, 80, 150), False),
        ((100, 100, 100, 100, 100), False),  # no pair tells them apart
    ],
)
def test_a_loser_is_dropped_by_its_pairs(other, slower):
    seen = [see("leader", rate, 100) for rate in range(len(other))]
    seen += [see("other", rate, ms) for rate, ms in enumerate(other)]
    assert is_slower(seen, "other", "leader", LIMIT) is slower
