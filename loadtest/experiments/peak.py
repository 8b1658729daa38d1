"""`make loadtest-peak`: the highest open-loop rate that keeps a latency limit, by doubling and bisection."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.errors import LoadTestError
from loadtest.experiments.measure import plan_probe, read_capacity
from loadtest.results.figures import summarise
from loadtest.results.kept import Kept
from loadtest.results.stats import Interval, least_requests
from loadtest.results.trial import Series
from loadtest.scenarios.scenario import Latency, Scenario
from loadtest.systems.fleet import Member
from loadtest.trials.block import Block, Experiment, Turn, Verdict
from loadtest.trials.validity import ENDS_OF_A_SEARCH, find_doubts

KIND = "peak"
PERCENTILE = 99.0
START_SHARE = 0.25
"""Of what a closed loop reaches: low enough to keep nearly any limit, high enough to need two doublings."""
BISECTIONS = 4
"""The interval left is a sixteenth of the last doubling: 6 % of the rate, about what repeats differ by."""
MOST_DOUBLINGS = 8
LEAST_DONE = 0.95
"""Of what arrived: less means that a backlog grows, and that a longer run would break any limit."""
MARGIN = 1.3
"""More requests than the percentile needs, as Poisson arrivals and errors take some."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One rate and whether it kept the limit."""

    rate: float
    kept: bool
    why: str


def make_experiment(member: Member, scenario: Scenario, *, limit_ms: float) -> Experiment:
    """Against one system; `scenario` says what is sent and how long at least."""
    latency = Latency(percentile=PERCENTILE, limit_ms=limit_ms)
    asked = dataclasses.replace(
        scenario, name=f"{scenario.model}-peak", latency=latency, repeats=1, steps=("100%",)
    )

    def next_block(kept: Kept) -> Block | None:
        return plan_probe(member, asked, kept) or plan_rate(member, asked, kept)

    return Experiment(
        kind=KIND,
        name=asked.name,
        asked={"system": member.name, "model": asked.model, "percentile": PERCENTILE, "limit_ms": limit_ms},
        next_block=next_block,
    )


def plan_rate(member: Member, scenario: Scenario, kept: Kept) -> Block | None:
    """The next rate to try; None when the search is over, or something else than the system is the limit."""
    series = list_tried(kept)
    if any(find_doubts(one, without=ENDS_OF_A_SEARCH) for one in series):
        return None
    tried = [judge_rate(one) for one in series]
    rate = next_rate(tried, round(START_SHARE * read_capacity(scenario, kept), 2))
    if rate is None:
        return None
    longer = dataclasses.replace(
        scenario, duration_s=plan_duration(rate, scenario.latency.percentile, scenario.duration_s)
    )
    turn = Turn(member=member, scenario=longer, level=rate)
    return Block(name=f"{scenario.model}-{len(tried) + 1:02d}", turns=(turn,))


def list_tried(kept: Kept) -> list[Series]:
    """Every rate, in the order in which they were tried."""
    every = [series for block in kept.list_blocks() for series in kept.list_series(block)]
    return [one for one in every if one.scenario.is_open]


def next_rate(tried: Sequence[Tried], start: float) -> float | None:
    """Doubled (or halved) until one keeps the limit and one breaks it, then in the middle of the two."""
    if not tried:
        return start
    ends = [one.kept for one in tried]
    bracketed = next((n for n in range(len(ends) + 1) if len(set(ends[:n])) == 2), None)
    if bracketed is None:
        factor = 2 if ends[-1] else 0.5
        return round(factor * tried[-1].rate, 2) if len(tried) <= MOST_DOUBLINGS else None
    if len(tried) - bracketed >= BISECTIONS:
        return None
    low = max(one.rate for one in tried if one.kept)
    high = min(one.rate for one in tried if not one.kept)
    return round((low + high) / 2, 2)


def find_peak(tried: Sequence[Tried]) -> Interval | None:
    """The highest rate that kept the limit below every one that did not, which is the upper end."""
    broken = min((one.rate for one in tried if not one.kept), default=float("inf"))
    peak = max((one.rate for one in tried if one.kept and one.rate < broken), default=None)
    return None if peak is None else Interval(value=peak, low=peak, high=broken)


def judge_rate(series: Series) -> Tried:
    """Whether one rate kept the scenario's limit, and why not."""
    latency, figures = series.scenario.latency, summarise(series)
    quoted = figures.percentiles_ms[f"{latency.percentile:g}"]
    if figures.errors > series.scenario.allowed_error_share * figures.requests:
        why = f"{figures.errors} of {figures.requests} requests failed"
        return Tried(rate=series.level, kept=False, why=why)
    # Against what did arrive: Poisson arrivals of a short run differ from the rate that was asked for.
    arrived = figures.requests / sum(one.duration_s for one in series.trials)
    if figures.rate.value < LEAST_DONE * arrived:
        why = f"{figures.rate.value:.1f} of {arrived:.1f}/s done: a backlog grows"
        return Tried(rate=series.level, kept=False, why=why)
    if quoted is None:
        raise LoadTestError(
            f"p{latency.percentile:g} cannot be told from {figures.requests} requests; run longer (DURATION=)"
        )
    kept = quoted.value <= (latency.limit_ms or 0.0)
    return Tried(rate=series.level, kept=kept, why=f"p{latency.percentile:g} {quoted.value:.0f} ms")


def plan_duration(rate: float, percentile: float, at_least_s: float) -> float:
    """Long enough for the percentile."""
    return max(at_least_s, round(MARGIN * least_requests(percentile) / rate, 1))


def judge(kept: Kept) -> list[Verdict]:
    """The peak with the rate above it that broke the limit."""
    series = list_tried(kept)
    limit = f"p{kept.asked['percentile']:g} ≤ {kept.asked['limit_ms']:g} ms"
    what = f"{kept.asked['model']}: highest rate with {limit}"
    doubts = [doubt for one in series for doubt in find_doubts(one, without=ENDS_OF_A_SEARCH)]
    if doubts or not series:
        return [Verdict(what=what, why="; ".join(map(str, doubts)) or "no rate was tried")]
    try:
        peak = find_peak([judge_rate(one) for one in series])
    except LoadTestError as problem:
        return [Verdict(what=what, why=str(problem))]
    if peak is None:
        return [Verdict(what=what, why="no rate kept it; ask for a higher SLO_P99_MS")]
    return [Verdict(what=what, figure=peak, unit=" requests/s", why="the upper end broke it")]
