"""`make loadtest-slo`: the highest open-loop rate whose p99 keeps a limit, and the curve to it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from loadtest.bench import Bench
from loadtest.errors import CapacityError
from loadtest.load import Load, find_duration
from loadtest.plots import draw_curve
from loadtest.report import INVALID, Result, Verdict, make_table
from loadtest.results import Series, plain, structure
from loadtest.servers.base import Server, kept_server
from loadtest.stats import Interval
from loadtest.tables import (
    PERCENTILE_METHOD,
    describe_servers,
    find_latency_ms,
    find_rate,
    list_findings,
    name_precision,
    tabulate_accuracy,
    tabulate_answers,
    tabulate_latency,
)
from loadtest.validity import ENDS_OF_A_SEARCH, find_doubts

KIND = "slo"
PERCENTILE = 99.0
START_SHARE = 0.6
"""Of what a closed loop reaches: where most limits lie a step or two away."""
STEP = 1.3
"""From one rate to the next, until one keeps the limit and one breaks it."""
MOST_STEPS = 8
BISECTIONS = 2
"""The interval left is a quarter of a step: 7 % of the rate, about what repeats differ by."""
LEAST_DONE = 0.95
"""Of what arrived: less means that a backlog grows, and that a longer run would break any limit."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One rate and whether it kept the limit."""

    rate: float
    kept: bool
    why: str


def ask(server: Server, load: Load, *, limit_ms: float) -> dict[str, Any]:
    """`load` says what is sent, and for how long at least."""
    asked = replace(load, name=f"{load.models[0]}-slo", percentile=PERCENTILE, limit_ms=limit_ms, rate=None)
    return {"server": server.name, "load": plain(asked)}


def run(bench: Bench, server: Server | None = None) -> Result:
    """Steps up or down until the limit lies between two rates, then their middle, twice."""
    load = structure(bench.asked["load"], Load)
    server = server or kept_server(bench.asked["server"])
    try:
        rate: float | None = round(START_SHARE * bench.capacity(server, load), 2)
    except CapacityError as problem:
        return Result(title=load.name, verdicts=[Verdict(what=load.name, why=str(problem))])
    every: list[Series] = []
    tried: list[Tried] = []
    while rate is not None:
        one = replace(load, rate=rate)
        one = replace(one, duration_s=find_duration(one, 1, math.inf))
        every.append(bench.measure(f"rate-{len(tried) + 1:02d}", server, one))
        if find_doubts(every[-1], without=ENDS_OF_A_SEARCH):
            break  # something else than the server is the limit
        tried.append(judge_rate(every[-1]))
        bench.say(f"  {rate:g} requests/s: {tried[-1].why}: {'kept' if tried[-1].kept else 'broken'}")
        rate = next_rate(tried)
    return show_search(load, every, tried)


def next_rate(tried: Sequence[Tried]) -> float | None:
    """None when the search is over."""
    kept = [one.rate for one in tried if one.kept]
    broken = [one.rate for one in tried if not one.kept]
    if not kept or not broken:
        factor = STEP if kept else 1 / STEP
        return round(factor * tried[-1].rate, 2) if len(tried) < MOST_STEPS else None
    low, high = find_ends(tried)
    first = next(n for n in range(len(tried) + 1) if len({one.kept for one in tried[:n]}) == 2)
    return round(math.sqrt(low * high), 2) if len(tried) - first < BISECTIONS else None


def find_ends(tried: Sequence[Tried]) -> tuple[float, float]:
    """(highest rate that kept the limit below every one that did not, lowest one that did not)."""
    broken = min((one.rate for one in tried if not one.kept), default=math.inf)
    return max((one.rate for one in tried if one.kept and one.rate < broken), default=0.0), broken


def judge_rate(series: Series) -> Tried:
    """Whether one rate kept the limit, and why not."""
    load, (window,) = series.load, series.windows
    quoted = find_latency_ms(series, load.percentile)
    rate, limit = load.level, load.limit_ms or 0.0
    if series.errors:
        return Tried(rate=rate, kept=False, why=f"{series.errors} of {series.requests} requests failed")
    # Against what did arrive: Poisson arrivals of a short run differ from the rate that was asked for.
    arrived, done = series.requests / window.duration_s, find_rate(series).value
    if done < LEAST_DONE * arrived:
        return Tried(rate=rate, kept=False, why=f"{done:.1f} of {arrived:.1f}/s done: a backlog grows")
    if quoted is None:
        return Tried(rate=rate, kept=False, why=f"too few requests for p{load.percentile:g}")
    return Tried(rate=rate, kept=quoted.value <= limit, why=f"p{load.percentile:g} {quoted.value:.0f} ms")


def show_search(load: Load, every: Sequence[Series], tried: Sequence[Tried]) -> Result:
    """The figure, the curve, and every rate."""
    low, high = find_ends(tried)
    limit = f"p{load.percentile:g} ≤ {load.limit_ms:g} ms"
    what = f"{load.models[0]}: highest rate with {limit}"
    doubts = [doubt for one in every for doubt in find_doubts(one, without=ENDS_OF_A_SEARCH)]
    why = "the upper end broke it" if math.isfinite(high) else "no rate broke it"
    figure = Interval(value=low, low=low, high=high)
    verdict = Verdict(what=what, figure=figure, unit=" requests/s", why=why)
    if doubts:
        verdict = Verdict(what=what, why="; ".join(map(str, doubts)))
    elif not low:
        verdict = Verdict(what=what, why="no rate kept it; ask for a higher SLO_P99_MS")
    ordered = sorted(every, key=lambda one: one.load.level)
    found = make_table(
        "Highest rate within the limit",
        [
            {
                "model": load.models[0],
                "precision": name_precision(every[0]),
                "limit": limit,
                "requests/s": low if verdict.figure else INVALID,
                "broken at, requests/s": high if math.isfinite(high) else None,
                "rates tried": len(every),
            }
        ],
        "The highest rate that kept the limit, below every rate that did not.",
    )
    points = [
        (
            one.load.level,
            None if find_doubts(one) else {f"{p:g}": find_latency_ms(one, p) for p in (50, 95, 99)},
        )
        for one in ordered
    ]
    title = f"{load.models[0]}, {name_precision(every[0])}"
    return Result(
        title=f"Highest rate of {load.models[0]} with {limit}",
        verdicts=[verdict],
        notes=[describe_servers(every)],
        tables=[
            found,
            tabulate_latency(ordered, "Rates tried", ENDS_OF_A_SEARCH),
            tabulate_answers(ordered),
            tabulate_accuracy(ordered),
        ],
        plots=[
            draw_curve(
                points, title=title, limit_ms=load.limit_ms or 0.0, peak=low if verdict.figure else None
            )
        ],
        findings=list_findings(ordered, without=ENDS_OF_A_SEARCH),
        method=[
            PERCENTILE_METHOD,
            "Beyond the highest rate a backlog grows or requests fail: the search ends there.",
        ],
    )
