"""The highest rate at which a simulated plan keeps a limit, and the order of many plans by it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadtest.drivers.schedule import plan_arrivals
from loadtest.results.stats import pick
from loadtest.simulation.server import ServerPlan, Simulated, replay, simulate
from loadtest.simulation.service import ServiceTimes

SHORT, LONG = 1500, 12_000
"""Requests: enough to order plans that differ by some percent, and to tell a peak to one or two percent."""
WARM_UP_SHARE = 0.1
"""Of the requests, left out: the server begins empty."""
HALVINGS = 7
"""The interval that is left is a hundredth of the capacity."""
LEAST_DONE = 0.95
"""Of what arrived in the window: less means that a backlog grows (as in experiments/peak.py)."""
REFINED = 8
"""So many of the best by short simulations are simulated longer: none of the others is first."""
SEED = 11
SEEDS = range(SEED, SEED + 5)
"""Of the draws of service times, where one window is simulated: two draws' p99 are some percent apart."""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """What a latency must keep."""

    percentile: float
    seconds: float

    def __str__(self) -> str:
        """`p99 ≤ 200 ms`."""
        return f"p{self.percentile:g} ≤ {1000 * self.seconds:g} ms"


@dataclass(frozen=True, kw_only=True)
class Point:
    """One plan at one rate."""

    rate: float
    p50_s: float
    quoted_s: float
    """The percentile of the limit; infinite when too many were refused."""
    worker_s: float
    """Seconds that workers computed for each request that was answered."""
    kept: bool


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """One plan with the highest rate that keeps the limit."""

    plan: ServerPlan
    service: ServiceTimes
    peak: float
    """Requests a second; 0 when no rate keeps it."""


def try_rate(
    plan: ServerPlan,
    service: ServiceTimes,
    rate: float,
    limit: Limit,
    *,
    requests: int = SHORT,
) -> Point:
    """Poisson arrivals, for all plans from the same seed."""
    found = simulate(plan, service, draw_arrivals(requests) / rate, seed=SEED)
    latency = found.latency[int(WARM_UP_SHARE * requests) :]
    quoted = pick(latency, limit.percentile)
    kept = quoted <= limit.seconds and not found.refused and _keeps_up(found)
    answered = requests - found.refused
    worker_s = found.worker_s / answered if answered else math.inf
    return Point(rate=rate, p50_s=pick(latency, 50), quoted_s=quoted, worker_s=worker_s, kept=kept)


def replay_percentiles(
    plan: ServerPlan, service: ServiceTimes, due: Sequence[float], *, begin_s: float, end_s: float,
    percentiles: Sequence[float],
) -> list[float]:  # fmt: skip
    """Of the latencies in a window that was live, in seconds; each the median of several draws."""
    window = {"begin_s": begin_s, "end_s": end_s}
    drawn = [replay(plan, service, due, seed=seed, **window) for seed in SEEDS]
    return [float(np.median([pick(one, wanted) for one in drawn])) for wanted in percentiles]


@functools.lru_cache(maxsize=8)
def draw_arrivals(requests: int) -> np.ndarray:
    """At one a second; divided by a rate they are the same pattern at that rate."""
    return plan_arrivals("poisson", rate=1.0, begin_s=0.0, end_s=requests * 2.0, seed=SEED)[:requests]


def _keeps_up(found: Simulated) -> bool:
    """Whether what arrived until the last arrival was answered by then, but for what is under way."""
    last = float(found.arrivals[-1])
    return float((found.ended <= last).sum()) >= LEAST_DONE * len(found.arrivals)


def find_peak(
    plan: ServerPlan,
    service: ServiceTimes,
    limit: Limit,
    *,
    requests: int = SHORT,
) -> float:
    """By halving below the capacity; 0 when no rate keeps the limit."""

    def keeps(rate: float) -> bool:
        return try_rate(plan, service, rate, limit, requests=requests).kept

    return bisect(keeps, find_capacity(plan, service), HALVINGS)


def bisect(keeps: Callable[[float], bool], high: float, halvings: int) -> float:
    """The highest rate below `high` that keeps, so far as so many halvings tell; 0 where none did."""
    low = 0.0
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low


def find_capacity(plan: ServerPlan, service: ServiceTimes) -> float:
    """Requests a second with the best of the batches it may make; no load gets more out of it."""
    return max(plan.workers * batch / service.mean_s(batch) for batch in range(1, plan.batch + 1))


def rank_plans(
    plans: Iterable[tuple[ServerPlan, ServiceTimes]], limit: Limit, *, refined: int = REFINED
) -> list[Predicted]:
    """The best first: by short simulations of all, then by long ones of the best of these."""
    tried = [
        Predicted(plan=plan, service=service, peak=find_peak(plan, service, limit)) for plan, service in plans
    ]
    tried.sort(key=lambda one: -one.peak)
    best = [
        replace(one, peak=find_peak(one.plan, one.service, limit, requests=LONG))
        for one in tried[:refined]
        if one.peak
    ]
    return [*sorted(best, key=lambda one: -one.peak), *tried[len(best) :]]
