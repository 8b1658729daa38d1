"""The search finds the highest rate that keeps a limit, on servers whose capacity is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from loadtest.experiments.peak import (
    Tried,
    find_peak,
    judge,
    judge_rate,
    make_experiment,
    next_rate,
    plan_duration,
)
from loadtest.scenarios.scenario import AUTO, Latency
from loadtest.systems.fleet import Member
from tests.loadtest.making import make_kept, make_scenario, make_series
from tests.loadtest.simulated import VirtualServer, noisy, series_of_rows, simulate_open, simulate_series

SCENARIO = make_scenario(
    "open", duration_s=15.0, warm_up_s=3.0, repeats=1, latency=Latency(percentile=99.0, limit_ms=300.0)
)


def search(try_rate, start: float) -> list[Tried]:
    tried: list[Tried] = []
    while (rate := next_rate(tried, start)) is not None:
        tried.append(try_rate(rate))
    return tried


def searched(limit: float, start: float) -> list[Tried]:
    """Against a server that keeps the limit up to an exact rate."""
    return search(lambda rate: Tried(rate=rate, kept=rate <= limit, why=""), start)


@pytest.mark.parametrize(("limit", "start"), [(100, 10), (100, 90), (100, 100), (7.3, 50), (41, 10.25)])
def test_the_peak_is_found_within_a_sixteenth_of_the_last_step(limit, start):
    peak = find_peak(searched(limit, start))
    assert peak.value == pytest.approx(limit, rel=0.07)
    assert peak.value <= limit < peak.high


def test_a_server_that_never_keeps_the_limit_has_no_peak():
    assert find_peak(searched(0.0001, 50)) is None


def test_a_server_that_always_keeps_it_ends_the_search_too():
    assert len(searched(1e9, 1)) == 9


def test_a_rate_that_kept_the_limit_above_one_that_did_not_is_luck():
    tried = [Tried(rate=rate, kept=kept, why="") for rate, kept in ((10, True), (20, False), (40, True))]
    assert find_peak(tried).value == 10


def test_runs_are_long_enough_for_the_percentile():
    assert plan_duration(4, 99, 15) == pytest.approx(119.6)
    assert plan_duration(400, 99, 15) == 15


def test_the_peak_of_a_virtual_server_lies_below_its_capacity():
    """Two workers of 50 ms make 40 requests a second; p99 ≤ 300 ms needs some room."""

    def try_virtual(rate: float) -> Tried:
        return judge_rate(simulate_series(long_enough(rate), level=rate))

    assert 25 < find_peak(search(try_virtual, 10)).value < 40


def test_a_backlog_is_not_kept_even_when_the_limit_is():
    generous = replace(SCENARIO, latency=Latency(percentile=99.0, limit_ms=60_000.0))
    random = np.random.default_rng(1001)
    server = VirtualServer(service=noisy(0.05, spread=0.1, random=random), workers=2)
    records = simulate_open(server, rate=60, begin_s=-3, end_s=17, process="poisson")
    tried = judge_rate(series_of_rows([records], generous, level=60))
    assert not tried.kept
    assert "a backlog grows" in tried.why


def test_refused_requests_break_a_rate():
    records = simulate_open(VirtualServer(service=lambda _: 0.001), rate=50, begin_s=-1, end_s=17)
    records.status[200:220] = 503
    tried = judge_rate(series_of_rows([records], SCENARIO, level=50))
    assert (tried.kept, tried.why) == (False, "20 of 750 requests failed")


def open_nothing(_):
    raise AssertionError("a plan brings nothing up")


MEMBER = Member(name="kit", open=open_nothing)
PROBE = make_series("kit", [40.0], scenario=make_scenario("closed", name="bert-peak-probe"))


def long_enough(rate):
    return replace(SCENARIO, name="bert-peak", duration_s=plan_duration(rate, 99, 15))


def make_search(tmp_path, rates):
    blocks = {
        f"bert-{n:02d}": [simulate_series(long_enough(rate), level=rate)] for n, rate in enumerate(rates, 1)
    }
    asked = {"system": "kit", "model": "bert", "percentile": 99.0, "limit_ms": 300.0}
    return make_kept(tmp_path, {"bert-peak-probe": [PROBE], **blocks}, kind="peak", asked=asked)


def test_a_search_begins_with_a_probe_and_a_quarter_of_it(tmp_path):
    experiment = make_experiment(MEMBER, SCENARIO, limit_ms=300)
    first = experiment.next_block(make_kept(tmp_path, {}, kind="peak"))
    assert (first.name, first.turns[0].level) == ("bert-peak-probe", AUTO)
    second = experiment.next_block(make_search(tmp_path, []))
    assert (second.name, second.turns[0].level) == ("bert-01", 10.0)
    assert second.turns[0].scenario.duration_s == pytest.approx(47.8)
    third = experiment.next_block(make_search(tmp_path, [10.0]))
    assert (third.name, third.turns[0].level) == ("bert-02", 20.0)


def test_the_verdict_is_the_peak_with_the_rate_that_broke_it(tmp_path):
    (verdict,) = judge(make_search(tmp_path, [10.0, 60.0]))
    assert (verdict.figure.value, verdict.figure.high, verdict.met) == (10.0, 60.0, True)


def test_a_doubtful_rate_ends_the_search_without_a_figure(tmp_path):
    late = make_series("kit", [40.0], scenario=replace(SCENARIO, name="bert-peak"), generator_cores=(0.95,))
    asked = {"system": "kit", "model": "bert", "percentile": 99.0, "limit_ms": 300.0}
    kept = make_kept(tmp_path, {"bert-peak-probe": [PROBE], "bert-01": [late]}, kind="peak", asked=asked)
    assert make_experiment(MEMBER, SCENARIO, limit_ms=300).next_block(kept) is None
    (verdict,) = judge(kept)
    assert (verdict.met, verdict.figure) == (False, None)
    assert "the generator used too much CPU" in verdict.why
