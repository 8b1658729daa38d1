"""Service times: how long one worker takes for a batch, drawn from what was measured on this machine."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadtest.errors import LoadTestError

QUANTILES = 501
"""Of each batch size: finer than a profile of some dozen batches tells; exact where a test gives more."""


@dataclass(frozen=True, kw_only=True)
class Overhead:
    """What a live server adds to the times of the model alone; seen in a live one (overhead.py)."""

    pace: float = 1.0
    """A batch takes so many times as long as when it was timed: what a worker does beside the model, and the
    machine's speed at that moment."""
    per_batch_s: float = 0.0
    """And so much longer whatever its size,"""
    per_request_s: float = 0.0
    """and for each request: TorchServe, door and load generator take it from the same cores. A worker of
    several cores waits for the one that is taken."""
    outside_s: float = 0.0
    """A request waits so much longer without keeping a worker busy."""

    def others_s(self, batch: int) -> float:
        """Seconds of a batch's time that others take."""
        return self.per_batch_s + batch * self.per_request_s


NO_OVERHEAD = Overhead()


@dataclass(frozen=True, kw_only=True)
class ServiceTimes:
    """Of one model in one precision, in workers of so many cores."""

    samples: tuple[tuple[int, tuple[float, ...]], ...]
    """(requests in a batch, seconds of each batch that was measured), the smallest batch first."""
    overhead: Overhead = NO_OVERHEAD

    @property
    def largest(self) -> int:
        """The largest batch that was measured; nothing is known beyond."""
        return self.samples[-1][0]

    def scale(self, factor: float) -> ServiceTimes:
        """Of a machine that is so many times slower."""
        overhead = Overhead(**{name: factor * one for name, one in vars(self.overhead).items()})
        return replace(self, overhead=overhead)

    def mean_s(self, batch: int) -> float:
        """Of a batch of so many requests, with the overhead."""
        return float(np.mean(list_quantiles(self)[batch]))


def read_service(raw: Mapping[str, Mapping[str, object]], source: str) -> ServiceTimes:
    """From the `service` of one precision of a profile; LoadTestError where it has no samples."""
    samples = []
    for batch, entry in raw.items():
        seconds = entry.get("samples_s")
        if not isinstance(seconds, Sequence) or not seconds:
            raise LoadTestError(
                f"a profile must list each batch's own seconds: got none of size {batch} ({source}); "
                "take it again with `make tune`"
            )
        samples.append((int(batch), tuple(float(one) for one in seconds)))
    if not samples:
        raise LoadTestError(f"a profile must have one batch size at least: got none ({source})")
    return ServiceTimes(samples=tuple(sorted(samples)))


@functools.lru_cache(maxsize=64)
def list_quantiles(times: ServiceTimes) -> list[list[float]]:
    """By the number of requests in a batch, the quantiles of its time in seconds; none of no requests.

    Between measured sizes on straight lines; below the smallest along the line through the two smallest.
    """
    sizes = np.array([batch for batch, _ in times.samples], dtype=float)
    shares = (np.arange(QUANTILES) + 0.5) / QUANTILES
    known = np.array([np.quantile(seconds, shares) for _, seconds in times.samples])
    wanted = np.arange(times.largest + 1, dtype=float)
    table = np.array([np.interp(wanted, sizes, column) for column in known.T]).T
    if len(sizes) > 1:
        below = wanted < sizes[0]
        slope = (known[1] - known[0]) / (sizes[1] - sizes[0])
        table[below] = np.maximum(known[0] + (wanted[below, None] - sizes[0]) * slope, 0.0)
    whole = times.overhead.pace * table
    whole[1:] += np.array([times.overhead.others_s(batch) for batch in range(1, len(whole))])[:, None]
    return [list(row) for row in whole.tolist()]
