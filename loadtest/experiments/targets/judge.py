"""Which targets are met, from what is kept alone; an INVALID system gives no figure."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from loadtest.errors import LoadTestError
from loadtest.experiments.targets import rows
from loadtest.experiments.targets.experiment import find_start
from loadtest.experiments.targets.rows import Goal
from loadtest.results.figures import find_spikes, split_latencies_ms
from loadtest.results.kept import Kept
from loadtest.results.ratios import find_ratio, take_parts, take_rates
from loadtest.results.stats import Interval, find_percentile_interval
from loadtest.results.trial import KeptBlock, Series
from loadtest.trials.block import Verdict
from loadtest.trials.validity import find_doubts

LATENCY_EXTRA_MS = 2.0
"""For REST, beside the factor."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What is kept of one block."""

    kept: Kept
    block: KeptBlock | None
    valid: Mapping[str, Series]
    gaps: Mapping[str, str]
    """System → why it gives no figure."""

    def take(self, name: str) -> Series:
        """A system's; LoadTestError says why it can give no figure."""
        if name not in self.valid:
            raise LoadTestError(self.gaps.get(name, f"{name} is not measured yet"))
        return self.valid[name]


def look_at(kept: Kept, block: KeptBlock | None) -> Seen:
    """None of a row that is not measured yet."""
    series = {one.system: one for one in kept.list_series(block)} if block else {}
    doubts = {name: "; ".join(map(str, find_doubts(one))) for name, one in series.items()}
    refused = block.refused if block else {}
    gaps = {name: text for name, text in doubts.items() if text}
    gaps |= {name: f"the kit refuses {name}: {reason}" for name, reason in refused.items()}
    valid = {name: one for name, one in series.items() if name not in gaps}
    return Seen(kept=kept, block=block, valid=valid, gaps=gaps)


def judge(kept: Kept) -> list[Verdict]:
    """One for each goal of the rows that were asked for, whatever there is."""
    return [
        dataclasses.replace(verdict, what=f"{row.name}: {verdict.what}")
        for row in rows.list_rows(kept.asked["rows"])
        for seen in [look_at(kept, kept.find(row.name))]
        for verdict in (judge_goal(goal, seen) for goal in row.goals)
    ]


def judge_goal(goal: Goal, seen: Seen) -> Verdict:
    """Without a figure it says why there is none."""
    text, unit, find = KINDS[goal.kind]
    what = text.format(system=goal.system, other=goal.other)
    try:
        figure, limit, why = find(goal, seen)
    except LoadTestError as gap:
        return Verdict(what=what, why=str(gap))
    at_least = goal.kind in (rows.RATIO, rows.SHARE)
    return Verdict(what=what, figure=figure, unit=unit, limit=limit, at_least=at_least, why=why)


Found = tuple[Interval, float, str]
"""(figure, its limit, where the limit comes from or what belongs to it)."""


def _find_ratio(goal: Goal, seen: Seen) -> Found:
    for name in (goal.system, goal.other):
        seen.take(name)
    block = list(seen.valid.values())
    return find_ratio(take_rates(block), goal.system, goal.other, take_parts(block)), goal.limit, ""


def _find_share(goal: Goal, seen: Seen) -> Found:
    ratio, limit, why = _find_ratio(goal, seen)
    return Interval(value=100 * ratio.value, low=100 * ratio.low, high=100 * ratio.high), limit, why


def _find_median(goal: Goal, seen: Seen) -> Found:
    served, alone = (_quote(seen.take(name), 50) for name in (goal.system, goal.other))
    how = f"{goal.limit:g} × {alone.value:.4g} ms in-process + {LATENCY_EXTRA_MS:g} ms"
    return served, goal.limit * alone.value + LATENCY_EXTRA_MS, how


def _find_tail(goal: Goal, seen: Seen) -> Found:
    median, tail = (_quote(seen.take(goal.system), percentile) for percentile in (50, 99))
    return tail, goal.limit * median.value, f"{goal.limit:g} × p50"


def _quote(series: Series, percentile: float) -> Interval:
    return find_percentile_interval(split_latencies_ms(series), percentile)


def _find_spikes(goal: Goal, seen: Seen) -> Found:
    series = seen.take(goal.system)
    assert seen.block  # it has the series
    return find_spikes(seen.kept.read_latencies(seen.block, series.system)), goal.limit, ""


def _find_start(goal: Goal, seen: Seen) -> Found:
    """From the birth of the worker's process to its first right answer, while all workers load at once."""
    home = find_start(seen.kept, goal.system)
    facts = look_at(seen.kept, home).take(goal.system).facts
    start = facts.start or {}
    loads = ", ".join(f"{seconds:.1f}" for seconds in start["load_seconds"])
    why = f"the handlers' own load {loads} s; server's start to ready {start['server_seconds']:.1f} s"
    seconds = start["worker_seconds"]
    return Interval(value=seconds, low=seconds, high=seconds), goal.limit, why


KINDS: Mapping[str, tuple[str, str, Callable[[Goal, Seen], Found]]] = {
    rows.RATIO: ("{system} / {other}", "×", _find_ratio),
    rows.SHARE: ("{system} / {other}", " %", _find_share),
    rows.MEDIAN: ("p50 of {system}", " ms", _find_median),
    rows.TAIL: ("p99 of {system}", " ms", _find_tail),
    rows.SPIKES: ("{system}: p99.9 of the first quarter since ready / of the last one", "×", _find_spikes),
    rows.START: ("{system}: a worker's start to ready", " s", _find_start),
}


def find_alone(series: Series) -> tuple[float, float] | None:
    """(part of the time inside the model, requests a second by the model alone); None of a server."""
    shares = [one.model_share for one in series.trials if one.model_share]
    if not shares:
        return None
    share = statistics.mean(shares)
    return share, statistics.median(series.turn_rates) / share
