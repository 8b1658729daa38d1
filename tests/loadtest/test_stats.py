"""Percentiles, rates, ratios and intervals against truths that are known, in virtual time or by formula."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from loadtest import stats
from loadtest.errors import LoadTestError
from loadtest.rows import cut_window, find_latency, make_rows
from loadtest.stats import Interval, count_done, find_percentile, find_ratio, measure_rates, pick
from tests.loadtest.virtual import VirtualServer, noisy, simulate_closed


@pytest.mark.parametrize(("percentile", "count"), [(50, 20), (95, 200), (99, 1000), (99.9, 10_000), (5, 200)])
def test_ten_requests_lie_beyond_a_quoted_percentile(percentile, count):
    assert stats.least_requests(percentile) == count
    enough = np.arange(float(count))
    assert find_percentile([enough[1:]], percentile) is None
    assert find_percentile([enough], percentile).value == pick(enough, percentile)


def test_a_percentile_is_a_measured_value():
    assert [pick(np.array([4.0, 1.0, 3.0, 2.0]), p) for p in (0, 25, 26, 50, 75, 100)] == [1, 1, 2, 2, 3, 4]
    with pytest.raises(LoadTestError, match=r"no value: there is no p99\.9"):
        pick(np.array([]), 99.9)


@pytest.mark.parametrize("percentile", ["1", "50", "95", "99", "99.5", "99.9"])
def test_the_rank_of_a_percentile_is_exact_for_every_count(percentile):
    """Where the share is a whole number of values, rounding must not move to the next one."""
    for count in (*range(1, 400), 1000, 2000, 10_000, 20_000):
        rank = math.ceil(Fraction(percentile) * count / 100)
        assert pick(np.arange(1.0, count + 1), float(percentile)) == rank, count


def test_the_interval_of_a_percentile_covers_the_truth_and_knows_of_stalls():
    random = np.random.default_rng(2)
    hits = 0
    for _ in range(25):
        calm = [random.exponential(1.0, 50) for _ in range(20)]
        found = find_percentile(calm, 95)
        hits += found.low < -np.log(0.05) < found.high
    assert hits >= 21
    assert find_percentile([*calm[:-1], calm[-1] + 10], 95).high > 10
    assert find_percentile([*calm, np.empty(0)], 95) == found


def test_intervals_of_means_cover_the_truth_nineteen_times_out_of_twenty():
    random = np.random.default_rng(4)
    found = [stats.find_mean(random.normal(10, 2, 40)) for _ in range(100)]
    assert 88 <= sum(one.low <= 10 <= one.high for one in found) <= 99
    assert stats.find_mean([3.0]) == Interval(value=3.0, low=3.0, high=3.0)


def test_a_ratio_is_students_t_on_the_logarithms():
    """By hand: ratios 2, 2.2, 1.8; 4.30265 is t of two degrees of freedom."""
    logs = [math.log(one) for one in (2.0, 2.2, 1.8)]
    mean = sum(logs) / 3
    error = math.sqrt(sum((one - mean) ** 2 for one in logs) / 2) / math.sqrt(3)
    found = find_ratio([20.0, 11.0, 36.0], [10.0, 5.0, 20.0])
    assert found.value == pytest.approx(1.993, abs=0.001)
    wanted = [math.exp(mean + sign * 4.302653 * error) for sign in (-1, 0, 1)]
    assert [found.low, found.value, found.high] == pytest.approx(wanted, rel=1e-6)
    assert stats.find_geometric_mean([2.0, 2.2, 1.8]) == found


def test_intervals_of_ratios_cover_the_truth_nineteen_times_out_of_twenty():
    random, hits = np.random.default_rng(3), 0
    for _ in range(200):
        drift = np.exp(random.normal(0, 0.5, 5))
        over, under = (level * drift * np.exp(random.normal(0, 0.05, 5)) for level in (2, 1))
        found = find_ratio(over.tolist(), under.tolist())
        hits += found.low <= 2 <= found.high
    assert 182 <= hits <= 198


def test_a_drift_common_to_both_cancels_and_equal_pairs_have_no_width():
    slower_and_slower = [100.0, 90, 80, 70, 60]
    found = find_ratio([0.9 * rate for rate in slower_and_slower], slower_and_slower)
    assert (found.low, found.value, found.high) == pytest.approx((0.9, 0.9, 0.9))
    assert find_ratio([3.0, 3.0], [2.0, 2.0]) == Interval(value=1.5, low=1.5, high=1.5)


@pytest.mark.parametrize("over", [[], [1.0], [1.0, 0.0], [1.0, -1.0], [1.0, 1.0, 1.0]])
def test_a_ratio_needs_pairs_of_rates_above_zero(over):
    for pair in ((over, [1.0, 1.0]), ([1.0] * 2, over), (over[:1], [2.0])):
        with pytest.raises(LoadTestError, match="a ratio needs two or more pairs of rates above 0: got"):
            find_ratio(*pair)


def test_errors_of_ratios_that_were_measured_apart_add_as_squares():
    one = Interval(value=2.0, low=2.0 * np.exp(-0.3), high=2.0 * np.exp(0.3))
    other = Interval(value=3.0, low=3.0 * np.exp(-0.4), high=3.0 * np.exp(0.4))
    both = stats.multiply(one, other)
    assert (both.value, np.log(both.high / both.value), np.log(both.value / both.low)) == pytest.approx(
        (6.0, 0.5, 0.5)
    )


def test_a_request_counts_by_the_share_of_its_time_in_the_window():
    spans = [(-1, 1), (0, 2), (9, 13), (-5, 15), (-2, -1), (10, 11), (-3, 0)]
    rows = make_rows([(0, math.nan, sent, ended, 200, 0, "") for sent, ended in spans])
    assert count_done(rows, 0, 10) == pytest.approx(0.5 + 1 + 0.25 + 0.5)
    # By blocks of a second, of requests that take less than half of one.
    short = make_rows([(0, math.nan, at - 0.1, at + 0.1, 200, 0, "") for at in (0, 0.5, 1, 1.5, 2)])
    assert measure_rates(short, 0, 3) == pytest.approx((2, 2, 0.5))


def test_failed_requests_are_no_throughput():
    rows = simulate_closed(VirtualServer(service=lambda _: 0.01), users=1, begin_s=0, end_s=10)
    rows.loc[::2, "status"] = 503
    assert count_done(rows, 0, 10) == pytest.approx(500, rel=0.02)
    assert stats.find_overall_rate(rows) == pytest.approx(50, rel=0.02)
    assert stats.find_overall_rate(rows.assign(status=500)) == 0
    assert measure_rates(rows.assign(status=500), 0, 10) == (0.0,)
    assert [len(block) for block in stats.split_by_time(make_rows([]), 0, 10)] == [0]


def test_blocks_of_time_are_longer_than_requests_and_hold_each_once():
    server = VirtualServer(service=noisy(0.5, spread=0.1, random=np.random.default_rng(1)))
    rows = simulate_closed(server, users=4, begin_s=-3, end_s=13)
    blocks = stats.split_by_time(rows, 0, 12)
    assert len(blocks) == len(measure_rates(rows, 0, 12)) == 3
    window = cut_window(rows, 0, 12)
    assert np.concatenate(blocks) == pytest.approx(1000 * find_latency(window))
    first = find_latency(cut_window(rows, 0, 4))
    assert blocks[0] == pytest.approx(1000 * first)
