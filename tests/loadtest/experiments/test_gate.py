"""The gate finds a planted slowdown of 10 % and is silent on two equal servers, twenty times out of twenty.

In virtual time: the noise is known and no machine's own comes on top, so the test cannot be flaky.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from loadtest.errors import LoadTestError
from loadtest.experiments.compare import DEFAULT_BOUND
from loadtest.experiments.gate import PAIRS, compare_series, judge, make_experiment
from loadtest.results.stats import measure_rates
from loadtest.systems.fleet import Member
from tests.loadtest.making import make_kept, make_scenario, make_series
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
    rates: dict[str, list[float]] = {"a": [], "b": []}
    for turn in range(2 * PAIRS):
        pair, second = divmod(turn, 2)
        name = "ab"[(pair + second) % 2]
        factor = (1 + slowdown if name == "b" else 1.0) * (1 + DRIFT * turn / (2 * PAIRS))
        service = SERVICE_S * factor * math.exp(random.normal(0, spread))
        server = VirtualServer(service=noisy(service, spread=REQUEST_SPREAD, random=random), workers=2)
        records = simulate_closed(server, users=16, begin_s=-2, end_s=14)
        rates[name].append(float(np.mean(measure_rates(records, 0, 12))))
    return compare_rates(rates["a"], rates["b"], bound=DEFAULT_BOUND)


def compare_rates(a: list[float], b: list[float], *, bound: float):
    """Both sides' series as the gate compares them."""
    return compare_series(make_series("a", a), make_series("b", b), bound=bound)


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
    assert verdict.word == "INCONCLUSIVE"


def test_a_slowdown_within_the_bound_is_no_regression():
    assert not run_virtual_gate(3, slowdown=0.03).regression


def test_the_smallest_detectable_change_is_found_four_times_out_of_five():
    """By its own definition: at that size, the interval leaves out 1 in about 80 % of runs."""
    random, found, smallest = np.random.default_rng(1), 0, []
    for _ in range(300):
        true = 0.05
        a = [100 * math.exp(random.normal(0, 0.04)) for _ in range(10)]
        b = [100 * (1 - true) * math.exp(random.normal(0, 0.04)) for _ in range(10)]
        verdict = compare_rates(a, b, bound=0.01)
        smallest.append(verdict.smallest_detectable)
        found += verdict.loss.low > 0
    assert np.median(smallest) == pytest.approx(0.05, abs=0.01)
    assert 0.65 < found / 300 < 0.92


def open_nothing(_):
    raise AssertionError("a plan brings nothing up")


A, B = (Member(name=name, open=open_nothing) for name in "ab")


def test_a_gate_is_one_block_of_pairs(tmp_path):
    experiment = make_experiment(A, B, make_scenario())
    empty = make_kept(tmp_path, {}, kind="gate")
    block = experiment.next_block(empty)
    assert ([turn.member.name for turn in block.turns], block.repeats) == (["a", "b"], PAIRS)
    done = make_kept(tmp_path, {block.name: [make_series("a"), make_series("b")]}, kind="gate")
    assert experiment.next_block(done) is None


def test_what_gives_no_verdict_is_refused_before_it_runs():
    with pytest.raises(LoadTestError, match="the gate compares rates of closed loops"):
        make_experiment(A, B, make_scenario("open"))


def judge_kept(tmp_path, a, b):
    asked = {"a": "a", "b": "b", "bound": 0.05}
    (verdict,) = judge(make_kept(tmp_path, {"bert-closed": [a, b]}, kind="gate", asked=asked))
    return verdict


def test_a_regression_is_broken_and_shows_its_ratio(tmp_path):
    slow, fast = make_series("b", [8.0, 8.1, 7.9] * 3), make_series("a", [10.0, 10.1, 9.9] * 3)
    verdict = judge_kept(tmp_path, fast, slow)
    assert (verdict.met, verdict.figure.value) == (False, pytest.approx(0.8, rel=0.01))
    assert "REGRESSION" in verdict.why
    assert judge_kept(tmp_path, fast, make_series("b", [10.0, 10.1, 9.9] * 3)).met


def test_an_invalid_side_gives_no_figure(tmp_path):
    verdict = judge_kept(tmp_path, make_series("a"), make_series("b", errors=3))
    assert (verdict.met, verdict.figure) == (False, None)
    assert "9 of 300 requests failed" in verdict.why


def test_one_outlier_does_not_take_the_bounds_off():
    """As measured: the first of the turns met a busy machine."""
    a, b = [73.61, 97.63, 96.81, 98.26, 96.97, 97.0], [65.07, 65.89, 65.18, 65.55, 58.96, 65.1]
    verdict = compare_rates(a, b, bound=0.05)
    assert verdict.regression
    assert verdict.ratio.high < 0.9
