"""The few statistics the suite quotes, each with its method and its least number of requests.

Percentile: the smallest measured value that at least p % of the requests did not exceed (inverse of the
empirical distribution); no value is quoted that was not measured.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from loadtest.drivers.records import Records
from loadtest.errors import LoadTestError

CONFIDENCE = 0.95
RESAMPLES = 2000
"""Enough for two digits of an interval's ends."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float


def least_requests(percentile: float) -> int:
    """Requests needed so that a 95 % interval of the percentile lies within the sample.

    Order statistics: all n values lie below the true percentile with probability (p/100)^n, which must not
    exceed 2.5 %. That is 6 requests for the median, 72 for p95, 368 for p99, 3,688 for p99.9.
    """
    share = percentile / 100
    return max(math.ceil(math.log((1 - CONFIDENCE) / 2) / math.log(part)) for part in (share, 1 - share))


def find_percentile(values: np.ndarray, percentile: float) -> float:
    """The percentile; LoadTestError when there are too few values to say."""
    needed = least_requests(percentile)
    if len(values) < needed:
        raise LoadTestError(
            f"p{percentile:g} needs at least {needed} requests: got {len(values)}; run longer"
        )
    return pick(values, percentile)


def pick(values: np.ndarray, percentile: float) -> float:
    """The percentile of however few values, for curves and resampling; LoadTestError when there are none.

    The rank is exact: in floating point, NumPy's too, 99.9 % of 1,000 values is a little more than 999.
    """
    if not len(values):
        raise LoadTestError(f"no value: there is no p{percentile:g}")
    rank = max(1, math.ceil(Fraction(str(percentile)) * len(values) / 100))
    return float(np.partition(values, rank - 1)[rank - 1])


def find_percentile_interval(groups: Sequence[np.ndarray], percentile: float, *, seed: int = 0) -> Interval:
    """With its interval; `groups` are the values of separate stretches of time.

    Stretches, not requests, are drawn again: one stall hits all requests of its time, so requests are no
    independent evidence.
    """
    value = find_percentile(np.concatenate(list(groups)), percentile)
    random = np.random.default_rng(seed)
    full = [group for group in groups if len(group)]
    drawn = random.integers(0, len(full), (RESAMPLES // 4, len(full)))
    found = [pick(np.concatenate([full[one] for one in draw]), percentile) for draw in drawn]
    low, high = _ends(np.array(found))
    return Interval(value=value, low=min(low, value), high=max(high, value))


def find_mean_interval(values: Sequence[float], *, seed: int = 0) -> Interval:
    """The mean with its percentile bootstrap interval."""
    plain = np.asarray(values, dtype=float)
    drawn = plain[np.random.default_rng(seed).integers(0, len(plain), (RESAMPLES, len(plain)))]
    low, high = _ends(drawn.mean(axis=1))
    return Interval(value=float(plain.mean()), low=low, high=high)


def _ends(found: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(found, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def count_done(records: Records, begin_s: float, end_s: float) -> float:
    """Requests done in a window, each counted by the share of its own time that lies in the window.

    Batches end in bursts: counting ends would be off by a whole batch at either side. A stall counts for
    what it is, because the requests it holds up reach out of the window.
    """
    good = records.take(records.good)
    length = np.maximum(good.ended - good.sent, 1e-9)
    inside = np.minimum(good.ended, end_s) - np.maximum(good.sent, begin_s)
    return float(np.clip(inside / length, 0, 1).sum())


def find_overall_rate(records: Records) -> float:
    """Good answers a second from the first request to the last answer; 0 without any."""
    good = records.take(records.good)
    return len(good) / float(good.ended.max() - good.sent.min()) if len(good) else 0.0


def measure_rates(records: Records, begin_s: float, end_s: float) -> tuple[float, ...]:
    """Requests a second in each block of time of a window."""
    good = records.take(records.good)
    typical = float(np.median(good.ended - good.sent)) if len(good) else end_s - begin_s
    return count_rates(records, _cut_window(begin_s, end_s, typical))


def count_rates(records: Records, edges: np.ndarray) -> tuple[float, ...]:
    """Requests a second between neighbouring edges."""
    return tuple(
        count_done(records, float(first), float(last)) / float(last - first)
        for first, last in itertools.pairwise(edges)
    )


def split_by_time(records: Records, begin_s: float, end_s: float) -> list[np.ndarray]:
    """Latencies in seconds of the good requests of a window, by the block of time in which they began."""
    window = records.within(begin_s, end_s)
    good = window.take(window.good)
    edges = _cut_window(begin_s, end_s, float(np.median(good.latency)) if len(good) else end_s - begin_s)
    numbers = np.clip(np.searchsorted(edges, good.begun, side="right") - 1, 0, len(edges) - 2)
    return [good.latency[numbers == number] for number in range(len(edges) - 1)]


def _cut_window(begin_s: float, end_s: float, typical_s: float) -> np.ndarray:
    """Edges of blocks of at least twice a request's typical time.

    Shorter ones would share requests and be no independent evidence.
    """
    length = end_s - begin_s
    return np.linspace(begin_s, end_s, max(1, int(length / max(1.0, 2 * typical_s))) + 1)
