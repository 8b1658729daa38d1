"""Intervals hold the truth as often as they say; a slow minute of the machine is in no ratio."""

from __future__ import annotations

import numpy as np
import pytest

from loadtest.errors import LoadTestError
from loadtest.results.ratios import (
    compare_pairs,
    find_rate_interval,
    find_ratio,
    find_student_quantile,
    multiply,
)
from loadtest.results.stats import Interval

TRIES = 400


def draw_rates(random, *, servers=5, repeats=3, noise=0.02, drift=0.1, truth=2.0):
    slow = random.normal(0, drift, repeats)
    logs = random.normal(0, noise, (servers, repeats)) + slow
    rates = {f"s{number}": list(np.exp(row) * 10) for number, row in enumerate(logs)}
    rates["s1"] = [truth * rate for rate in rates["s1"]]
    return rates


def test_the_interval_of_a_ratio_holds_the_truth_as_often_as_it_says():
    random = np.random.default_rng(1)
    found = [find_ratio(draw_rates(random), "s1", "s0") for _ in range(TRIES)]
    held = sum(one.low <= 2.0 <= one.high for one in found) / TRIES
    assert 0.93 <= held <= 1.0
    assert np.median([one.high / one.low for one in found]) < 1.15


def test_what_slows_the_whole_machine_is_in_no_ratio():
    rates = {"a": [10.0, 5.0, 20.0], "b": [20.0, 10.0, 40.0]}
    ratio = find_ratio(rates, "b", "a")
    assert (ratio.low, ratio.value, ratio.high) == pytest.approx((2.0, 2.0, 2.0))


def test_the_interval_of_a_rate_holds_its_median_and_the_machines_ups_and_downs():
    rates = {"a": [10.0, 8.0, 12.0], "b": [20.0, 16.0, 24.0]}
    rate = find_rate_interval(rates, "a")
    assert rate.value == 10.0
    assert rate.low < 8.0
    assert rate.high > 12.0


def test_a_server_that_spreads_more_than_the_others_keeps_its_own_error():
    calm = {f"s{number}": [10.0, 10.1, 9.9, 10.0] for number in range(4)}
    wild = {**calm, "wild": [10.0, 20.0, 5.0, 10.0]}
    assert find_ratio(wild, "wild", "s0").low < 0.5
    assert find_ratio(wild, "s1", "s0") == find_ratio(calm, "s1", "s0")


def test_an_unsteady_server_is_judged_by_the_parts_of_its_turns():
    rates = {**{f"s{number}": [10.0, 10.1, 9.9] for number in range(4)}, "wild": [10.0, 20.0, 5.0]}
    parts = {"wild": [[9.0, 11.0], [25.0, 15.0], [3.0, 7.0]]}
    alone, with_parts = (find_ratio(rates, "s0", "wild", known) for known in (None, parts))
    assert with_parts.high / with_parts.low < alone.high / alone.low
    assert with_parts.value == pytest.approx(1.0, rel=0.1)
    assert find_ratio(rates, "s1", "s0", parts) == find_ratio(rates, "s1", "s0")
    found = [find_rate_interval(rates, "wild", known) for known in (None, parts)]
    spans = [one.high / one.low for one in found]
    assert spans[1] < spans[0]


def test_errors_of_ratios_that_were_measured_apart_add_as_squares():
    one = Interval(value=2.0, low=2.0 * np.exp(-0.3), high=2.0 * np.exp(0.3))
    other = Interval(value=3.0, low=3.0 * np.exp(-0.4), high=3.0 * np.exp(0.4))
    both = multiply(one, other)
    assert (both.value, np.log(both.high / both.value)) == pytest.approx((6.0, 0.5))


def test_an_interval_needs_repeats():
    with pytest.raises(LoadTestError, match="at least two repeats each: got a 1, b 1"):
        find_ratio({"a": [1.0], "b": [2.0]}, "a", "b")


def test_intervals_of_ten_pairs_cover_the_truth_nineteen_times_out_of_twenty():
    random = np.random.default_rng(3)
    hits = 0
    for _ in range(200):
        ratios = np.exp(random.normal(0, 0.05, 10))
        found = compare_pairs([1.0] * 10, ratios.tolist())
        hits += found.low <= 1 <= found.high
    assert 182 <= hits <= 198


@pytest.mark.parametrize(("freedom", "quantile"), [(4, 2.776), (5, 2.571), (9, 2.262), (30, 2.042)])
def test_student_quantiles(freedom, quantile):
    assert find_student_quantile(freedom) == pytest.approx(quantile, rel=0.004)


def test_drift_that_hits_both_sides_cancels():
    slower_and_slower = [100.0, 90, 80, 70, 60]
    found = compare_pairs(slower_and_slower, [0.9 * rate for rate in slower_and_slower])
    assert (found.low, found.value, found.high) == (pytest.approx(0.9),) * 3
