"""Percentiles, rates and intervals against truths that are known, in virtual time."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from loadtest.drivers.records import make_records
from loadtest.errors import LoadTestError
from loadtest.results.stats import (
    count_done,
    find_mean_interval,
    find_percentile,
    find_percentile_interval,
    least_requests,
    measure_rates,
    pick,
    split_by_time,
)
from tests.loadtest.simulated import VirtualServer, constant, noisy, simulate_closed, simulate_open


@pytest.mark.parametrize(("percentile", "count"), [(50, 6), (95, 72), (99, 368), (99.9, 3688)])
def test_least_requests(percentile, count):
    assert least_requests(percentile) == count


def test_a_percentile_of_too_few_requests_is_refused():
    with pytest.raises(LoadTestError, match="p99 needs at least 368 requests: got 367; run longer"):
        find_percentile(np.arange(367.0), 99)
    assert find_percentile(np.arange(1.0, 401.0), 99) == 396


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


@pytest.fixture(scope="module")
def queue():
    """One worker, Poisson arrivals, exponential service (M/M/1): the time spent is exponential."""
    random = np.random.default_rng(99)  # not the arrivals' seed: service must not know of them
    server = VirtualServer(service=lambda _: float(random.exponential(0.01)))
    return simulate_open(server, rate=25, begin_s=0, end_s=20_000, process="poisson")


@pytest.mark.parametrize("percentile", [50, 90, 95, 99])
def test_percentiles_of_a_queue_are_within_two_percent_of_the_truth(queue, percentile):
    truth = -np.log(1 - percentile / 100) / (1 / 0.01 - 25)
    assert find_percentile(queue.latency, percentile) == pytest.approx(truth, rel=0.02)


def test_a_pause_of_a_second_is_fully_visible_in_open_loop_p99():
    """A closed loop with one user hides it: it sees one slow request among 2,900."""
    paused = {"service": constant(0.002), "pause_at": 5.0, "pause_s": 1.0}
    opened = simulate_open(VirtualServer(**paused), rate=100, begin_s=0, end_s=30)
    closed = simulate_closed(VirtualServer(**paused), users=1, begin_s=0, end_s=30)
    assert find_percentile(opened.latency, 99) > 0.65
    assert opened.latency.max() == pytest.approx(1.0, abs=0.02)
    assert find_percentile(closed.latency, 99) == pytest.approx(0.002, rel=0.02)


def test_the_interval_of_a_percentile_holds_the_truth_and_knows_of_stalls():
    random = np.random.default_rng(2)
    hits = 0
    for _ in range(40):
        calm = [random.exponential(1.0, 50) for _ in range(20)]
        found = find_percentile_interval(calm, 95)
        hits += found.low < -np.log(0.05) < found.high
    assert hits >= 34
    stalled = [*calm[:-1], calm[-1] + 10]
    assert find_percentile_interval(stalled, 95).high > 10


def simulate_batches(begin: float):
    """64 users, a worker that answers 16 of them together each 1.28 s: 12.5 requests a second."""
    rows, waiting, moment = [], [begin] * 64, begin
    while moment < 14:
        moment += 1.28
        served, waiting = waiting[:16], waiting[16:]
        rows += [(0, float("nan"), sent, moment, 200, -1, "") for sent in served]
        waiting += [moment] * 16
    return make_records(rows, ())


def test_a_rate_counts_a_batch_by_its_share_of_the_window():
    """Counting ends would be off by up to 16 of 125, depending on where the window begins."""
    for begin in np.linspace(-12, -10.5, 9):
        records = simulate_batches(float(begin))
        assert count_done(records, 0, 10) / 10 == pytest.approx(12.5, rel=0.02)
        assert np.mean(measure_rates(records, 0, 10)) == pytest.approx(12.5, rel=0.02)


def test_an_open_loop_counts_from_when_a_request_was_due():
    """The generator was 0.4 s late: that is the waiting person's time too, and it is known as lag."""
    records = make_records([(0, 1.0, 1.4, 1.5, 200, -1, ""), (0, float("nan"), 1.4, 1.5, 200, -1, "")], ())
    assert records.latency == pytest.approx([0.5, 0.1])
    assert records.lag[0] == pytest.approx(0.4)
    assert len(records.within(1.0, 1.2)) == 1


def test_a_stall_at_the_end_of_the_window_lowers_the_rate():
    server = VirtualServer(service=constant(0.01), pause_at=8.0, pause_s=3.0)
    records = simulate_closed(server, users=4, begin_s=0, end_s=13)
    assert count_done(records, 0, 10) == pytest.approx(800, rel=0.02)


def test_failed_requests_are_no_throughput():
    records = simulate_closed(VirtualServer(service=constant(0.01)), users=1, begin_s=0, end_s=10)
    records.status[::2] = 503
    assert count_done(records, 0, 10) == pytest.approx(500, rel=0.02)


def test_intervals_of_means_cover_the_truth_nineteen_times_out_of_twenty():
    random = np.random.default_rng(4)
    samples = [random.normal(10, 2, 40) for _ in range(200)]
    hits = sum(found.low <= 10 <= found.high for found in (find_mean_interval(one) for one in samples))
    assert 180 <= hits <= 198


def test_blocks_are_longer_than_requests():
    server = VirtualServer(service=noisy(0.5, spread=0.1, random=np.random.default_rng(1)))
    records = simulate_closed(server, users=4, begin_s=-3, end_s=13)
    blocks = split_by_time(records, 0, 12)
    assert len(blocks) == len(measure_rates(records, 0, 12)) == 3
    assert sum(len(block) for block in blocks) == len(records.within(0, 12))
