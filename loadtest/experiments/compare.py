"""`make compare`: two results side by side; `make loadtest-gate`: two running servers in turns, A B, B A, ….

The gate is for CI: exit code 1 on a regression, and where nothing can be told.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from scipy import stats as scipy_stats

from loadtest.bench import Bench
from loadtest.errors import LoadTestError
from loadtest.load import Load
from loadtest.report import Result, Table, Verdict, make_table
from loadtest.results import Kept, Series, plain, structure
from loadtest.servers.base import Server, kept_server
from loadtest.stats import Interval, find_ratio, multiply
from loadtest.tables import (
    RATIO_METHOD,
    describe_servers,
    find_latency_ms,
    find_rate,
    list_findings,
    tabulate_answers,
)
from loadtest.validity import find_doubts

KIND = "gate"
DEFAULT_BOUND = 0.05
"""Smaller losses than 5 % are within what shared machines differ by from day to day."""
PAIRS = 10
"""Of the gate; fewer than six would give no interval worth the name."""
POWER = 0.8
"""A change of the size that is told is found so often."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One figure of two servers or results: the candidate B against the base A."""

    what: str
    a: float
    b: float
    unit: str
    ratio: Interval
    """B / A."""
    higher_is_better: bool
    bound: float
    notes: tuple[str, ...] = ()

    @property
    def loss(self) -> Interval:
        """How much worse B is, as a share; negative when it is better."""
        ends = (self.ratio.value, self.ratio.low, self.ratio.high)
        if self.higher_is_better:
            value, high, low = (1 - end for end in ends)
        else:
            value, low, high = (end - 1 for end in ends)
        return Interval(value=value, low=low, high=high)

    @property
    def smallest_detectable(self) -> float:
        """The least relative change that this much data finds four times out of five."""
        normal = scipy_stats.norm
        error = math.log(self.ratio.high / self.ratio.low) / (2 * normal.ppf(0.975))
        return math.expm1((normal.ppf(0.975) + normal.ppf(POWER)) * error)

    @property
    def word(self) -> str:
        """A regression is worse by more than the bound, and certainly worse at all."""
        if self.loss.value > self.bound and self.loss.low > 0:
            return "REGRESSION"
        return "no regression" if self.smallest_detectable <= 2 * self.bound else "INCONCLUSIVE"

    def __str__(self) -> str:
        worse = "worse" if self.loss.value > 0 else "better"
        told = (
            f"{self.word}: B is {abs(self.loss.value):.1%} {worse}; the bound is {self.bound:.1%}; the "
            f"smallest change this could have found is {self.smallest_detectable:.1%}"
        )
        hint = "; do: longer repeats (DURATION=), or a quieter machine"
        return told + (hint if self.word == "INCONCLUSIVE" else "")


def compare_results(
    a: tuple[Kept, Sequence[Series]], b: tuple[Kept, Sequence[Series]], bound: float
) -> Result:
    """Level by level; LoadTestError when they are not two valid results of the same loads."""
    for kept, every in (a, b):
        for one in every:
            if doubts := find_doubts(one):
                raise LoadTestError(
                    f"{kept.folder.name} is INVALID ({doubts[0].state}); only valid results are compared"
                )
    if len(a[1]) != len(b[1]):
        raise LoadTestError(f"A and B must have as many levels: got {len(a[1])} and {len(b[1])}")
    found = [_compare_series(*pair, bound) for pair in zip(a[1], b[1], strict=True)]
    return Result(
        title=f"{b[0].folder.name} against {a[0].folder.name}",
        verdicts=[make_verdict(one, failed=one.word == "REGRESSION") for one in found],
        tables=[tabulate(found)],
        method=[
            "A and B did not take turns: the machine's own drift is part of the ratio (use loadtest-gate)."
        ],
    )


def _compare_series(first: Series, second: Series, bound: float) -> Comparison:
    load = first.load
    for what in ("models", "payloads", "driver", "is_open"):
        x, y = (getattr(one.load, what) for one in (first, second))
        if x != y:
            raise LoadTestError(f"A and B must have the same {what}: got {x} and {y}")
    if load.is_open:
        what, unit = f"{load.name}, {load.place}: p{load.percentile:g}", "ms"
        x, y = (find_latency_ms(one, load.percentile) for one in (first, second))
    else:
        what, unit = f"{load.name}, {load.place}", "requests/s"
        x, y = (find_rate(one) for one in (first, second))
    assert None not in (x, y)  # too few requests make a series INVALID
    notes = []
    if first.facts.precisions != second.facts.precisions:
        precisions = (", ".join(one.facts.precisions.values()) for one in (first, second))
        notes.append("precisions differ: {} and {}".format(*precisions))
    if load.level != second.load.level:
        notes.append(f"levels differ: {load.place} and {second.load.place}")
    inverse = Interval(value=1 / x.value, low=1 / x.high, high=1 / x.low)
    return Comparison(
        what=what, a=x.value, b=y.value, unit=unit, ratio=multiply(y, inverse),
        higher_is_better=not load.is_open, bound=bound, notes=tuple(notes),
    )  # fmt: skip


def tabulate(found: Sequence[Comparison]) -> Table:
    return make_table(
        "B against A",
        (
            {
                "load": one.what,
                f"A, {one.unit}": one.a,
                f"B, {one.unit}": one.b,
                "ratio B / A": one.ratio,
                "bound %": one.bound,
                "smallest change found %": one.smallest_detectable,
                "verdict": one.word,
                "remarks": "; ".join(one.notes) or None,
            }
            for one in found
        ),
        "The smallest change is what this much data would find four times out of five.",
    )


def make_verdict(one: Comparison, *, failed: bool) -> Verdict:
    return Verdict(what=f"{one.what}: B / A", figure=one.ratio, unit="×", why=str(one), failed=failed)


def ask(pair: Sequence[Server], load: Load, *, bound: float) -> dict[str, Any]:
    """Rates are compared, so the load is a closed loop; both get the users of A."""
    if load.is_open:
        raise LoadTestError("the gate compares rates of closed loops; --scenario must name a closed one")
    return {"pair": [one.name for one in pair], "bound": bound, "load": plain(load)}


def run(bench: Bench, pair: Sequence[Server] = ()) -> Result:
    """Not passed when a side is INVALID, on a regression, and where none can be told."""
    asked = bench.asked
    pair = pair or [kept_server(name) for name in asked["pair"]]
    load = structure(asked["load"], Load)
    if load.users is None:
        load = replace(load, users=bench.measure("level", pair[0], load).load.users)
    block = bench.turns("pairs", [(one, load) for one in pair], repeats=PAIRS)
    base, other = (block.find(one.name) for one in pair)
    assert base is not None
    assert other is not None
    what = f"{other.server} against {base.server}"
    doubts = [doubt for one in (base, other) for doubt in find_doubts(one)]
    verdict, tables = Verdict(what=what, why="; ".join(map(str, doubts))), []
    if not doubts:
        found = Comparison(
            what=f"{load.name}, {load.place}", a=find_rate(base).value, b=find_rate(other).value,
            unit="requests/s", ratio=find_ratio(other.rates, base.rates), higher_is_better=True,
            bound=asked["bound"],
        )  # fmt: skip
        verdict, tables = make_verdict(found, failed=found.word != "no regression"), [tabulate([found])]
    return Result(
        title=f"Gate: {what}",
        verdicts=[verdict],
        notes=[describe_servers(block.series)],
        tables=[*tables, tabulate_answers(block.series)],
        findings=list_findings(block.series),
        method=[RATIO_METHOD],
    )
