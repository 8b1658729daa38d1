"""RUNGS=starts: each engine in each precision is started anew several times, alone on the machine: how long
until it is ready, and are its first answers as quick as later ones?

What is compiled or packed only when it is first met would make the first ones slow. One start tells little of
that: p99.9 is one answer of a thousand, and any hiccup of the host is one. So the quarters of all starts are
taken together.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from config.plan import Layout
from loadtest.errors import LoadTestError
from loadtest.experiments.ladder.asked import list_asked_rungs
from loadtest.experiments.ladder.load import SINGLE_USERS, make_scenario
from loadtest.experiments.ladder.members import make_member
from loadtest.experiments.ladder.rungs import Rung
from loadtest.results.figures import find_spikes
from loadtest.results.kept import Kept
from loadtest.results.ratios import LEAST_REPEATS
from loadtest.results.stats import Interval
from loadtest.results.trial import KeptBlock, Series
from loadtest.scenarios.scenario import Arrival
from loadtest.trials.block import Block, Timing, Turn, Verdict
from loadtest.trials.validity import find_doubts

TIMING = Timing(seconds=20.0, repeats=4)
"""A quarter of a start is 5 s: more than any shape takes that is compiled late, and hundreds of answers."""
START_S = 30.0
"""Of one server, with its plan, its verify before and after, and its end: seen on two cores."""
LONGEST_START_S = 25.0
MOST_SPIKES = 1.1
"""Of the last quarter's p99.9."""


@dataclass(frozen=True, kw_only=True)
class Starts:
    """Each engine once, then each once more: a slow minute of the machine hits all alike."""

    model: str
    timing: Timing
    rungs: Sequence[Rung]
    layout: Layout

    def next_block(self, kept: Kept) -> Block | None:
        return next(self._list_left(kept), None)

    def estimate(self, kept: Kept) -> float:
        """Seconds that are left."""
        return len(list(self._list_left(kept))) * (START_S + self.timing.seconds)

    def _list_left(self, kept: Kept) -> Iterator[Block]:
        refused = {name for block in kept.blocks for name in block.refused}
        for number in range(self.timing.repeats):
            for rung in self.rungs:
                name = name_start(rung, number)
                if not rung.reason and name_start(rung, 0) not in refused and kept.find(name) is None:
                    yield self._make_block(rung, name)

    def _make_block(self, rung: Rung, name: str) -> Block:
        """A name of its own, else the server of the start before would be taken."""
        member = make_member(replace(rung, name=name), self.model, self.layout)
        scenario = replace(
            make_scenario(rung, self.model, self.timing),
            arrival=Arrival(loop="closed"),
            steps=(SINGLE_USERS,),
            warm_up_s=0.0,
            repeats=1,
            leave_out_first_round=False,
            least_rounds=0,
        )
        return Block(name=name, turns=(Turn(member=member, scenario=scenario, level=SINGLE_USERS),))


def name_start(rung: Rung, number: int) -> str:
    """Of its server, and of its block."""
    return f"{rung.name}-{number + 1}"


@dataclass(frozen=True, kw_only=True)
class Start:
    """One that was measured."""

    block: KeptBlock
    series: Series

    @property
    def seconds(self) -> float:
        """From the birth of the first worker's process to the last right answer."""
        assert self.series.facts.start is not None  # a server of its own
        return float(self.series.facts.start["worker_seconds"])


def list_starts(kept: Kept, rung: Rung) -> list[Start]:
    """In their order."""
    blocks = (kept.find(name_start(rung, number)) for number in range(kept.asked["timing"]["repeats"]))
    return [Start(block=one, series=series) for one in blocks if one for series in kept.list_series(one)]


def judge(kept: Kept) -> list[Verdict]:
    """Two figures of each engine; none where a start is in doubt."""
    rungs = [rung for rung in list_asked_rungs(kept) if not rung.reason]
    return [verdict for rung in rungs for verdict in _judge_rung(kept, rung)]


def _judge_rung(kept: Kept, rung: Rung) -> list[Verdict]:
    started = f"{rung.label}: start to ready"
    try:
        starts = _take(kept, rung)
        spikes = find_spikes([kept.read_latencies(one.block, one.series.system) for one in starts])
    except LoadTestError as problem:
        return [Verdict(what=started, why=str(problem))]
    seconds = [one.seconds for one in starts]
    return [
        Verdict(
            what=started,
            figure=Interval(value=statistics.median(seconds), low=min(seconds), high=max(seconds)),
            unit=" s",
            limit=LONGEST_START_S,
            at_least=False,
            why=f"the median of {len(seconds)}, the shortest and the longest",
        ),
        Verdict(
            what=f"{rung.label}: p99.9 of the first quarter since ready / of the last one",
            figure=spikes,
            unit="×",
            limit=MOST_SPIKES,
            at_least=False,
        ),
    ]


def _take(kept: Kept, rung: Rung) -> list[Start]:
    """Those that may be quoted; LoadTestError says why they are too few."""
    if refused := next((block.refused for block in kept.blocks if name_start(rung, 0) in block.refused), {}):
        raise LoadTestError(f"the kit refuses it: {refused[name_start(rung, 0)]}")
    starts = list_starts(kept, rung)
    good = [one for one in starts if not find_doubts(one.series)]
    if len(good) < LEAST_REPEATS:
        doubts = [str(doubt) for one in starts for doubt in find_doubts(one.series)]
        raise LoadTestError(
            f"{len(good)} starts may be quoted, {LEAST_REPEATS} are the least; {'; '.join(doubts[:2])}"
        )
    return good
