"""`make tune` of one model, or of a mix, as an experiment: what is measured next follows from what is kept.

`start` loads the default plan without end, which tells where its peak may lie. Its neighbours then race it,
and the winner meets it in the finals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from loadtest.errors import LoadTestError
from loadtest.experiments.ladder.experiment import OWN_SHARE, SERVER_MIB
from loadtest.experiments.tune.candidate import DEFAULT, Candidate, find_candidate
from loadtest.experiments.tune.evidence import START, find_spent, list_done, list_out, list_seen, read_start
from loadtest.experiments.tune.race import (
    FINAL,
    FINAL_RATES,
    FINAL_REPEATS,
    FINALS,
    FIRST_RATES,
    RACE,
    Race,
    Stage,
    scale_rates,
)
from loadtest.experiments.tune.windows import REQUESTS_TIMES, Windows
from loadtest.results.kept import Kept
from loadtest.systems.fleet import Member
from loadtest.trials.block import Block, Experiment, Turn

KIND = "tune"
PEAK_SHARE = 0.7
"""Of a closed loop's rate: where the race begins to look for the peak."""
FIRST_WARM_UP_S = 20.0
"""Java compiles what it runs, on the cores that serve: 3 to 4 ms of CPU a request behind the first 600, 1.7
behind 1,400, 1.1 behind 2,000. These are 1,500 requests of ResNet50 on two slow cores (seen)."""
START_S, VERIFY_S = 30.0, 5.0
"""Of a server with its plan, and of each behind each block: seen on two cores."""
UP_S = START_S + FIRST_WARM_UP_S
"""Before the first window of a server."""
FEWEST_ENTRANTS = 2
"""Beside the default."""
SEEDS = {RACE: 200, FINAL: 300}
"""The same arrivals for all plans of a block, others in each block."""


@dataclass(frozen=True, kw_only=True)
class Course:
    """What is measured; what is kept says how far it is."""

    windows: Windows
    default: Candidate
    candidates: Sequence[Candidate]
    instances: int
    budget_s: float
    memory_mib: float
    """For servers that are up at once."""
    make_member: Callable[[str, Candidate], Member]
    """By name and numbers; the default's own rules give it its numbers."""

    def next_block(self, kept: Kept) -> Block | None:
        if kept.find(START) is None:
            # Twice as many users as fill a batch in every worker: one is computed while the next one gathers.
            users = 2 * self.default.workers * sum(self.default.batch.values())
            closed = self.windows.make_closed()
            turn = Turn(member=self._find_member(DEFAULT), scenario=closed, level=users)
            return Block(name=START, turns=(turn,), warm_up_s=FIRST_WARM_UP_S)
        stage = self._next_stage(kept)
        return self._make_turns(stage, self._fit_windows(kept)) if stage else None

    def make_race(self, kept: Kept) -> Race:
        """With as many plans as the budget allows for a round, the finals kept back."""
        guess, most_up = _guess(kept), self._count_up(kept)
        left, windows = self._find_left_behind_start(kept), self._fit_windows(kept)
        counts = range(len(self.candidates), FEWEST_ENTRANTS, -1)
        fitting = (n for n in counts if _cost_race(n, most_up, guess, windows) <= left)
        entrants = self.candidates[: next(fitting, FEWEST_ENTRANTS)]
        return Race(
            plans=(DEFAULT, *(one.name for one in entrants)),
            guess=guess,
            limit=self.windows.limit,
            done=list_done(kept),
            out=frozenset(list_out(kept)),
            most_up=most_up,
        )

    def _next_stage(self, kept: Kept) -> Stage | None:
        race, windows = self.make_race(kept), self._fit_windows(kept)
        left = max(0.0, self.budget_s - find_spent(kept))

        def can_afford(stage: Stage, keep_finals: bool) -> bool:
            later = FINALS * _cost_final(race.guess, windows) if keep_finals else 0.0
            return find_cost(stage, windows) + later <= left

        return race.next_stage(list_seen(kept), can_afford)

    def _find_left_behind_start(self, kept: Kept) -> float:
        start = kept.find(START)
        assert start is not None  # measured first
        return self.budget_s - start.seconds

    def _fit_windows(self, kept: Kept) -> Windows:
        """The longest ones that leave the budget room for the fewest plans and the finals."""
        guess, left = _guess(kept), self._find_left_behind_start(kept)
        each = [replace(self.windows, times=times) for times in REQUESTS_TIMES if times <= self.windows.times]
        fitting = (
            one for one in each if _cost_race(FEWEST_ENTRANTS, FEWEST_ENTRANTS + 1, guess, one) <= left
        )
        return next(fitting, each[-1])

    def _count_up(self, kept: Kept) -> int:
        """Servers that the memory holds, by what the default's took under its load."""
        (trial,) = read_start(kept).trials
        each = OWN_SHARE * sum(trial.memory_mib.values()) + SERVER_MIB * max(1, self.instances)
        if 2 * each > self.memory_mib:
            raise LoadTestError(
                f"two servers of {each:.0f} MiB must be up together: got {self.memory_mib:.0f} MiB for them; "
                "end other programs"
            )
        return int(self.memory_mib / each)

    def _find_member(self, name: str) -> Member:
        return self.make_member(name, find_candidate(self.default, self.candidates, name))

    def _make_turns(self, stage: Stage, windows: Windows) -> Block:
        """Each plan at each of its rates, rate by rate: who is compared takes turns seconds apart, and a
        machine drifts within minutes."""
        kind, _, number = stage.name.partition("-")
        by_plan = [[(name, rate) for rate in rates] for name, rates in stage.rates.items()]
        turns = tuple(
            Turn(
                member=self._find_member(name),
                scenario=windows.make_open(rate, seed=SEEDS[kind] + int(number), repeats=stage.repeats),
                level=rate,
            )
            for step in zip_longest(*by_plan)
            for name, rate in filter(None, step)
        )
        return Block(name=stage.name, turns=turns, repeats=stage.repeats, warm_up_s=FIRST_WARM_UP_S)


def _guess(kept: Kept) -> float:
    return PEAK_SHARE * read_start(kept).trials[0].rate


def _cost_race(entrants: int, most_up: int, guess: float, windows: Windows) -> float:
    """Seconds of starts, a round in as many parts as the memory asks for, and the finals."""
    heats = math.ceil(entrants / (most_up - 1))
    one = find_cost(Stage(name=RACE, rates={DEFAULT: scale_rates(guess, FIRST_RATES)}), windows)
    return entrants * UP_S + (entrants + heats) * one + FINALS * _cost_final(guess, windows)


def _cost_final(guess: float, windows: Windows) -> float:
    """Of one final: the default and the best."""
    rates = dict.fromkeys((DEFAULT, RACE), scale_rates(guess, FINAL_RATES))
    return find_cost(Stage(name=FINAL, rates=rates, repeats=FINAL_REPEATS), windows)


def find_cost(stage: Stage, windows: Windows) -> float:
    """Seconds of a stage whose servers are up."""
    each = [windows.cost_s(rate) for rates in stage.rates.values() for rate in rates]
    return stage.repeats * sum(each) + VERIFY_S * len(stage.rates)


def make_experiment(course: Course, asked: Mapping[str, Any]) -> Experiment:
    """`asked` holds all that decides what is measured, as plain values."""
    return Experiment(
        kind=KIND,
        name="-".join((KIND, *course.default.batch)),
        asked=asked,
        next_block=course.next_block,
    )
