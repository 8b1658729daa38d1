"""What a live server takes beyond the times of batches alone: by CPU times and one median that were seen.

Nothing is fitted to the server at hand. Three numbers that all make requests slower cannot be told apart by a
few percentiles, and a fit hid in them what had another cause: a machine that had become faster since its
batches were timed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from loadtest.simulation.search import SEEDS, replay_percentiles
from loadtest.simulation.server import ServerPlan, simulate
from loadtest.simulation.service import Overhead, ServiceTimes

ROUNDS = 3
"""A slower server has fuller batches, whose requests are cheaper; that settles at once."""
BATCH_IN_REQUESTS = 6
"""A batch costs others as much as so many requests: with all counted by request, live p50 were a tenth to a
fifth above simulated ones in batches of 1 and right in those of 16 (ResNet50 and BERT, two Zen 4 cores)."""


@dataclass(frozen=True, kw_only=True)
class LivePoint:
    """What was measured of one plan: in an open loop far below its peak, and in a closed one."""

    plan: ServerPlan
    service: ServiceTimes
    due: tuple[float, ...]
    """Seconds at which the open loop's requests were due, those of the warm-up too."""
    begin_s: float = -math.inf
    end_s: float = math.inf
    """The median is of what was due in between."""
    p50_s: float
    worker_s: float
    """CPU seconds of the workers for a request of the open loop, on each core of one."""
    other_s: float
    """CPU seconds of all but the workers for a request of the closed loop, where every batch is full:
    TorchServe, the door and the load generator. Below the peak they also compute where a worker waits for
    requests, which costs nobody time."""


def find_overhead(point: LivePoint) -> Overhead:
    """The workers' pace by their CPU time; what others take from their cores; the rest of the median."""
    per_request_s = point.other_s / (1 + BATCH_IN_REQUESTS / point.plan.batch)
    busy = Overhead(per_batch_s=BATCH_IN_REQUESTS * per_request_s, per_request_s=per_request_s)

    def slow_down(pace: float) -> ServiceTimes:
        return dataclasses.replace(point.service, overhead=dataclasses.replace(busy, pace=pace))

    pace = find_pace(point.plan, slow_down, point.due, point.worker_s)
    busy = dataclasses.replace(busy, pace=pace)
    rest = point.p50_s - _simulate_p50(point, busy)
    return dataclasses.replace(busy, outside_s=max(0.0, rest))


def find_pace(
    plan: ServerPlan, slow_down: Callable[[float], ServiceTimes], due: Sequence[float], worker_s: float
) -> float:
    """How many times slower a machine was in an open loop whose requests were due then; `slow_down` has the
    service times of one so many times slower, `worker_s` is as in LivePoint."""
    pace, arrivals = 1.0, np.sort(due)
    for _ in range(ROUNDS):
        pace *= worker_s / _simulate_worker_s(plan, slow_down(pace), arrivals)
    return pace


def _simulate_worker_s(plan: ServerPlan, service: ServiceTimes, arrivals: np.ndarray) -> float:
    """For a request."""
    found = [simulate(plan, service, arrivals, seed=seed).worker_s for seed in SEEDS]
    return float(np.mean(found)) / len(arrivals)


def _simulate_p50(point: LivePoint, overhead: Overhead) -> float:
    service = dataclasses.replace(point.service, overhead=overhead)
    window = {"begin_s": point.begin_s, "end_s": point.end_s}
    (found,) = replay_percentiles(point.plan, service, point.due, percentiles=(50,), **window)
    return found
