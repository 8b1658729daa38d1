"""The race: rounds in which all are measured at the same rates, then the winner against the default.

The first round has three rates that the default's closed loop suggests, the next ones two about the best peak
that was seen, and every plan that is left at each of them with the same arrivals. Who is slower than the
leader in nearly all of these pairs (a one-sided signed-rank test) is dropped. The figures that are quoted of
the winner and of the default come from the finals alone, where each is measured about its own peak: the race
chose the winner, so its windows flatter it. Do no harm: only what beats the default beyond the interval of
the finals is chosen; else the default stays.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from scipy.stats import wilcoxon

from loadtest.experiments.tune.candidate import DEFAULT
from loadtest.experiments.tune.curve import (
    ALL_KEPT,
    NONE_KEPT,
    Seen,
    compare_peaks,
    find_level,
    fit_peak,
    list_groups,
)
from loadtest.experiments.tune.windows import Limit
from loadtest.results.stats import Interval

RACE, FINAL = "race", "final"
"""Kinds of blocks; the finals' windows are quoted."""
FIRST_RATES = (0.7, 1.0, 1.3)
"""Of the guess, which is no better than that."""
NEXT_RATES = (0.96, 1.04)
FINAL_RATES = (0.9, 1.0, 1.1)
"""Of each plan's own peak: as far as the machine's own ups and downs move it."""
MOST_ROUNDS = 2
"""After the first one, about the leader's peak."""
FINAL_REPEATS, FEWEST_REPEATS = 3, 2
"""The fewest where the budget has room for no more: with those of the first final there are five."""
FINALS = 2
MOST_FINALS = 3
"""One more where a peak was not between the rates, or windows of one may not be quoted."""
DROP_BELOW = 0.1
"""A plan as good as the leader is dropped so often; five pairs can tell it."""
LEAST_REPEATS = 5
"""Of finals, behind what is chosen: by three of them batch 2 was 1.21 (1.01-1.30) of batch 3, by three of
another race on the same host batch 3 was 1.18 (1.02-1.24) of batch 2 (BERT)."""
LEAST_GAIN = 1.01
"""What the lower end of a ratio must be above: of 120 simulated races of equal plans, on a machine whose
windows drift by 6 %, one was, and five were above 1."""
OUTWARD = 1.12
"""From the end of the rates that were tried, where the peak lies beyond: the finals' rates then begin below
it, and one bad window does not send all the next ones far from the peak."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What is measured next: which plans, each at which rates, how often."""

    name: str
    rates: Mapping[str, tuple[float, ...]]
    """By plan, in the order in which they take turns."""
    repeats: int = 1


