"""The queueing limit: a rate beyond which no server with these service times can keep a latency limit."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from loadtest.simulation.search import Limit, bisect, draw_arrivals
from loadtest.simulation.service import ServiceTimes

REQUESTS = 40_000
HALVINGS = 12


def find_queueing_limit(layouts: Iterable[tuple[int, ServiceTimes]], limit: Limit) -> float:
    """Requests a second; `layouts` are (workers, service times of one such worker).

    Every step makes the server better than any real one, so that nothing with these times can beat it:

    - A request that is answered in time was in a batch of some size b that took no longer than the limit, so
      it cost on average at least w = min over b of E[S(b)] / (b · P(S(b) ≤ limit)) seconds of a worker; S(b)
      with the overhead that the times are given with, which is none unless a certain server's limit is asked.
    - The workers are one pool, always busy while anything waits, and share every request: a request is done
      w / workers after it began, where a real batch takes its whole S(b).
    - Nothing waits for a batch to fill, for a lock or in a queue behind what is late anyway: a request that
      cannot be in time is put aside until nothing else waits. All cost the same and those that came first
      are due first, so no other choice has fewer late ones.
    - All are answered at last: the rate is never above workers / w.

    What it takes for granted: Poisson arrivals that nobody foresees (a pattern of 40,000), times of batches
    that do not depend on the choice of plan beyond batch, workers and cores, and layouts and batches among
    those that were measured.
    """
    return max(_find_one(workers, service, limit) for workers, service in layouts)


def find_least_cost(service: ServiceTimes, limit: Limit) -> float:
    """Seconds of a worker for one request that is answered in time; infinite where no batch can be."""
    costs = []
    overhead = service.overhead
    for batch, samples in service.samples:
        seconds = overhead.pace * np.array(samples) + overhead.others_s(batch)
        in_time = np.mean(seconds + overhead.outside_s <= limit.seconds)
        costs.append(float(np.mean(seconds) / (batch * in_time)) if in_time else np.inf)
    return min(costs)


def _find_one(workers: int, service: ServiceTimes, limit: Limit) -> float:
    cost = find_least_cost(service, limit) / workers
    if not np.isfinite(cost):
        return 0.0
    return bisect(lambda rate: _keeps(rate, cost, limit), 1 / cost, HALVINGS)


def _keeps(rate: float, cost: float, limit: Limit) -> bool:
    """Whether so many of the pool's requests are in time, those put aside counted as late."""
    free, late = 0.0, 0
    arrivals = (draw_arrivals(REQUESTS) / rate).tolist()
    for arrived in arrivals:
        ends = max(free, arrived) + cost
        if ends <= arrived + limit.seconds:
            free = ends
        else:
            late += 1
    return late <= (1 - limit.percentile / 100) * len(arrivals)
