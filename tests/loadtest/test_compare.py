"""The gate finds a planted slowdown of 10 % and is silent on two equal servers, twenty times out of twenty.

In virtual time: the noise is known and no machine's own comes on top, so the test cannot be flaky.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from loadtest.errors import LoadTestError
from loadtest.experiments.compare import DEFAULT_BOUND, PAIRS, Comparison, ask, compare_results, run
from loadtest.results import plain
from loadtest.servers.base import kept_server
from loadtest.stats import find_ratio, measure_rates
from tests.loadtest.making import change_facts, keep, make_load, make_series, reading
from tests.loadtest.virtual import VirtualServer, noisy, simulate_closed

SERVICE_S = 0.04
REQUEST_SPREAD = 0.3
"""Photographs and texts differ in size."""
TURN_SPREAD = 0.02
"""From turn to turn, as measured on a shared two-core machine."""
DRIFT = 0.1
"""The machine slows down by so much over the run, for both sides."""
TRIES = 20


def compare_rates(a: list[float], b: list[float]) -> Comparison:
    ratio = find_ratio(b, a)
    return Comparison(
        what="x", a=np.mean(a), b=np.mean(b), unit="requests/s", ratio=ratio, higher_is_better=True,
        bound=DEFAULT_BOUND,
    )  # fmt: skip


def run_virtual_gate(seed: int, *, slowdown: float, spread: float = TURN_SPREAD) -> Comparison:
    """A full gate: turns of a closed loop on two servers of known speed, on a machine that drifts."""
    random = np.random.default_rng(seed)
    rates: dict[str, list[float]] = {"a": [], "b": []}
    for turn in range(2 * PAIRS):
        pair, second = divmod(turn, 2)
        name = "ab"[(pair + second) % 2]
        factor = (1 + slowdown if name == "b" else 1.0) * (1 + DRIFT * turn / (2 * PAIRS))
        service = SERVICE_S * factor * math.exp(random.normal(0, spread))
        server = VirtualServer(service=noisy(service, spread=REQUEST_SPREAD, random=random), workers=2)
        rows = simulate_closed(server, users=16, begin_s=-2, end_s=14)
        rates[name].append(float(np.mean(measure_rates(rows, 0, 12))))
    return compare_rates(rates["a"], rates["b"])


def test_a_planted_slowdown_is_found_every_time():
    found = [run_virtual_gate(seed, slowdown=0.1) for seed in range(TRIES)]
    assert [one.word for one in found] == ["REGRESSION"] * TRIES
    # 10 % more time is 9.1 % less throughput.
    assert np.mean([one.loss.value for one in found]) == pytest.approx(1 - 1 / 1.1, abs=0.01)


def test_equal_servers_raise_no_cry():
    found = [run_virtual_gate(seed, slowdown=0.0) for seed in range(100, 100 + TRIES)]
    assert [one.word for one in found] == ["no regression"] * TRIES


def test_too_much_noise_is_said_to_be_inconclusive_and_a_small_loss_is_no_regression():
    assert run_virtual_gate(7, slowdown=0.0, spread=0.4).word == "INCONCLUSIVE"
    assert run_virtual_gate(3, slowdown=0.03).word == "no regression"


def read_gate(tmp_path, a, b, **changes):
    asked = {"pair": ["A: one", "B: two"], "bound": 0.05, "load": plain(make_load())}
    pair = [make_series("A: one", a), make_series("B: two", b, **changes)]
    return run(reading(tmp_path, {"pairs": pair}, kind="gate", asked=asked))


SPREAD = (1.0, 1.01, 0.99, 1.005, 0.995, 1.0, 1.01, 0.99, 1.0, 1.0)


@pytest.mark.parametrize(
    ("factor", "passed", "word"),
    [(1.0, True, "no regression"), (0.9, False, "REGRESSION"), (1.2, True, "no")],
)
def test_the_gate_passes_or_fails(tmp_path, factor, passed, word):
    result = read_gate(tmp_path, [10 * one for one in SPREAD], [10 * factor * one for one in SPREAD[::-1]])
    (verdict,) = result.verdicts
    assert (verdict.passed, result.passed) == (passed, passed)
    assert verdict.why.startswith(word)
    assert verdict.figure.value == pytest.approx(factor)


def test_a_side_in_doubt_gives_no_figure(tmp_path):
    result = read_gate(tmp_path, (10.0,) * 3, (10.0,) * 3, errors=1)
    assert (result.verdicts[0].figure, result.passed, result.valid) == (None, False, False)


def test_the_gate_compares_closed_loops():
    with pytest.raises(LoadTestError, match="the gate compares rates of closed loops"):
        ask([kept_server("a"), kept_server("b")], make_load(10.0), bound=0.05)


def results_of(tmp_path, first, second, bound=0.05):
    kept = keep(tmp_path, {})
    return compare_results((kept, first), (kept, second), bound)


def test_two_results_are_compared_level_by_level(tmp_path):
    opened = make_load(30.0)
    first = [make_series(rates=(10.0, 10.1, 9.9)), make_series(rates=(30.0,) * 3, load=opened)]
    second = [make_series(rates=(8.0, 8.1, 7.9)), make_series(rates=(30.0,) * 3, load=opened, latency=0.06)]
    result = results_of(tmp_path, first, second)
    closed, latency = result.verdicts
    assert (closed.figure.value, closed.passed) == (pytest.approx(0.8), False)
    assert (latency.figure.value, latency.passed) == (pytest.approx(1.2), False)  # a longer latency is worse
    assert all(one.passed for one in results_of(tmp_path, first, first).verdicts)


@pytest.mark.parametrize(
    ("second", "wrong"),
    [
        ([make_series(errors=1)], "is INVALID"),
        ([make_series()] * 2, "as many levels: got 1 and 2"),
        ([make_series(load=make_load(payloads="one-text"))], "the same payloads: got texts and one-text"),
        ([make_series(load=make_load(driver="ab"))], "the same driver"),
    ],
)
def test_what_cannot_be_compared_is_said(tmp_path, second, wrong):
    with pytest.raises(LoadTestError, match=wrong):
        results_of(tmp_path, [make_series()], second)


def test_other_precisions_and_levels_are_remarks(tmp_path):
    other = change_facts(make_series(load=replace(make_load(), users=8)), precisions={"bert": "int8"})
    (table,) = results_of(tmp_path, [make_series()], [other]).tables
    assert (
        table.frame["remarks"][0] == "precisions differ: fp32 and int8; levels differ: 16 users and 8 users"
    )
