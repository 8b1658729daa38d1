"""`make tune` of one model as an experiment: what is measured next follows from what is kept.

`start` measures the default plan, and its batch in each other layout: what such a server takes beyond the
model's own times. With that all plans are simulated, and the best take part in the rounds of the race; then
the winner meets the default in the finals; the better one is loaded without end (`saturated`), and as far as
the budget goes meets itself with other libraries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from loadtest.errors import LoadTestError
from loadtest.experiments.ladder.blocks import OWN_SHARE, SERVER_MIB
from loadtest.experiments.tune.candidate import DEFAULT, Candidate, list_layouts
from loadtest.experiments.tune.evidence import (
    SATURATED,
    START,
    find_spent,
    list_done,
    list_out,
    list_points,
    list_seen,
)
from loadtest.experiments.tune.outcome import find_outcome
from loadtest.experiments.tune.race import (
    FINAL_RATES,
    FINAL_REPEATS,
    FINALS,
    FIRST_RATES,
    GRID,
    LIBRARIES,
    RACE,
    Race,
    Stage,
    guess_peak,
    scale_rates,
)
from loadtest.experiments.tune.raced import FINAL
from loadtest.experiments.tune.space import Points, Space, predict, predict_best
from loadtest.experiments.tune.windows import REQUESTS_TIMES, Windows
from loadtest.results.kept import Kept
from loadtest.scenarios.scenario import AUTO
from loadtest.systems.fleet import Member
from loadtest.trials.block import Block, Experiment, Turn

KIND = "tune"
START_SHARE = 0.5
"""Of the simulated peak: there requests hardly wait, and what the server adds to each shows."""
FIRST_WARM_UP_S = 20.0
"""Java compiles what it runs, on the cores that serve: 3 to 4 ms of CPU a request behind the first 600, 1.7
behind 1,400, 1.1 behind 2,000. These are 1,500 requests of ResNet50 on two slow cores (seen)."""
START_S, VERIFY_S = 30.0, 5.0
"""Of a server with its plan, and of each behind each block: seen on two cores."""
UP_S = START_S + FIRST_WARM_UP_S
"""Before the first window of a server."""
MOST_ENTRANTS, FEWEST_ENTRANTS = 5, 2
"""Beside the default: what is simulated below these is no better live by more than can be told."""
LIBRARY_REPEATS = 6
ALTERNATIVES = ("tcmalloc", "gnu")
"""One at a time, at the best plan: the ladder saw 0-8 % in them, and glibc's malloc behind both others."""
SEEDS = {START: 100, RACE: 200, FINAL: 300, LIBRARIES: 400, GRID: 500}
"""The same arrivals for all plans of a block, others in each block."""


