"""The few statistics that are quoted, each with its method and its least number of requests.

Percentile: the smallest measured value that at least p % of the requests did not exceed (inverse of the
empirical distribution); no value is quoted that was not measured. Its interval, and that of a rate, is a
bootstrap over blocks of time: one stall hits all requests of its time, so requests are no independent
evidence. Ratios are geometric means over paired repeats, with Student's t on their logarithms.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pandas as pd
from scipy import stats as scipy_stats

from loadtest.errors import LoadTestError
from loadtest.rows import cut_window, find_begun, find_good, find_latency

CONFIDENCE = 0.95
RESAMPLES = 1000
"""Enough for two digits of an interval's ends."""
TAIL_REQUESTS = 10
"""That must lie beyond a quoted percentile: p99 needs 1,000 requests, p95 200."""
SEED = 0


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float


def least_requests(percentile: float) -> int:
    """Behind a quoted percentile, so that ten lie beyond it: 20 for p50, 200 for p95, 1,000 for p99."""
    beyond = min(Fraction(str(percentile)), 100 - Fraction(str(percentile))) / 100
    return math.ceil(TAIL_REQUESTS / beyond)


def pick(values: np.ndarray, percentile: float) -> float:
    """The percentile of however few values, for curves; LoadTestError when there are none.

    The rank is exact: in floating point, NumPy's too, 99.9 % of 1,000 values is a little more than 999.
    """
    if not len(values):
        raise LoadTestError(f"no value: there is no p{percentile:g}")
    rank = max(1, math.ceil(Fraction(str(percentile)) * len(values) / 100))
    return float(np.partition(values, rank - 1)[rank - 1])


def find_percentile(blocks: Sequence[np.ndarray], percentile: float) -> Interval | None:
    """With its interval; `blocks` are the values by block of time. None with too few values to quote it."""
    full = [block for block in blocks if len(block)]
    every = np.concatenate(full) if full else np.empty(0)
    if len(every) < least_requests(percentile):
        return None
    return _bootstrap(full, lambda chosen: pick(np.concatenate(chosen), percentile), pick(every, percentile))


def find_mean(values: Sequence[float]) -> Interval:
    """The mean of blocks of time with its interval."""
    each = [float(value) for value in values]
    return _bootstrap(each, lambda chosen: float(np.mean(chosen)), float(np.mean(each)))


def _bootstrap(blocks: Sequence, statistic, value: float) -> Interval:  # type: ignore[no-untyped-def]
    """Percentile bootstrap by scipy: blocks are drawn again, by their numbers."""
    if len(blocks) < 2:
        return Interval(value=value, low=value, high=value)

    def apply(numbers: np.ndarray, axis: int = -1) -> np.ndarray:
        return np.apply_along_axis(
            lambda drawn: statistic([blocks[int(one)] for one in drawn]), axis, numbers
        )

    drawn = scipy_stats.bootstrap(
        (np.arange(len(blocks)),), apply, n_resamples=RESAMPLES, confidence_level=CONFIDENCE,
        method="percentile", vectorized=True, rng=np.random.default_rng(SEED),
    )  # fmt: skip
    low, high = (float(end) for end in drawn.confidence_interval)
    return Interval(value=value, low=min(low, value), high=max(high, value))


def find_ratio(over: Sequence[float], under: Sequence[float]) -> Interval:
    """over / under of rates by repeat, measured in turns: what slows the machine for a while cancels out.

    Student's t on the logarithms of the paired ratios. LoadTestError with fewer than two pairs, or a rate of
    0.
    """
    if len(over) != len(under) or len(over) < 2 or min(*over, *under) <= 0:
        raise LoadTestError(
            f"a ratio needs two or more pairs of rates above 0: got {list(over)} and {list(under)}"
        )
    return find_geometric_mean(np.array(over) / np.array(under))


def find_geometric_mean(values: Sequence[float] | np.ndarray) -> Interval:
    """With Student's t on the logarithms; two or more values above 0."""
    logs = np.log(np.asarray(values, dtype=float))
    middle = float(logs.mean())
    if np.ptp(logs) == 0:
        return Interval(value=math.exp(middle), low=math.exp(middle), high=math.exp(middle))
    low, high = scipy_stats.ttest_1samp(logs, 0).confidence_interval(CONFIDENCE)
    return Interval(value=math.exp(middle), low=math.exp(low), high=math.exp(high))


def multiply(one: Interval, other: Interval) -> Interval:
    """Of two ratios that were measured apart: their relative errors add as squares."""
    value = one.value * other.value
    reach = math.hypot(*(math.log(ratio.high / ratio.low) / 2 for ratio in (one, other)))
    return Interval(value=value, low=value * math.exp(-reach), high=value * math.exp(reach))


def count_done(rows: pd.DataFrame, begin_s: float, end_s: float) -> float:
    """Good requests done in a window, each counted by the share of its own time that lies in the window.

    Batches end in bursts: counting ends would be off by a whole batch at either side. A stall counts for
    what it is, because the requests it holds up reach out of the window.
    """
    good = rows[find_good(rows)]
    sent, ended = good["sent"].to_numpy(), good["ended"].to_numpy()
    inside = np.minimum(ended, end_s) - np.maximum(sent, begin_s)
    return float(np.clip(inside / np.maximum(ended - sent, 1e-9), 0, 1).sum())


def find_overall_rate(rows: pd.DataFrame) -> float:
    """Good answers a second from the first request to the last answer; 0 without any."""
    good = rows[find_good(rows)]
    return len(good) / float(good["ended"].max() - good["sent"].min()) if len(good) else 0.0


def measure_rates(rows: pd.DataFrame, begin_s: float, end_s: float) -> tuple[float, ...]:
    """Requests a second in each block of time of a window."""
    good = rows[find_good(rows)]
    typical = float((good["ended"] - good["sent"]).median()) if len(good) else end_s - begin_s
    edges = itertools.pairwise(_cut_blocks(begin_s, end_s, typical))
    return tuple(count_done(rows, float(a), float(b)) / float(b - a) for a, b in edges)


def split_by_time(rows: pd.DataFrame, begin_s: float, end_s: float) -> list[np.ndarray]:
    """Latencies in ms of the good requests of a window, by the block of time in which they began."""
    window = cut_window(rows, begin_s, end_s)
    good = window[find_good(window)]
    latency = find_latency(good)
    edges = _cut_blocks(begin_s, end_s, float(np.median(latency)) if len(good) else end_s - begin_s)
    numbers = np.clip(np.searchsorted(edges, find_begun(good), side="right") - 1, 0, len(edges) - 2)
    return [1000 * latency[numbers == number] for number in range(len(edges) - 1)]


def _cut_blocks(begin_s: float, end_s: float, typical_s: float) -> np.ndarray:
    """Edges of blocks of at least 1 s and twice a request's typical time, so that few share requests."""
    length = end_s - begin_s
    return np.linspace(begin_s, end_s, max(1, int(length / max(1.0, 2 * typical_s))) + 1)
