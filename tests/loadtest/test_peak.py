"""The search finds the highest rate that keeps a limit, on servers whose capacity is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from loadtest.peak import Tried, find_peak, judge_rate, plan_duration, search
from loadtest.run import summarise_runs
from loadtest.scenario import Latency, parse_scenario
from tests.loadtest.simulated import QUIET, VirtualServer, as_outcome, noisy, simulate_open

RAW = {
    "model": "bert",
    "payloads": "texts",
    "arrival": {"loop": "open"},
    "steps": [1],
    "duration_s": 15,
    "repeats": 1,
}
SCENARIO = replace(
    parse_scenario(RAW, name="x", source="x"), latency=Latency(percentile=99.0, limit_ms=300.0)
)


def searched(limit: float, start: float) -> list[Tried]:
    """Against a server that keeps the limit up to an exact rate."""
    return search(lambda rate: Tried(rate=rate, kept=rate <= limit, why=""), start)


@pytest.mark.parametrize(("limit", "start"), [(100, 10), (100, 90), (100, 100), (7.3, 50), (41, 10.25)])
def test_the_peak_is_found_within_a_sixteenth_of_the_last_step(limit, start):
    tried = searched(limit, start)
    assert find_peak(tried) == pytest.approx(limit, rel=0.07)
    assert find_peak(tried) <= limit


def test_a_server_that_never_keeps_the_limit_has_no_peak():
    assert find_peak(searched(0.0001, 50)) is None


def test_a_rate_that_kept_the_limit_above_one_that_did_not_is_luck():
    tried = [Tried(rate=rate, kept=kept, why="") for rate, kept in ((10, True), (20, False), (40, True))]
    assert find_peak(tried) == 10


def test_runs_are_long_enough_for_the_percentile():
    assert plan_duration(4, 99, 15) == pytest.approx(119.6)
    assert plan_duration(400, 99, 15) == 15


def try_virtual(rate: float, seed: int = 1) -> Tried:
    random = np.random.default_rng(1000 + seed)  # not the arrivals' seed
    server = VirtualServer(service=noisy(0.05, spread=0.1, random=random), workers=2)
    one = replace(SCENARIO, duration_s=plan_duration(rate, 99, 15))
    records = simulate_open(
        server, rate=rate, begin_s=-3, end_s=one.duration_s + 2, process="poisson", seed=seed
    )
    return judge_rate(summarise_runs(rate, rate, [(as_outcome(records), QUIET)], one), SCENARIO)


def test_the_peak_of_a_virtual_server_lies_below_its_capacity():
    """Two workers of 50 ms make 40 requests a second; p99 ≤ 300 ms needs some room."""
    tried = search(try_virtual, 10)
    assert 25 < find_peak(tried) < 40


def test_a_backlog_is_not_kept_even_when_the_limit_is():
    generous = replace(SCENARIO, latency=Latency(percentile=99.0, limit_ms=60_000.0))
    random = np.random.default_rng(1001)
    server = VirtualServer(service=noisy(0.05, spread=0.1, random=random), workers=2)
    records = simulate_open(server, rate=60, begin_s=-3, end_s=17, process="poisson")
    tried = judge_rate(summarise_runs(60, 60, [(as_outcome(records), QUIET)], generous), generous)
    assert not tried.kept
    assert "a backlog grows" in tried.why


def test_refused_requests_break_a_rate():
    records = simulate_open(VirtualServer(service=lambda _: 0.001), rate=50, begin_s=-1, end_s=17)
    records.status[200:220] = 503
    tried = judge_rate(summarise_runs(50, 50, [(as_outcome(records), QUIET)], SCENARIO), SCENARIO)
    assert (tried.kept, tried.why) == (False, "20 of 750 requests failed")