@dataclass(frozen=True, kw_only=True)
class Race:
    """Everything that decides the next stage but what was seen."""

    plans: Sequence[str]
    """The default first."""
    guess: float
    """Of a peak, before any was seen."""
    limit: Limit
    done: Mapping[str, Sequence[str]]
    """Block → the plans that were measured in it, whether or not their windows are valid."""
    out: frozenset[str] = field(default_factory=frozenset)
    """Plans that cannot be measured here, or whose answers or settings are not right."""
    most_up: int = 99
    """Servers that the memory holds: who does not fit into the first round has another with the default."""

    def next_stage(self, seen: Sequence[Seen], can_afford: Callable[[Stage, bool], bool]) -> Stage | None:
        """None when all is told. `can_afford` a round with the finals kept back, or without."""
        if not count_blocks(self.done, FINAL):
            if heat := self._next_heat():
                return heat
            stage = self._next_round(seen)
            if stage and can_afford(stage, True):
                return stage
        return self._next_final(seen, can_afford)

    def _next_heat(self) -> Stage | None:
        """As many at once as the memory holds, the default always among them."""
        raced = {name for plans in self._list_rounds() for name in plans}
        waiting = [name for name in self.plans if name not in raced | self.out | {DEFAULT}]
        if raced and not waiting:
            return None
        entrants = [name for name in (DEFAULT, *waiting[: self.most_up - 1]) if name not in self.out]
        rates = scale_rates(self.guess, FIRST_RATES)
        return Stage(name=f"{RACE}-{count_blocks(self.done, RACE) + 1}", rates=dict.fromkeys(entrants, rates))

    def _list_rounds(self) -> list[Sequence[str]]:
        """The plans of each block of the race."""
        return [plans for name, plans in self.done.items() if name.startswith(RACE)]

    def _list_heats(self) -> list[Sequence[str]]:
        """Those of them that had a plan for the first time."""
        rounds = self._list_rounds()
        return [
            plans
            for number, plans in enumerate(rounds)
            if set(plans).difference(*rounds[:number]) or not number
        ]

    def _next_round(self, seen: Sequence[Seen]) -> Stage | None:
        left, rounds = self.list_left(seen), count_blocks(self.done, RACE) - len(self._list_heats())
        # One that is left alone goes on until its peak is between the rates.
        own = [one for one in seen if left and one.plan == left[0]]
        done = len(left) < 2 and (not own or fit_peak(own, self.limit).known)
        if done or rounds >= MOST_ROUNDS:
            return None
        rates = scale_rates(self.find_centre(left[0], seen), NEXT_RATES)
        return Stage(
            name=f"{RACE}-{count_blocks(self.done, RACE) + 1}",
            rates=dict.fromkeys(left[: self.most_up], rates),
        )

    def _next_final(self, seen: Sequence[Seen], can_afford: Callable[[Stage, bool], bool]) -> Stage | None:
        winner, finals = self.find_winner(seen), count_blocks(self.done, FINAL)
        if finals >= MOST_FINALS or not seen or DEFAULT in self.out:
            return None
        pair = (DEFAULT, winner) if winner else (DEFAULT,)
        unproven = not is_proven(seen, winner) and is_gain(compare_finals(seen, winner, self.limit))
        if finals >= FINALS and not unproven and all(is_bracketed(seen, name, self.limit) for name in pair):
            return None
        rates = {name: scale_rates(self.find_centre(name, seen), FINAL_RATES) for name in pair}
        stage = Stage(name=f"{FINAL}-{finals + 1}", rates=rates, repeats=FINAL_REPEATS)
        # The first one is never saved, nor a second one where it met no rate that the default keeps, or none
        # that it does not: without them a quarter of an hour has told nothing. Nor what a winner must have.
        needed = not finals or unproven or (finals == 1 and not is_bracketed(seen, DEFAULT, self.limit))
        if needed:
            return stage
        fewer = (replace(stage, repeats=repeats) for repeats in range(FINAL_REPEATS, FEWEST_REPEATS - 1, -1))
        return next((one for one in fewer if can_afford(one, False)), None)

    def list_left(self, seen: Sequence[Seen]) -> list[str]:
        """Who is still in the race, the leader first."""
        raced = [one for one in seen if one.block.startswith(RACE)]
        rounds, heats = self._list_rounds(), self._list_heats()
        last = {name for plans in (rounds[-1:] if len(rounds) > len(heats) else heats) for name in plans}
        valid = {one.plan for one in raced} - self.out
        names = sorted(valid & last, key=lambda name: _mean_level(raced, name, self.limit))
        slower = [name for name in names[1:] if is_slower(raced, name, names[0], self.limit)]
        return [name for name in names if name not in slower]

    def find_winner(self, seen: Sequence[Seen]) -> str | None:
        """The best of the race beside the default, who meets it in the finals even where it leads: a few
        windows do not tell. None where all others were dropped, or could not be measured."""
        if DEFAULT in self.out:
            return None
        return next((name for name in self.list_left(seen) if name != DEFAULT), None)

    def find_centre(self, name: str, seen: Sequence[Seen]) -> float:
        """The best guess of a plan's peak, to measure about it."""
        own = [one for one in seen if one.plan == name]
        if not own:
            return self.guess
        peak = fit_peak(own, self.limit)
        if peak.boundary == ALL_KEPT:
            return peak.value * OUTWARD
        if peak.boundary == NONE_KEPT:
            return peak.value / OUTWARD
        return peak.value


def count_blocks(done: Mapping[str, Sequence[str]], kind: str) -> int:
    """How many were measured."""
    return sum(name.startswith(kind) for name in done)


def is_gain(ratio: Interval | None) -> bool:
    """Whether it is better beyond the interval."""
    return ratio is not None and ratio.low > LEAST_GAIN


def list_finals(seen: Sequence[Seen], name: str | None) -> list[Seen]:
    """A plan's windows in the finals."""
    return [one for one in seen if one.plan == name and one.block.startswith(FINAL)]


def compare_finals(seen: Sequence[Seen], name: str | None, limit: Limit) -> Interval | None:
    """A plan's peak to the default's, by the finals alone; None where they met in too few repeats."""
    return compare_peaks(list_finals(seen, DEFAULT), list_finals(seen, name), limit)


def is_bracketed(seen: Sequence[Seen], name: str, limit: Limit) -> bool:
    """Whether a plan's peak lies between the rates of the finals."""
    own = list_finals(seen, name)
    return bool(own) and fit_peak(own, limit).known


def is_proven(seen: Sequence[Seen], name: str | None) -> bool:
    """Whether it met the default in enough repeats of the finals to be chosen."""
    mine, base = ({*list_groups(list_finals(seen, plan))} for plan in (name, DEFAULT))
    return len(mine & base) >= LEAST_REPEATS


def is_slower(seen: Sequence[Seen], name: str, leader: str, limit: Limit) -> bool:
    """Whether a plan's latencies are above the leader's at the same rates with the same arrivals."""
    levels = {
        plan: {(one.group, one.rate): find_level(one, limit) for one in seen if one.plan == plan}
        for plan in (name, leader)
    }
    pairs = [levels[name][place] - levels[leader][place] for place in levels[name] if place in levels[leader]]
    apart = [pair for pair in pairs if pair]
    if not apart:
        return False
    with warnings.catch_warnings():  # of so few pairs, and that they are tied
        warnings.simplefilter("ignore")
        return bool(wilcoxon(apart, alternative="greater").pvalue < DROP_BELOW)


def _mean_level(seen: Sequence[Seen], name: str, limit: Limit) -> float:
    levels = [find_level(one, limit) for one in seen if one.plan == name]
    return sum(levels) / len(levels)


def scale_rates(rate: float, shares: Sequence[float]) -> tuple[float, ...]:
    return tuple(round(rate * share, 2) for share in shares)