@dataclass(frozen=True, kw_only=True)
class Course:
    """What is measured of one model; what is kept says how far it is."""

    windows: Windows
    space: Space
    budget_s: float
    memory_mib: float
    """For servers that are up at once."""
    make_member: Callable[[str, Candidate], Member]
    """By name and numbers; the default's own rules give it its numbers."""
    libraries: tuple[str, str]
    """The default's allocator and OpenMP library."""

    def next_block(self, kept: Kept) -> Block | None:
        if kept.find(START) is None:
            return self.make_start()
        stage = self._next_stage(kept)
        if stage is not None:
            return self.make_block(stage)
        best = find_outcome(kept).best
        if best.peak is None:
            return None
        return self._next_saturated(kept, best.name) or self._next_libraries(kept, best.name)

    def make_race(self, kept: Kept) -> Race:
        """With the plans that began it, or those that shall."""
        return Race(
            predicted=self.predict(list_points(self.space, kept), self._count_entrants(kept)),
            limit=self.space.limit,
            done=list_done(kept),
            out=frozenset(list_out(kept)),
            most_up=self._count_up(kept),
        )

    def predict(self, points: Points, most: int) -> Mapping[str, float]:
        """Plan → simulated peak with what `start` told of this server; the default, which may keep the limit
        at no rate, and so many others. LoadTestError where no plan keeps it."""
        predicted = predict_best(self.space, points, most)
        if not any(predicted.values()):
            what = "with what the server was seen to take" if points else "by the model's own times"
            others = len(list_layouts(self.space.default, free=True)) > len(self.space.times)
            hint = "fewer workers of more cores are tried with one of MODELS and without WORKERS"
            do = f"ask for a higher one; {hint}" if others else "ask for a higher one"
            raise LoadTestError(
                f"SLO_P99_MS must be a limit that some plan can keep: got {self.space.limit}, and {what} "
                f"every plan is later even where requests come alone; {do}"
            )
        return predicted

    @property
    def least_s(self) -> float:
        """With the fewest plans, all at once, and the finals; LoadTestError for a limit that is none."""
        predicted = self.predict((), FEWEST_ENTRANTS)
        start = self.cost_start(guess_peak(predicted, DEFAULT))
        return start + self._cost_race(FEWEST_ENTRANTS, FEWEST_ENTRANTS + 1, predicted)

    def cost_start(self, peak: float) -> float:
        """Seconds of `start`, in each layout; `peak` is the default's simulated one."""
        return len(self.space.times) * (UP_S + 2 * self.windows.cost_s(START_SHARE * peak))

    def estimate(self, kept: Kept) -> float:
        """What is left of the budget, which bounds the rounds that no one can foresee; or what is never saved
        and still to come."""
        return max(self._find_left(kept), self._find_needed(kept))

    def _find_needed(self, kept: Kept) -> float:
        if kept.find(START) is None:
            return self.least_s
        if kept.find(f"{FINAL}-1"):
            stage = self._next_stage(kept)
            return self._cost(stage) if stage else 0.0
        return find_final_cost(self.predict(list_points(self.space, kept), 1), self.windows)

    def _find_left(self, kept: Kept) -> float:
        """Of the budget."""
        return max(0.0, self.budget_s - find_spent(kept))

    def _next_stage(self, kept: Kept) -> Stage | None:
        race, left = self.make_race(kept), self._find_left(kept)

        def can_afford(stage: Stage, keep_finals: bool) -> bool:
            return self._cost(stage) + (self._cost_finals(race.predicted) if keep_finals else 0.0) <= left

        return race.next_stage(list_seen(kept), can_afford)

    def _count_entrants(self, kept: Kept) -> int:
        """Beside the default: as many as the budget allows for a round, the finals kept back."""
        start = kept.find(START)
        assert start is not None  # measured first
        predicted = self.predict(list_points(self.space, kept), 1)
        left, most_up = self.budget_s - start.seconds, self._count_up(kept)
        counts = range(MOST_ENTRANTS, FEWEST_ENTRANTS, -1)
        fitting = (n for n in counts if self._cost_race(n, most_up, predicted) <= left)
        return next(fitting, FEWEST_ENTRANTS)

    def _count_up(self, kept: Kept) -> int:
        """Servers that the memory holds, by what the default's took under its load."""
        start = kept.find(START)
        assert start is not None  # measured first
        workers = max(sum(trial.memory_mib.values()) for trial in start.trials)
        each = OWN_SHARE * workers + SERVER_MIB * max(1, self.space.instances)
        if 2 * each > self.memory_mib:
            raise LoadTestError(
                f"two servers of {each:.0f} MiB must be up together: got {self.memory_mib:.0f} MiB for them; "
                "end other programs"
            )
        return int(self.memory_mib / each)

    def _cost_race(self, entrants: int, most_up: int, predicted: Mapping[str, float]) -> float:
        """Seconds of starts, a round in as many parts as the memory asks for, and the finals."""
        heats = math.ceil(entrants / (most_up - 1))
        rates = scale_rates(max(predicted.values()), FIRST_RATES)
        one = self._cost(Stage(name=RACE, rates={DEFAULT: rates}))
        return entrants * UP_S + (entrants + heats) * one + self._cost_finals(predicted)

    def _cost(self, stage: Stage) -> float:
        return find_cost(stage, self.windows)

    def _cost_finals(self, predicted: Mapping[str, float]) -> float:
        """And of the closed loop behind them."""
        return FINALS * find_final_cost(predicted, self.windows) + START_S

    def make_start(self) -> Block:
        """Of the default, and in each other layout that can keep the limit, one closed and one open loop."""
        peaks = {name: predict(self.space, (), name) for name in self.space.list_first()}
        peaks[DEFAULT] = guess_peak(self.predict((), FEWEST_ENTRANTS), DEFAULT)
        turns = [turn for name, peak in peaks.items() if peak for turn in self._load_first(name, peak)]
        return Block(name=START, turns=tuple(turns), warm_up_s=FIRST_WARM_UP_S)

    def _load_first(self, name: str, peak: float) -> tuple[Turn, Turn]:
        member, rate = self._find_member(name), round(START_SHARE * peak, 2)
        closed, opened = self.windows.make_closed(), self.windows.make_open(rate, seed=SEEDS[START])
        return (
            Turn(member=member, scenario=closed, level=AUTO),
            Turn(member=member, scenario=opened, level=rate),
        )

    def make_block(self, stage: Stage) -> Block:
        """Each plan at each of its rates."""
        return make_turns(stage, self.windows, self._find_member)

    def _find_member(self, name: str) -> Member:
        return self.make_member(name, self.space.find_candidate(name))

    def _next_saturated(self, kept: Kept, best: str) -> Block | None:
        """The default's closed loop is in `start`."""
        if best == DEFAULT or kept.find(SATURATED):
            return None
        turn = Turn(member=self._find_member(best), scenario=self.windows.make_closed(), level=AUTO)
        return Block(name=SATURATED, turns=(turn,), warm_up_s=FIRST_WARM_UP_S)

    def _next_libraries(self, kept: Kept, best: str) -> Block | None:
        """The best plan with another library against itself about its peak, where the budget allows it."""
        rates = scale_rates(self.make_race(kept).find_centre(best, list_seen(kept)), FINAL_RATES)
        for number, value in enumerate(ALTERNATIVES):
            other = Candidate.parse(f"{self.space.find_candidate(best).name}-{value}").name
            stage = Stage(
                name=f"{LIBRARIES}-{number}", rates={best: rates, other: rates}, repeats=LIBRARY_REPEATS
            )
            wanted = value not in self.libraries and kept.find(stage.name) is None
            if wanted and START_S + self._cost(stage) <= self._find_left(kept):
                return self.make_block(stage)
        return None


