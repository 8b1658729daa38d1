"""The best plan or a tie 19 times of 20 under drift; of equal plans the default 19 times of 20."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from loadtest.experiments.tune.candidate import DEFAULT
from loadtest.experiments.tune.curve import Seen, compare_peaks, fit_peak
from loadtest.experiments.tune.outcome import Outcome, Row
from loadtest.experiments.tune.race import (
    LEAST_GAIN,
    MOST_ROUNDS,
    Race,
    Stage,
    compare_finals,
    is_slower,
    list_finals,
)
from tests.loadtest.experiments.tune.results import BEST, LIMIT, draw_latency, make_default

TRIES = 20
TIE = 0.95
"""Of the best true peak: what repeats of this length can tell apart."""
WINDOW = 740
PAIR = (DEFAULT, BEST)


def run_race(
    peaks: Mapping[str, float], *, guess: float = 100.0, affords: int = 9, most_up: int = 99, seed: int = 0
):
    """Winner, its ratio to the default, and all windows; `affords` so many stages more."""
    seen: list[Seen] = []
    done: dict[str, Sequence[str]] = {}

    def make_race() -> Race:
        return Race(plans=tuple(peaks), guess=guess, limit=LIMIT, done=done, most_up=most_up)

    while stage := make_race().next_stage(seen, lambda *_: len(done) <= affords):
        seen += measure_stage(peaks, stage, seed)
        done[stage.name] = tuple(stage.rates)
    winner = make_race().find_winner(seen)
    sides = [list_finals(seen, name) for name in (DEFAULT, winner)]
    return winner, compare_peaks(sides[0], sides[1], LIMIT) if winner else None, seen


def measure_stage(peaks: Mapping[str, float], stage: Stage, seed: int = 0) -> list[Seen]:
    return [
        measure_window(peaks[name], stage, name, rate, repeat, seed)
        for repeat in range(stage.repeats)
        for name, rates in stage.rates.items()
        for rate in rates
    ]


def measure_window(peak: float, stage: Stage, name: str, rate: float, repeat: int, seed: int) -> Seen:
    latency = draw_latency(
        rate, peak, WINDOW, zlib.crc32(f"{seed} {stage.name} {repeat} {name} {rate}".encode())
    )
    return Seen(
        plan=name, block=stage.name, repeat=repeat, rate=rate, arrived=rate,
        quoted_ms=1000 * float(np.quantile(latency, 0.99)), late=float((latency > LIMIT.seconds).mean()),
    )  # fmt: skip


def test_who_does_not_fit_into_memory_has_a_round_of_its_own_with_the_default():
    """The third is the best, and would never have been raced."""
    peaks = {DEFAULT: 100.0, "a": 80.0, "b": 85.0, "c": 150.0}
    winner, ratio, seen = run_race(peaks, most_up=2)
    blocks = {}
    for one in seen:
        blocks.setdefault(one.block, set()).add(one.plan)
    assert [blocks[f"race-{n}"] for n in (1, 2, 3)] == [{DEFAULT, name} for name in "abc"]
    assert max(map(len, blocks.values())) == 2
    assert winner == "c"
    assert ratio.low > LEAST_GAIN


@pytest.mark.parametrize("guess", [80.0, 130.0])
def test_the_best_plan_or_a_tie_is_found_wherever_the_race_begins_and_however_the_machine_drifts(guess):
    peaks = {DEFAULT: 100.0, "a": 148.0, "b": 150.0, "c": 145.0, "d": 120.0}
    good, gains = 0, []
    for seed in range(TRIES):
        winner, ratio, _ = run_race(peaks, guess=guess, seed=seed)
        good += winner is not None and ratio.low > LEAST_GAIN and peaks[winner] >= TIE * 150
        gains.append(ratio.low <= peaks[winner] / peaks[DEFAULT] <= ratio.high)
    assert good >= 19
    assert sum(gains) >= 16


def test_of_equal_plans_the_default_is_right():
    peaks = dict.fromkeys((DEFAULT, *"abcd"), 100.0)
    gains = [run_race(peaks, seed=seed)[1] for seed in range(TRIES)]
    assert sum(gain is None or gain.low <= LEAST_GAIN for gain in gains) >= 18


PEAKS = {DEFAULT: 100.0, BEST: 150.0}


def test_the_finals_are_about_each_plans_own_peak_with_the_same_arrivals():
    winner, ratio, seen = run_race(PEAKS)
    assert winner == BEST
    finals = {name: [one.rate for one in list_finals(seen, name)] for name in PEAKS}
    assert max(finals[DEFAULT]) < min(finals[winner])
    assert ratio.value == pytest.approx(1.5, rel=0.08)


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
    race = Race(plans=PAIR, guess=100.0, limit=LIMIT, done={"race-1": PAIR, "final-1": PAIR})
    stage = race.next_stage([*see_final(DEFAULT, 100.0), *see_final(BEST, other)], lambda *_: False)
    assert (stage.name if stage else None) == ("final-2" if again else None)


def test_where_the_budget_is_short_a_second_final_has_fewer_repeats():
    race = Race(plans=PAIR, guess=100.0, limit=LIMIT, done={"race-1": PAIR, "final-1": PAIR})
    seen = [one for name in PAIR for one in see_final(name, 100.0)]
    stages = [race.next_stage(seen, lambda one, _, most=most: one.repeats <= most) for most in (3, 2, 1)]
    assert [stage.repeats if stage else 0 for stage in stages] == [3, 2, 0]


def test_a_final_none_of_whose_windows_may_be_quoted_is_held_again_for_a_winner():
    done = dict.fromkeys(("race-1", "final-1", "final-2"), PAIR)
    race = Race(plans=PAIR, guess=100.0, limit=LIMIT, done=done)
    stage = race.next_stage([*see_final(DEFAULT, 100.0), *see_final(BEST, 120.0)], lambda *_: False)
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
    peaks = {DEFAULT: 100.0, BEST: other}
    # The default was measured in both; the other's windows of one may be in doubt.
    held = {DEFAULT: ("final-1", "final-2"), BEST: finals}
    seen = [one for name, peak in peaks.items() for one in see_final(name, peak, held[name])]
    found = Outcome(
        what="resnet50",
        limit=LIMIT,
        rows=tuple(
            Row(
                name=name,
                candidate=make_default(),
                peak=fit_peak(list_finals(seen, name), LIMIT),
                windows=9,
                dropped=False,
            )
            for name in peaks
        ),
        winner=BEST,
        ratio=compare_finals(seen, BEST, LIMIT),
        seen=tuple(seen),
    )
    assert found.adopted == (not why_not)
    assert why_not in found.why_not
    assert found.best.name == (BEST if found.adopted else DEFAULT)


def test_without_budget_a_clear_winner_is_told_all_the_same():
    _, ratio, seen = run_race(PEAKS, affords=0)
    assert list(dict.fromkeys(one.block for one in seen)) == ["race-1", "final-1", "final-2"]
    assert ratio is not None


def test_where_the_default_leads_the_best_of_the_others_meets_it_in_the_finals():
    """A few windows of a round do not tell that it is right."""
    winner, ratio, seen = run_race({DEFAULT: 100.0, BEST: 98.0}, affords=0)
    assert winner == BEST
    assert ratio.low < 1
    assert {one.plan for one in seen if one.block.startswith("final")} == set(PAIR)


def test_where_all_others_are_dropped_the_defaults_peak_is_still_measured_in_the_finals():
    winner, ratio, seen = run_race({DEFAULT: 150.0, BEST: 100.0})
    assert (winner, ratio) == (None, None)
    assert {one.plan for one in seen if one.block.startswith("final")} == {DEFAULT}


def test_a_default_that_leads_is_measured_until_its_peak_is_between_the_rates():
    _, _, seen = run_race({DEFAULT: 50.0, BEST: 30.0})
    own = [one for one in seen if one.plan == DEFAULT]
    assert len({one.block for one in own if one.block.startswith("race")}) == 1 + MOST_ROUNDS
    assert min(one.rate for one in own) < 60


def test_who_is_out_takes_no_part_and_cannot_win():
    race = Race(plans=PAIR, guess=100.0, limit=LIMIT, done={}, out=frozenset({BEST}))
    stage = race.next_stage([], lambda *_: True)
    assert list(stage.rates) == [DEFAULT]
    assert race.find_winner(measure_stage(PEAKS, stage)) is None


def test_a_stage_whose_windows_were_all_disturbed_is_not_measured_for_ever():
    race = Race(plans=PAIR, guess=100.0, limit=LIMIT, done={"race-1": PAIR})
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
