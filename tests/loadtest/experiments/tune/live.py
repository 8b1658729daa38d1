"""Live servers in virtual time: simulated with times of their own, on a machine that drifts."""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from loadtest.experiments.tune.candidate import Candidate
from loadtest.results.stats import pick
from loadtest.simulation.search import Limit
from loadtest.simulation.server import Simulated, simulate
from loadtest.simulation.service import NO_OVERHEAD, Overhead, ServiceTimes

SIZES = (1, 2, 4, 8, 16)
DRIFT = 0.06
"""Up or down, each window: what was seen of equal servers on a shared machine."""
QUEUE = 100
WINDOW = 740


def make_times(scale: float = 1.0, overhead: Overhead = NO_OVERHEAD) -> ServiceTimes:
    """ResNet50 in INT8 on one core, or as many times slower."""
    random = np.random.default_rng(0)
    samples = tuple(
        (b, tuple((scale * (0.003 + 0.0105 * b)) * np.exp(random.normal(0, 0.04, 40)))) for b in SIZES
    )
    return ServiceTimes(samples=samples, overhead=overhead)


def plan(batch: int, delay_ms: int = 1, workers: int = 2) -> Candidate:
    return Candidate(workers=workers, cores_per_worker=2 // workers, batch=batch, delay_ms=delay_ms)


@dataclass(kw_only=True)
class Machine:
    """Servers by name, each with its plan and its own times."""

    servers: Mapping[str, tuple[Candidate, ServiceTimes]]
    seed: int = 0
    drift: float = DRIFT
    queue: int = QUEUE
    random: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    def serve(self, name: str, rate: float, *, arrivals: str, warm_up: int, requests: int) -> Simulated:
        """One window; `arrivals` names the pattern, which is the same for all servers."""
        seed = zlib.crc32(f"{self.seed} {arrivals}".encode())
        due = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, warm_up + requests))
        one, times = self.servers[name]
        slower = math.exp(self.random.uniform(-self.drift, self.drift))
        return simulate(one.simulate_as(self.queue), scale_times(times, round(slower, 2)), due, seed=seed)

    def measure(self, name: str, rate: float, *, arrivals: str, limit: Limit) -> tuple[float, float]:
        """The percentile of a window in ms, and the share of late requests."""
        warm_up = int(rate)
        found = self.serve(name, rate, arrivals=arrivals, warm_up=warm_up, requests=WINDOW)
        latency = found.latency[warm_up:]
        return 1000 * pick(latency, limit.percentile), float((latency > limit.seconds).mean())


_SCALED: dict[tuple[ServiceTimes, float], ServiceTimes] = {}


def scale_times(times: ServiceTimes, factor: float) -> ServiceTimes:
    """The same of a faster or slower moment; kept, as drifts are rounded to a hundredth."""
    if (times, factor) not in _SCALED:
        samples = tuple((batch, tuple(factor * one for one in each)) for batch, each in times.samples)
        _SCALED[times, factor] = dataclasses.replace(times, samples=samples)
    return _SCALED[times, factor]