def make_turns(stage: Stage, windows: Windows, find_member: Callable[[str], Member]) -> Block:
    """Each plan at each of its rates, rate by rate: who is compared takes turns seconds apart, and a machine
    drifts within minutes."""
    kind, _, number = stage.name.partition("-")
    seed = SEEDS[kind] + int(number)
    pairs = [pair for step in zip_longest(*_pair(stage.rates)) for pair in step if pair]
    turns = tuple(
        Turn(
            member=find_member(name),
            scenario=windows.make_open(rate, seed=seed, repeats=stage.repeats),
            level=rate,
        )
        for name, rate in pairs
    )
    return Block(name=stage.name, turns=turns, repeats=stage.repeats, warm_up_s=FIRST_WARM_UP_S)


def find_cost(stage: Stage, windows: Windows) -> float:
    """Seconds of a stage whose servers are up."""
    each = [windows.cost_s(rate) for rates in stage.rates.values() for rate in rates]
    return stage.repeats * sum(each) + VERIFY_S * len(stage.rates)


def find_final_cost(predicted: Mapping[str, float], windows: Windows) -> float:
    """Of one final: the default, whose windows may be longer, and the best."""
    pair = {DEFAULT: guess_peak(predicted, DEFAULT), RACE: max(predicted.values())}
    rates = {name: scale_rates(rate, FINAL_RATES) for name, rate in pair.items()}
    return find_cost(Stage(name=FINAL, rates=rates, repeats=FINAL_REPEATS), windows)


def fit_windows(course: Course) -> Course:
    """With the longest windows that leave the budget room for the fewest plans and the finals."""
    each = (replace(course, windows=replace(course.windows, times=times)) for times in REQUESTS_TIMES)
    fitted = list(each)
    return next((one for one in fitted if one.least_s <= course.budget_s), fitted[-1])


def _pair(rates: Mapping[str, tuple[float, ...]]) -> list[list[tuple[str, float]]]:
    """Each plan with each of its rates."""
    return [[(name, rate) for rate in each] for name, each in rates.items()]


def make_experiment(course: Course, asked: Mapping[str, Any]) -> Experiment:
    """Of one model; `asked` holds all that decides what is measured, as plain values."""
    return Experiment(
        kind=KIND,
        name=f"{KIND}-{course.windows.model}",
        asked=asked,
        next_block=course.next_block,
        estimate=course.estimate,
        paced=False,
    )
