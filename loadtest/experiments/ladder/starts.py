"""RUNGS=starts: each engine in each precision is started anew several times, alone on the machine: how long
until it is ready, and are its first answers as quick as later ones?

What is compiled or packed only when it is first met makes the first answers slow, in every start. p99.9 of
some hundred requests is one of them, which any hiccup of the host may be, in one start; so the median of the
starts is judged. Java compiles what it runs, too: eager, which compiles nothing, tells how much that is.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from config.plan import Layout
from loadtest.errors import LoadTestError
from loadtest.experiments.ladder.asked import list_asked_rungs
from loadtest.experiments.ladder.load import make_scenario
from loadtest.experiments.ladder.members import make_member
from loadtest.experiments.ladder.rungs import Rung
from loadtest.results.figures import find_spikes
from loadtest.results.kept import Kept
from loadtest.results.ratios import LEAST_REPEATS
from loadtest.results.stats import Interval
from loadtest.results.trial import Series
from loadtest.scenarios.scenario import Arrival
from loadtest.systems.kit import SATURATING
from loadtest.trials.block import Block, Timing, Turn, Verdict
from loadtest.trials.validity import OF_THE_MACHINE, Finding, find_doubts, is_disturbed

TIMING = Timing(seconds=20.0, repeats=4)
"""A quarter of a start is 5 s, longer than any shape takes that is compiled late."""
MOST_USERS = 24
"""Two workers then meet batches of many sizes: one computes while the other's fills."""
START_S = 30.0
"""Of one server, with its plan, its verify before and after, and its end: seen on two cores."""
SPARE = 2
"""Starts more of an engine, where the machine disturbed some."""
LONGEST_START_S = 25.0
MOST_SPIKES = 1.1
"""Of the last quarter's p99.9."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """One that was measured."""

    series: Series
    doubts: Sequence[Finding]

    @property
    def faults(self) -> list[str]:
        """Its doubts that are no doing of the machine: no other start makes up for them."""
        return [str(one) for one in self.doubts if one.rule not in OF_THE_MACHINE]

    @property
    def seconds(self) -> float:
        """From the birth of the first worker's process to the last right answer."""
        assert self.series.facts.start is not None  # a server of its own
        return float(self.series.facts.start["worker_seconds"])

    @property
    def spikes(self) -> float:
        """Of its one trial; LoadTestError of too few requests."""
        (records,) = self.series.records
        return find_spikes(records.take(records.good).latency).value


@dataclass(frozen=True, kw_only=True)
class Starts:
    """Each engine once, then each once more: a slow minute of the machine hits all alike."""

    model: str
    timing: Timing
    rungs: Sequence[Rung]
    layout: Layout

    def next_block(self, kept: Kept) -> Block | None:
        return next(self.list_left(kept), None)

    def estimate(self, kept: Kept) -> float:
        """Seconds that are left."""
        return len(list(self.list_left(kept))) * (START_S + self.timing.seconds)

    def list_left(self, kept: Kept) -> Iterator[Block]:
        """What is not measured yet, and as many more of an engine as were disturbed."""
        wanted = {rung.name: self._count_wanted(kept, rung) for rung in self.rungs}
        for number in range(self.timing.repeats + SPARE):
            for rung in self.rungs:
                name = name_start(rung, number)
                if number < wanted[rung.name] and kept.find(name) is None:
                    yield self._make_block(rung, name)

    def _count_wanted(self, kept: Kept, rung: Rung) -> int:
        if rung.reason or find_refusal(kept, rung):
            return 0
        disturbed = sum(is_disturbed(one.series) for one in list_starts(kept, rung))
        return self.timing.repeats + min(SPARE, disturbed)

    def _make_block(self, rung: Rung, name: str) -> Block:
        """A name of its own, else the server of the start before would be taken; and one attempt, as only the
        first requests of a server are its first."""
        member = make_member(replace(rung, name=name), self.model, self.layout)
        users = self.count_users(rung)
        scenario = replace(
            make_scenario(rung, self.model, self.timing),
            arrival=Arrival(loop="closed"),
            steps=(users,),
            warm_up_s=0.0,
            repeats=1,
            leave_out_first_round=False,
            least_rounds=0,
        )
        return Block(name=name, turns=(Turn(member=member, scenario=scenario, level=users),), attempts=1)

    def count_users(self, rung: Rung) -> int:
        """No more than the workers' batches hold: of all that are sent at once to begin with, those that no
        batch takes wait for two, which later ones hardly do: eager's first answers seemed a tenth slower."""
        batch = SATURATING[self.model][rung.settings.precision]
        return min(MOST_USERS, self.layout.workers_per_model.value * batch)


def name_start(rung: Rung, number: int) -> str:
    """Of its server, and of its block."""
    return f"{rung.name}-{number + 1}"


def _list_names(kept: Kept, rung: Rung) -> list[str]:
    return [name_start(rung, number) for number in range(kept.asked["timing"]["repeats"] + SPARE)]


def find_refusal(kept: Kept, rung: Rung) -> str:
    """The kit's own reason; empty where it served each time that it was asked."""
    names = _list_names(kept, rung)
    return next((why for one in kept.blocks for name, why in one.refused.items() if name in names), "")


def list_starts(kept: Kept, rung: Rung) -> list[Start]:
    """In their order."""
    blocks = [block for name in _list_names(kept, rung) if (block := kept.find(name))]
    series = [one for block in blocks for one in kept.list_series(block)]
    return [Start(series=one, doubts=find_doubts(one)) for one in series]


def list_measured(kept: Kept) -> list[Rung]:
    """Those that are installed, and that the kit does not refuse."""
    rungs = [rung for rung in list_asked_rungs(kept) if not rung.reason]
    return [rung for rung in rungs if not find_refusal(kept, rung)]


def judge(kept: Kept) -> list[Verdict]:
    """Two figures of each engine, of the starts that the machine did not disturb."""
    return [verdict for rung in list_measured(kept) for verdict in _judge_rung(kept, rung)]


def _judge_rung(kept: Kept, rung: Rung) -> list[Verdict]:
    starts, label = list_starts(kept, rung), rung.label
    spikes = f"{label}: p99.9 of the first quarter since ready / of the last one"
    return [
        _judge_median(f"{label}: start to ready", " s", LONGEST_START_S, starts, lambda one: one.seconds),
        _judge_median(spikes, "×", MOST_SPIKES, starts, lambda one: one.spikes),
    ]


def _judge_median(
    what: str, unit: str, limit: float, starts: Sequence[Start], take: Callable[[Start], float]
) -> Verdict:
    if faults := [fault for one in starts for fault in one.faults]:
        return Verdict(what=what, why=faults[0])
    good = [one for one in starts if not one.doubts]
    if len(good) < LEAST_REPEATS:
        why = f"starts that the machine did not disturb: {len(good)}, at least {LEAST_REPEATS} are needed"
        return Verdict(what=what, why=why)
    try:
        values = [take(one) for one in good]
    except LoadTestError as problem:
        return Verdict(what=what, why=str(problem))
    return Verdict(
        what=what,
        figure=Interval(value=statistics.median(values), low=min(values), high=max(values)),
        unit=unit,
        limit=limit,
        at_least=False,
        why=f"the median of {len(values)} starts, from the least to the most",
    )
