"""The peak of a plan: where a monotone fit of its late requests over the rate crosses what the limit allows.

p99 ≤ 200 ms means that at most 1 % are later than 200 ms. That share is fitted, rising with the rate
(isotonic regression), because shares of short windows average to that of a long one, and their percentiles
do not: the mean p99 of windows of 740 requests crossed the limit at a rate 6 % higher than the p99 of all of
them together (simulated). Intervals come from drawing whole repeats again, of all plans that are compared
alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import isotonic_regression

from loadtest.results.ratios import find_expanded_tail
from loadtest.results.stats import Interval

CAP = 4.0
"""Times the limit: beyond it a latency tells only how long the window was."""
LEAST_LATE = 20.0
"""The least share that is told apart from none: what is allowed, divided by this; 0 has no logarithm."""
RESAMPLES = 2000
SEED = 0
WITHIN, ALL_KEPT, NONE_KEPT = "limit", "every rate kept it", "no rate kept it"
FEWEST_GROUPS = 3
"""Fewer repeats give no interval worth the name."""
Group = tuple[str, int]
"""Block and repeat: turns seconds apart, with the same arrivals."""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """What a latency must keep."""

    percentile: float
    seconds: float

    def __str__(self) -> str:
        """`p99 ≤ 200 ms`."""
        return f"p{self.percentile:g} ≤ {1000 * self.seconds:g} ms"


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One window of one plan."""

    plan: str
    block: str
    repeat: int
    rate: float
    """Requests a second that were asked for."""
    arrived: float
    """Requests a second that came: of 740 Poisson arrivals a second's share is 4 % more or less."""
    quoted_ms: float
    """The limit's percentile, with failed requests as infinitely late."""
    late: float
    """Share of the requests that were later than the limit, or failed."""

    @property
    def group(self) -> Group:
        return (self.block, self.repeat)


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The highest rate that keeps the limit, in requests a second."""

    value: float
    boundary: str
    """What ends it: the limit, or nothing within the rates that were tried."""
    interval: Interval | None = None
    """None where there are too few repeats."""

    @property
    def known(self) -> bool:
        """Whether it lies between rates that were tried; else it is above or below all of them."""
        return self.boundary == WITHIN


def fit_peak(seen: Sequence[Seen], limit: Limit) -> Peak:
    """Of one plan; at least one window."""
    rates, sums, counts = _tabulate(seen)
    return _cross(rates, sums.sum(axis=0), counts.sum(axis=0), limit)


def _tabulate(seen: Sequence[Seen]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rates in rising order; by group and rate the sum of the late shares, and how many windows there are."""
    rates, columns = np.unique([one.arrived for one in seen], return_inverse=True)
    groups = list_groups(seen)
    sums, counts = (np.zeros((len(groups), len(rates))) for _ in range(2))
    for one, column in zip(seen, columns, strict=True):
        sums[groups.index(one.group), column] += one.late
        counts[groups.index(one.group), column] += 1
    return rates, sums, counts


def _cross(rates: np.ndarray, sums: np.ndarray, counts: np.ndarray, limit: Limit) -> Peak:
    """Where the rising fit crosses the share that is allowed."""
    there = counts > 0
    rates = rates[there]
    late = isotonic_regression(sums[there] / counts[there], weights=counts[there]).x
    allowed = 1 - limit.percentile / 100
    if late[-1] <= allowed:
        return Peak(value=float(rates[-1]), boundary=ALL_KEPT)
    if late[0] > allowed:
        return Peak(value=float(rates[0]), boundary=NONE_KEPT)
    last = int(np.searchsorted(late, allowed, side="right")) - 1
    below, above = float(rates[last]), float(rates[last + 1])
    low, high = (math.log(max(float(late[n]), allowed / LEAST_LATE)) for n in (last, last + 1))
    share = (math.log(allowed) - low) / (high - low)
    return Peak(value=below * (above / below) ** share, boundary=WITHIN)


def find_level(one: Seen, limit: Limit) -> float:
    """The logarithm of latency over limit, within what a window can tell."""
    return math.log(min(max(one.quoted_ms / (1000 * limit.seconds), 1 / CAP), CAP))


def list_groups(seen: Sequence[Seen]) -> list[Group]:
    return list(dict.fromkeys(one.group for one in seen))


def find_peak(seen: Sequence[Seen], limit: Limit) -> Peak:
    """With its interval where there are repeats enough."""
    peak, groups = fit_peak(seen, limit), list_groups(seen)
    if len(groups) < FEWEST_GROUPS:
        return peak
    (drawn,) = _draw([seen], groups, limit)
    return replace(peak, interval=_find_interval(peak.value, drawn, len(groups)))


def compare_peaks(base: Sequence[Seen], other: Sequence[Seen], limit: Limit) -> Interval | None:
    """other / base over repeats that both had; None where they are too few."""
    common = [group for group in list_groups(base) if group in list_groups(other)]
    if len(common) < FEWEST_GROUPS:
        return None
    pair = [[one for one in seen if one.group in common] for seen in (base, other)]
    under, over = _draw(pair, common, limit)
    value = fit_peak(pair[1], limit).value / fit_peak(pair[0], limit).value
    return _find_interval(value, over / under, len(common))


def _draw(plans: Sequence[Sequence[Seen]], groups: Sequence[Group], limit: Limit) -> list[np.ndarray]:
    """Peaks of each plan over repeats drawn again, the same ones for all plans."""
    share = np.full(len(groups), 1 / len(groups))
    times = np.random.default_rng(SEED).multinomial(len(groups), share, RESAMPLES)
    found = []
    for seen in plans:
        rates, sums, counts = _tabulate(seen)
        own = [list_groups(seen).index(group) for group in groups]
        drawn = zip(times @ sums[own], times @ counts[own], strict=True)
        found.append(np.array([_cross(rates, one, many, limit).value for one, many in drawn]))
    return found


def _find_interval(value: float, drawn: np.ndarray, groups: int) -> Interval:
    tail = find_expanded_tail(groups)
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return Interval(value=value, low=min(float(low), value), high=max(float(high), value))
