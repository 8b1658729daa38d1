"""What a live server takes beyond the model's own time, fitted so that simulated points meet live ones."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from loadtest.results.stats import pick
from loadtest.simulation.search import SEED
from loadtest.simulation.server import ServerPlan, replay, simulate
from loadtest.simulation.service import Overhead, ServiceTimes

DONE_SPREAD, MEDIAN_SPREAD, TAIL_SPREAD = 0.02, 0.03, 0.2
"""How far a live figure of some hundred requests lies from the next one: what a miss of it is worth."""
FIRST_STEP_S = 0.001
ROUNDS = 120
SATURATED_REQUESTS = 600


@dataclass(frozen=True, kw_only=True)
class LivePoint:
    """What was measured of one plan under one load; a figure that was not is None."""

    plan: ServerPlan
    service: ServiceTimes
    due: tuple[float, ...] = ()
    """Seconds at which requests were due, those of the warm-up too; none: there was always more to do."""
    begin_s: float = -math.inf
    end_s: float = math.inf
    """The figures are of what was due in between."""
    p50_s: float | None = None
    quoted_s: float | None = None
    done: float | None = None
    """Requests a second that were answered, where there was always more to do."""


def fit_overhead(points: Sequence[LivePoint], percentile: float) -> Overhead:
    """The least squares of logarithms over all points; one is enough, and none means none."""
    if not points:
        return Overhead()

    def miss(roots: np.ndarray) -> float:
        return sum(_miss(point, make_overhead(roots), percentile) for point in points)

    start = np.full(3, math.sqrt(FIRST_STEP_S))
    found = minimize(miss, start, method="Nelder-Mead", options={"maxfev": ROUNDS, "xatol": 1e-3})
    return make_overhead(found.x)


def make_overhead(roots: np.ndarray) -> Overhead:
    """Squares of the fitted numbers: none of them can be below 0."""
    batch, request, outside = (float(one) ** 2 for one in roots)
    return Overhead(per_batch_s=batch, per_request_s=request, outside_s=outside)


def _miss(point: LivePoint, overhead: Overhead, percentile: float) -> float:
    service = dataclasses.replace(point.service, overhead=overhead)
    if point.done:
        return (math.log(find_saturated_rate(point.plan, service) / point.done) / DONE_SPREAD) ** 2
    found = replay(point.plan, service, point.due, begin_s=point.begin_s, end_s=point.end_s, seed=SEED)
    pairs = (
        (pick(found, 50), point.p50_s, MEDIAN_SPREAD),
        (pick(found, percentile), point.quoted_s, TAIL_SPREAD),
    )
    # A tail that is refused requests is infinite; it tells nothing of overheads.
    told = [(one, live, spread) for one, live, spread in pairs if live and math.isfinite(one)]
    return sum((math.log(one / live) / spread) ** 2 for one, live, spread in told)


def find_saturated_rate(plan: ServerPlan, service: ServiceTimes) -> float:
    """Requests a second when there is always more to do."""
    endless = dataclasses.replace(plan, queue=SATURATED_REQUESTS)
    found = simulate(endless, service, np.zeros(SATURATED_REQUESTS))
    return SATURATED_REQUESTS / float(found.ended.max() - service.overhead.outside_s)
