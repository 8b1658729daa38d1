"""The gate finds a planted slowdown of 10 % and is silent on two equal servers, twenty times out of twenty.

In virtual time: the noise is known and no machine's own comes on top, so the test cannot be flaky.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from loadtest.compare import DEFAULT_BOUND, compare_pairs, find_student_quantile, render_verdict
from loadtest.gate import DEFAULT_PAIRS, judge_pairs, measure_pairs
from loadtest.stats import measure_rates
from tests.loadtest.simulated import VirtualServer, noisy, simulate_closed

SERVICE_S = 0.04
REQUEST_SPREAD = 0.3
"""Photographs and texts differ in size."""
TURN_SPREAD = 0.02
"""From turn to turn, as measured on a shared two-core machine."""
DRIFT = 0.1
"""The machine slows down by so much over the run, for both sides."""
TRIES = 20


def run_virtual_gate(seed: int, *, slowdown: float, spread: float = TURN_SPREAD):
    """A full gate: turns of a closed loop on two servers of known speed, on a machine that drifts."""
    random = np.random.default_rng(seed)
    turns = iter(range(1000))

    def measurer(factor: float):
        def measure(_: int) -> float:
            drift = 1 + DRIFT * next(turns) / (2 * DEFAULT_PAIRS)
            service = SERVICE_S * factor * drift * math.exp(random.normal(0, spread))
            server = VirtualServer(service=noisy(service, spread=REQUEST_SPREAD, random=random), workers=2)
            records = simulate_closed(server, users=16, begin_s=-2, end_s=14)
            return float(np.mean(measure_rates(records, 12)))

        return measure

    rates = measure_pairs(measurer(1.0), measurer(1 + slowdown), DEFAULT_PAIRS)
    return judge_pairs(*rates, what="virtual", bound=DEFAULT_BOUND)


def test_a_planted_slowdown_is_found_every_time():
    verdicts = [run_virtual_gate(seed, slowdown=0.1) for seed in range(TRIES)]
    assert [one.regression for one in verdicts] == [True] * TRIES
    # 10 % more time is 9.1 % less throughput.
    assert np.mean([one.loss.value for one in verdicts]) == pytest.approx(1 - 1 / 1.1, abs=0.01)


def test_equal_servers_raise_no_cry():
    verdicts = [run_virtual_gate(seed, slowdown=0.0) for seed in range(100, 100 + TRIES)]
    assert [one.regression for one in verdicts] == [False] * TRIES
    assert all(one.conclusive for one in verdicts)


def test_too_much_noise_is_said_to_be_inconclusive():
    verdict = run_virtual_gate(7, slowdown=0.0, spread=0.4)
    assert not verdict.conclusive
    assert "INCONCLUSIVE" in render_verdict(verdict)
    assert "do: more repeats" in render_verdict(verdict)


def test_a_slowdown_within_the_bound_is_no_regression():
    assert not run_virtual_gate(3, slowdown=0.03).regression


def test_the_smallest_detectable_change_is_found_four_times_out_of_five():
    """By its own definition: at that size, the interval leaves out 1 in about 80 % of runs."""
    random, found, smallest = np.random.default_rng(1), 0, []
    for _ in range(300):
        true = 0.05
        a = [100 * math.exp(random.normal(0, 0.04)) for _ in range(10)]
        b = [100 * (1 - true) * math.exp(random.normal(0, 0.04)) for _ in range(10)]
        verdict = judge_pairs(a, b, what="x", bound=0.01)
        smallest.append(verdict.smallest_detectable)
        found += verdict.loss.low > 0
    assert np.median(smallest) == pytest.approx(0.05, abs=0.01)
    assert 0.65 < found / 300 < 0.92


def test_sides_take_turns_in_going_first():
    order = []
    measure_pairs(lambda n: order.append(f"a{n}") or 1.0, lambda n: order.append(f"b{n}") or 1.0, 4)
    assert order == ["a0", "b0", "b1", "a1", "a2", "b2", "b3", "a3"]


def test_one_outlier_does_not_take_the_bounds_off():
    """As measured: the first of the turns met a busy machine."""
    a, b = [73.61, 97.63, 96.81, 98.26, 96.97, 97.0], [65.07, 65.89, 65.18, 65.55, 58.96, 65.1]
    verdict = judge_pairs(a, b, what="x", bound=0.05)
    assert verdict.regression
    assert verdict.ratio.high < 0.9


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


def test_the_verdict_is_readable():
    text = render_verdict(run_virtual_gate(1, slowdown=0.1))
    assert "REGRESSION: B is " in text
    assert "the smallest change this could have found is " in text
