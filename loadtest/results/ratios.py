"""Intervals of rates that were measured in turns, and of their ratios.

The turns of a block are a randomised block design: every server is measured once in each repeat, seconds
apart, so what slows the machine for a while slows all of a repeat and cancels out of a ratio. What is left
of the logarithms without servers' means and what most servers share in a repeat is the error. Its spread is
pooled over the servers of the block, because two or three repeats of one say little of it; an unsteady
server is judged by its own spread alone, over halves of its longer turns. Intervals are Student's t.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from statistics import NormalDist

import numpy as np

from loadtest.errors import LoadTestError
from loadtest.results.stats import Interval
from loadtest.results.trial import Series

METHOD = (
    "Every server of a block is measured once in each repeat, seconds apart from the others, so what slows "
    "the machine for a while cancels out of a ratio. Ratios are geometric means over the repeats; their 95 % "
    "intervals are Student's t with the error that is left in the block's logarithms without the servers' "
    "means and what most servers share in a repeat, or the pair's own spread when that is larger; an "
    "unsteady server is judged by its own spread alone, over halves of its longer turns. A request counts "
    "for a window by the share of its time in it, as batches end together."
)
LEAST_REPEATS = 2
"""Of each server: an interval comes from how repeats differ."""
Z_95 = 1.96
PAIR_RESAMPLES = 20_000
"""The quantiles lie far out, where 2,000 draws would leave a handful."""
SEED = 0
UNSTEADY = 4.0
"""A spread so many times that of most servers is not chance: of 3 repeats each, 1 in 10,000 spreads so."""
Rates = Mapping[str, Sequence[float]]
"""Server → its rate in each repeat."""
Turns = Sequence[Sequence[float]]
Parts = Mapping[str, Turns]
"""Unsteady server → the rates of the parts of each turn."""


def take_rates(block: Sequence[Series]) -> Rates:
    """Of all systems of a block, by repeat."""
    return {one.system: one.turn_rates for one in block}


def take_parts(block: Sequence[Series]) -> Parts:
    """Of those systems whose windows were cut into parts."""
    return {one.system: [trial.parts for trial in one.trials] for one in block if one.trials[0].parts}


def find_rate_interval(rates: Rates, name: str, parts: Parts | None = None) -> Interval:
    """The median of the repeats; the interval holds the machine's own ups and downs too."""
    logs, row = _take_logs(rates), list(rates).index(name)
    steady, own = _find_steady(logs), logs[row]
    if steady[row]:
        within = (logs - logs.mean(axis=1, keepdims=True))[steady]
        freedom = len(within) * (len(own) - 1)
        error = max(float(own.var(ddof=1)), float((within**2).sum()) / freedom)
    else:
        own = np.log(np.array((parts or {}).get(name, rates[name]))).ravel()
        freedom, error = len(own) - 1, float(own.var(ddof=1))
    reach = find_student_quantile(freedom) * math.sqrt(error / len(own))
    middle, median = float(own.mean()), statistics.median(rates[name])
    low, high = math.exp(middle - reach), math.exp(middle + reach)
    return Interval(value=median, low=min(low, median), high=max(high, median))


def find_ratio(rates: Rates, over: str, under: str, parts: Parts | None = None) -> Interval:
    """Geometric mean of over/under within repeats; of an unsteady server the parts of its turns count."""
    logs, rows = _take_logs(rates), [list(rates).index(name) for name in (over, under)]
    steady = _find_steady(logs)
    if steady[rows].all():
        pairs = logs[rows[0]] - logs[rows[1]]
        own, freedom = float(pairs.var(ddof=1)), len(pairs) - 1
        if steady.sum() > 2:
            freedom *= int(steady.sum()) - 1
            own = max(own, 2 * float((_take_error(logs)[steady] ** 2).sum()) / freedom)
    else:
        # Each part of a turn with the other server's turn of the same repeat, or the same part of it.
        halves = [(parts or {}).get(name) for name in (over, under)]
        first, second = (
            np.log(np.array(cut)) if cut else logs[row][:, None]
            for cut, row in zip(halves, rows, strict=True)
        )
        pairs = (first - second).ravel()
        own, freedom = float(pairs.var(ddof=1)), len(pairs) - 1
    reach = find_student_quantile(freedom) * math.sqrt(own / len(pairs))
    middle = float(pairs.mean())
    return Interval(value=math.exp(middle), low=math.exp(middle - reach), high=math.exp(middle + reach))


def multiply(one: Interval, other: Interval) -> Interval:
    """Of two ratios that were measured apart: their relative errors add as squares."""
    value = one.value * other.value
    reach = math.hypot(*(math.log(ratio.high / ratio.low) / 2 for ratio in (one, other)))
    return Interval(value=value, low=value * math.exp(-reach), high=value * math.exp(reach))


def _take_error(logs: np.ndarray) -> np.ndarray:
    """What is left without each server's mean, and what most servers share in a repeat."""
    within = logs - logs.mean(axis=1, keepdims=True)
    left: np.ndarray = within - np.median(within, axis=0)
    return left


def _find_steady(logs: np.ndarray) -> np.ndarray:
    """Which servers spread about as most do; what the others do says nothing of these, nor these of them."""
    spread = np.sqrt((_take_error(logs) ** 2).sum(axis=1))
    steady: np.ndarray = spread <= UNSTEADY * np.median(spread)
    return steady


def _take_logs(rates: Rates) -> np.ndarray:
    repeats = {len(one) for one in rates.values()}
    if len(repeats) != 1 or min(repeats) < LEAST_REPEATS or len(rates) < 2:
        counts = ", ".join(f"{name} {len(one)}" for name, one in rates.items())
        raise LoadTestError(f"an interval needs two servers with at least two repeats each: got {counts}")
    return np.log(np.array([rates[name] for name in rates], dtype=float))


def compare_pairs(a: list[float], b: list[float]) -> Interval:
    """Geometric mean of b/a over pairs that ran side by side, with its expanded bootstrap interval.

    The plain percentile bootstrap is too narrow for ten pairs; taking its quantiles further out, by what
    Student's t is wider than the normal distribution, cures it (Hesterberg 2015, "expanded percentile").
    Dividing by each draw's own error instead gave an interval of 0.6-1.9 when one of five pairs was an
    outlier (seen).
    """
    logs = np.log(np.array(b) / np.array(a))
    count = len(logs)
    tail = find_expanded_tail(count)
    drawn = logs[np.random.default_rng(SEED).integers(0, count, (PAIR_RESAMPLES, count))].mean(axis=1)
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return Interval(value=math.exp(float(logs.mean())), low=math.exp(low), high=math.exp(high))


def find_expanded_tail(count: int) -> float:
    """Where a 95 % interval ends, on either side, among means of so many values drawn again."""
    return NormalDist().cdf(-math.sqrt(count / (count - 1)) * find_student_quantile(count - 1))


def find_student_quantile(freedom: int) -> float:
    """97.5 % of Student's t by its expansion around the normal quantile (0.3 % off at 4 degrees)."""
    z = Z_95
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
