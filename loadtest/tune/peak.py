"""The peak of a plan: where a monotone fit of its late requests over the rate crosses what the limit allows.

p99 ≤ 200 ms means that at most 1 % are later than 200 ms. That share is fitted, rising with the rate
(isotonic regression), because shares of short windows average to that of a long one, and their percentiles
do not: the mean p99 of windows of 740 requests crossed the limit at a rate 6 % higher than the p99 of all of
them together (simulated). Intervals draw whole repeats again, the same ones for both plans of a ratio.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats as scipy_stats
from scipy.optimize import isotonic_regression

from loadtest.stats import Interval

COLUMNS = ("plan", "block", "group", "rate", "arrived", "ms", "late")
"""Of trials, a line for each window. Windows of a `group` were measured seconds apart. `rate` was asked for
(1/s), so much `arrived` (of 740 Poisson arrivals a second's share is 4 % more or less); `ms` is the limit's
percentile, with failed requests as infinitely late, and `late` the share that was later than the limit."""
LEAST_LATE = 20.0
"""The least share that is told apart from none: what is allowed, divided by this; 0 has no logarithm."""
RESAMPLES, SEED = 2000, 0
WITHIN, ALL_KEPT, NONE_KEPT = "limit", "every rate kept it", "no rate kept it"
OUTWARD = 1.12
"""From the end of the tried rates, where the peak lies beyond: the next rates begin below it, and one bad
window does not send them all far from it."""
FEWEST_GROUPS = 3
"""Fewer repeats give no interval worth the name."""


class Peak(NamedTuple):
    """The highest rate that keeps the limit, in requests a second."""

    value: float
    boundary: str
    """WITHIN the rates that were tried; else it is above or below all of them."""
    interval: Interval | None = None
    """None where there are too few repeats."""


def make_trials(lines: Iterable[Sequence]) -> pd.DataFrame:
    """By rate. Of one rate the latest come first, so that a fit that rises averages them."""
    trials = pd.DataFrame(lines, columns=[*COLUMNS])
    return trials.sort_values(["arrived", "late"], ascending=[True, False])


def find_peak(trials: pd.DataFrame, allowed: float) -> Peak:
    """Of one plan's windows, one or more; `allowed` is the share that may be late (of p99, 0.01)."""
    peak, groups = fit_peak(trials, allowed), list_common(trials, trials)
    if len(groups) < FEWEST_GROUPS:
        return peak
    return peak._replace(interval=_find_interval(peak.value, _draw(trials, groups, allowed), len(groups)))


def compare_peaks(base: pd.DataFrame, other: pd.DataFrame, allowed: float) -> Interval | None:
    """other / base over repeats that both had; None where they are too few."""
    groups = list_common(base, other)
    if len(groups) < FEWEST_GROUPS:
        return None
    under, over = (trials[trials["group"].isin(groups)] for trials in (base, other))
    value = fit_peak(over, allowed).value / fit_peak(under, allowed).value
    return _find_interval(value, _draw(over, groups, allowed) / _draw(under, groups, allowed), len(groups))


def list_common(base: pd.DataFrame, other: pd.DataFrame) -> list[str]:
    """Repeats that both had."""
    return [group for group in base["group"].unique() if group in {*other["group"]}]


def fit_peak(trials: pd.DataFrame, allowed: float) -> Peak:
    """Without its interval."""
    return _cross(trials["arrived"].to_numpy(), trials["late"].to_numpy(), np.ones(len(trials)), allowed)


def find_centre(trials: pd.DataFrame, guess: float, allowed: float) -> float:
    """The rate to measure about next, in requests a second; the guess where nothing was tried."""
    if not len(trials):
        return guess
    found = fit_peak(trials, allowed)
    return found.value * {ALL_KEPT: OUTWARD, NONE_KEPT: 1 / OUTWARD}.get(found.boundary, 1.0)


def _cross(arrived: np.ndarray, late: np.ndarray, weights: np.ndarray, allowed: float) -> Peak:
    """Where the rising fit crosses the share that is allowed."""
    rates = arrived[weights > 0]
    fitted = isotonic_regression(late[weights > 0], weights=weights[weights > 0]).x
    if fitted[-1] <= allowed:
        return Peak(float(rates[-1]), ALL_KEPT)
    if fitted[0] > allowed:
        return Peak(float(rates[0]), NONE_KEPT)
    last = int(np.searchsorted(fitted, allowed, side="right")) - 1
    low, high = (math.log(max(float(share), allowed / LEAST_LATE)) for share in fitted[last : last + 2])
    part = (math.log(allowed) - low) / (high - low)
    return Peak(float(rates[last] * (rates[last + 1] / rates[last]) ** part), WITHIN)


def _draw(trials: pd.DataFrame, groups: Sequence[str], allowed: float) -> np.ndarray:
    """Peaks over repeats drawn again: for the same groups the same ones each time."""
    share, (arrived, late) = np.full(len(groups), 1 / len(groups)), trials[["arrived", "late"]].to_numpy().T
    times = np.random.default_rng(SEED).multinomial(len(groups), share, RESAMPLES).astype(float)
    weights = times[:, [groups.index(group) for group in trials["group"]]]
    return np.array([_cross(arrived, late, each, allowed).value for each in weights])


def _find_interval(value: float, drawn: np.ndarray, groups: int) -> Interval:
    """Quantiles further out, by what Student's t is wider than the normal distribution: the plain percentile
    bootstrap is too narrow for a handful of repeats (Hesterberg 2015, "expanded percentile")."""
    reach = math.sqrt(groups / (groups - 1)) * scipy_stats.t.ppf(0.975, groups - 1)
    low, high = np.quantile(drawn, [scipy_stats.norm.cdf(-reach), scipy_stats.norm.cdf(reach)])
    return Interval(value=value, low=min(float(low), value), high=max(float(high), value))
