"""Peaks of known curves: between rates and beyond them; and their intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from loadtest.experiments.tune.curve import (
    ALL_KEPT,
    NONE_KEPT,
    WITHIN,
    Limit,
    Seen,
    compare_peaks,
    find_peak,
    fit_peak,
)
from loadtest.experiments.tune.outcome import LEAST_GAIN

LIMIT = Limit(percentile=99.0, seconds=0.2)


def see(rate: float, late: float, ms: float = 200.0, repeat: int = 0) -> Seen:
    return Seen(plan="kit", block="final-1", repeat=repeat, rate=rate, arrived=rate, quoted_ms=ms, late=late)


@pytest.mark.parametrize(
    ("windows", "peak", "boundary"),
    [
        # p99 allows 1 %: on the line of logarithms between the two rates about it.
        ([(100, 0.001), (110, 0.1)], math.sqrt(100 * 110), WITHIN),
        ([(90, 0.001), (100, 0.005), (110, 0.02), (120, 0.4)], math.sqrt(100 * 110), WITHIN),
        # No late request at all counts as a twentieth of what is allowed.
        ([(100, 0.0), (110, 0.2)], math.sqrt(100 * 110), WITHIN),
        # Windows of one rate are averaged, as one long window would be.
        ([(100, 0.0), (100, 0.01), (110, 0.03), (110, 0.01)], math.sqrt(100 * 110), WITHIN),
        # One unlucky window below kept ones is smoothed, not believed.
        ([(90, 0.001), (95, 0.014), (100, 0.0), (105, 0.001), (110, 0.02)], 107.4, WITHIN),
        ([(90, 0.0), (100, 0.009)], 100, ALL_KEPT),
        ([(90, 0.02), (100, 0.5)], 90, NONE_KEPT),
    ],
)
def test_the_peak_is_where_the_fit_reaches_what_is_allowed(windows, peak, boundary):
    found = fit_peak([see(*one) for one in windows], LIMIT)
    assert found.boundary == boundary
    assert found.value == pytest.approx(peak, rel=0.005)


def draw_repeats(scale: float, seed: int) -> list[Seen]:
    """Late shares grow with a high power of the rate, and repeats differ by some percent."""
    random = np.random.default_rng(seed)
    slow = np.exp(random.uniform(-0.05, 0.05, 6))
    # So that the mean over the repeats is 1 % at a rate of 100.
    usual = 0.01 / np.mean(np.exp(np.linspace(-0.05, 0.05, 99)) ** 20)
    return [
        see(rate, min(1.0, usual * (rate / (100 * scale) * factor) ** 20), repeat=repeat)
        for repeat, factor in enumerate(slow)
        for rate in (93 * scale, 100 * scale, 107 * scale)
    ]


def test_intervals_hold_the_truth_and_are_as_narrow_as_the_repeats():
    found = [find_peak(draw_repeats(1.0, seed), LIMIT).interval for seed in range(20)]
    assert sum(one.low <= 100 <= one.high for one in found) >= 18
    assert all(one.high / one.low < 1.2 for one in found)


@pytest.mark.parametrize("truth", [1.0, 1.5])
def test_ratios_of_peaks_hold_the_truth_and_show_no_gain_of_equal_plans(truth):
    found = [
        compare_peaks(draw_repeats(1.0, seed), draw_repeats(truth, 1000 + seed), LIMIT) for seed in range(20)
    ]
    assert sum(one.low <= truth <= one.high for one in found) >= 18
    assert sum(one.low > LEAST_GAIN for one in found) == (0 if truth == 1 else 20)


def test_too_few_repeats_give_a_peak_without_an_interval():
    seen = [one for one in draw_repeats(1.0, 0) if one.repeat < 2]
    assert find_peak(seen, LIMIT).interval is None
    assert compare_peaks(seen, seen, LIMIT) is None
