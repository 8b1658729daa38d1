"""Peaks, the queueing limit above all of them, and overheads that are found again."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from loadtest.errors import LoadTestError
from loadtest.results.stats import pick
from loadtest.simulation.limit import find_least_cost, find_queueing_limit
from loadtest.simulation.overhead import LivePoint, find_overhead
from loadtest.simulation.search import LONG, REFINED, Limit, find_capacity, find_peak, rank_plans, try_rate
from loadtest.simulation.server import ServerPlan, replay, simulate
from loadtest.simulation.service import Overhead, ServiceTimes, read_service

SIZES = (1, 2, 4, 8, 16)
P99 = Limit(percentile=99.0, seconds=0.2)


def make_times(fixed_s=0.004, each_s=0.010, spread=0.04, seed=0, **more) -> ServiceTimes:
    """a + c·b with some spread."""
    random = np.random.default_rng(seed)
    samples = tuple((b, tuple((fixed_s + each_s * b) * np.exp(random.normal(0, spread, 40)))) for b in SIZES)
    return ServiceTimes(samples=samples, **more)


TIMES = make_times()


def make_plan(batch=4, delay_s=0.001, workers=2, **more) -> ServerPlan:
    return ServerPlan(workers=workers, batch=batch, delay_s=delay_s, **more)


def test_the_peak_lies_below_the_capacity_and_keeps_the_limit():
    plan = make_plan()
    peak = find_peak(plan, TIMES, P99)
    assert 0.7 * find_capacity(plan, TIMES) < peak < find_capacity(plan, TIMES)
    assert try_rate(plan, TIMES, peak, P99).kept
    assert not try_rate(plan, TIMES, 1.1 * peak, P99).kept


def test_a_looser_limit_never_lowers_the_peak_and_one_below_a_single_request_has_none():
    peaks = [find_peak(make_plan(), TIMES, Limit(percentile=99, seconds=s)) for s in (0.01, 0.1, 0.2, 0.5)]
    assert peaks == sorted(peaks)
    assert peaks[0] == 0


def test_refused_requests_break_a_rate_even_where_the_others_are_fast():
    point = try_rate(make_plan(queue=1), TIMES, 100, Limit(percentile=50, seconds=9))
    assert not point.kept


@pytest.mark.parametrize("limit_s", [0.1, 0.2, 0.5])
@pytest.mark.parametrize("batch", [1, 4, 16])
def test_neither_another_queue_nor_a_deadline_raises_the_peak(batch, limit_s):
    """Why they are planned and not raced: at a rate that keeps the limit nobody waits that long."""
    limit = Limit(percentile=99, seconds=limit_s)
    queue = max(128, int(2 * limit_s * find_capacity(make_plan(batch), TIMES)))
    planned, endless, short = (
        find_peak(make_plan(batch, queue=size), TIMES, limit) for size in (queue, 100_000, 2)
    )
    assert short < planned == endless

    def find_behind_door(deadline_s: float) -> float:
        plan = make_plan(batch, queue=queue, instances=2, in_flight=2 * batch, deadline_s=deadline_s)
        return find_peak(plan, TIMES, limit)

    assert find_behind_door(limit_s) <= find_behind_door(2 * limit_s) == find_behind_door(math.inf)


@pytest.mark.parametrize(("percentile", "limit_s"), [(99.0, 0.06), (99.0, 0.2), (95.0, 0.2), (95.0, 1.0)])
def test_no_plan_beats_the_queueing_limit(percentile, limit_s):
    limit = Limit(percentile=percentile, seconds=limit_s)
    plans = [make_plan(*each) for each in itertools.product((1, 4, 16), (0.0, 0.02), (1, 2))]
    plans += [make_plan(4, 0.001, 2, instances=2, in_flight=5)]
    best = max(find_peak(plan, TIMES, limit, requests=4000) for plan in plans)
    bound = find_queueing_limit([(2, TIMES)], limit)
    assert 0 < best <= bound <= 2 / find_least_cost(TIMES, limit)


def test_the_queueing_limit_is_that_of_one_constant_server():
    """M/D/1 from 0 wait: with the limit at one service time only who finds it empty is in time."""
    times = ServiceTimes(samples=((1, (0.1,)),))
    assert find_queueing_limit([(1, times)], Limit(percentile=50, seconds=0.1)) == pytest.approx(10, rel=0.01)
    # In time is who finds the server free; one that is late is put aside: rate / 10 late to 1 in time.
    assert find_queueing_limit([(1, times)], Limit(percentile=90, seconds=0.1)) == pytest.approx(1.1, rel=0.1)
    assert find_queueing_limit([(1, times)], Limit(percentile=99, seconds=0.09)) == 0


def test_batches_that_take_longer_than_the_limit_count_for_nothing():
    assert find_least_cost(TIMES, P99) == pytest.approx(0.0102, rel=0.03)
    assert find_least_cost(TIMES, Limit(percentile=99, seconds=0.03)) == pytest.approx(0.012, rel=0.03)
    assert find_least_cost(TIMES, Limit(percentile=99, seconds=0.001)) == math.inf


def test_the_order_of_plans_is_that_of_their_peaks():
    plans = [(make_plan(batch, delay_s), TIMES) for batch in SIZES for delay_s in (0.001, 0.05)]
    ranked = rank_plans(plans, P99)
    peaks = [one.peak for one in ranked[:REFINED]]
    assert peaks == sorted(peaks, reverse=True)
    assert ranked[0].plan.batch in (4, 8)
    assert {one.plan for one in ranked} == {plan for plan, _ in plans}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "overhead",
    [
        Overhead(pace=1.3, per_batch_s=0.0024, per_request_s=0.0004, outside_s=0.003),
        Overhead(pace=0.9, per_batch_s=0.009, per_request_s=0.0015),
        Overhead(),
    ],
)
def test_the_overhead_of_a_live_server_is_seen_in_one_plans_windows(overhead, seed):
    """And by it other plans are predicted as they are, whatever arrivals the windows happened to have: seen
    were 146.5 of 150 a second, and medians that were simulated 15 % too low by it."""
    live, plan, other = make_times(overhead=overhead), make_plan(4), make_plan(8, 0.005)
    seen = find_overhead(measure(plan, live, 0.94 * 50, seed))
    assert seen.pace == pytest.approx(overhead.pace, rel=0.02)
    assert seen.outside_s == pytest.approx(overhead.outside_s, abs=0.001)
    found = make_times(overhead=seen)
    now, then = try_rate(other, found, 100, P99), try_rate(other, live, 100, P99)
    assert now.p50_s == pytest.approx(then.p50_s, rel=0.05)
    assert now.quoted_s == pytest.approx(then.quoted_s, rel=0.1)
    peaks = [find_peak(other, one, P99, requests=LONG) for one in (found, live)]
    assert peaks[0] == pytest.approx(peaks[1], rel=0.04)


def measure(plan: ServerPlan, live: ServiceTimes, rate: float, seed: int) -> LivePoint:
    """Of a window of 740 requests, a second of warm-up before it."""
    gaps = np.random.default_rng(seed).exponential(1 / rate, 740 + int(rate))
    due = np.cumsum(gaps) - 1
    return LivePoint(
        plan=plan, service=TIMES, due=tuple(due.tolist()), begin_s=0.0,
        p50_s=pick(replay(plan, live, due, begin_s=0, end_s=math.inf, seed=7), 50),
        worker_s=simulate(plan, live, due, seed=7).worker_s / len(due),
        other_s=live.overhead.others_s(plan.batch) / plan.batch,
    )  # fmt: skip


def test_a_profile_without_samples_is_refused_with_what_to_do():
    raw = {"1": {"batches": 5, "median_s": 0.01}}
    with pytest.raises(LoadTestError, match=r"got none of size 1 \(profile.json\); take it again"):
        read_service(raw, "profile.json")
    found = read_service({"4": {"samples_s": [0.2]}, "1": {"samples_s": [0.1, 0.1]}}, "x")
    assert [batch for batch, _ in found.samples] == [1, 4]
