"""Scenarios one after the other; a share is of what a short closed loop reaches; INVALID gives no figure."""

from __future__ import annotations

import pytest

from loadtest.errors import LoadTestError
from loadtest.experiments.measure import judge, make_experiment
from loadtest.scenarios.scenario import AUTO, Latency
from loadtest.systems.fleet import Member
from tests.loadtest.making import make_kept, make_scenario, make_series
from tests.loadtest.simulated import simulate_series


def open_nothing(_):
    raise AssertionError("a plan brings nothing up")


MEMBER = Member(name="kit", open=open_nothing)
CLOSED = make_scenario("closed", steps=(AUTO, 8), repeats=3)
OPEN = make_scenario("open", steps=("50%",), latency=Latency(percentile=95.0, limit_ms=200.0), repeats=2)
PROBE = make_scenario("closed", name="bert-open-probe")


def test_levels_take_turns_and_a_share_needs_a_probe(tmp_path):
    experiment = make_experiment(MEMBER, [CLOSED, OPEN])
    first = experiment.next_block(make_kept(tmp_path, {}))
    assert (first.name, [turn.level for turn in first.turns], first.repeats) == ("bert-closed", [AUTO, 8], 3)
    done = {"bert-closed": [make_series()]}
    probe = experiment.next_block(make_kept(tmp_path, done))
    assert (probe.name, probe.turns[0].level, probe.turns[0].scenario.is_open) == (
        "bert-open-probe",
        AUTO,
        False,
    )
    done["bert-open-probe"] = [make_series("kit", [40.0], scenario=PROBE)]
    share = experiment.next_block(make_kept(tmp_path, done))
    assert (share.name, share.turns[0].level) == ("bert-open", 20.0)
    done["bert-open"] = [make_series()]
    assert experiment.next_block(make_kept(tmp_path, done)) is None


def test_a_doubtful_probe_ends_it(tmp_path):
    wrong = make_series("kit", [40.0], scenario=PROBE, errors=4)
    kept = make_kept(tmp_path, {"bert-open-probe": [wrong]})
    with pytest.raises(LoadTestError, match=r"what 100 % is cannot be told: .*4 of 400 requests failed"):
        make_experiment(MEMBER, [OPEN]).next_block(kept)


def test_rates_are_told_and_latencies_keep_their_limit(tmp_path):
    closed = simulate_series(make_scenario("closed", repeats=3), level=16)
    open_ = simulate_series(OPEN, level=20)
    blocks = {"bert-closed": [closed], "bert-open-probe": [make_series(scenario=PROBE)], "bert-open": [open_]}
    rate, latency = judge(make_kept(tmp_path, blocks))
    assert (rate.limit, rate.met) == (None, True)
    assert rate.figure.value == pytest.approx(40, rel=0.03)
    assert (latency.limit, latency.at_least, latency.met) == (200.0, False, True)
    assert latency.figure.low <= latency.figure.value <= latency.figure.high


def test_a_limit_that_is_not_kept_is_missed(tmp_path):
    strict = make_scenario("open", latency=Latency(percentile=95.0, limit_ms=1.0), repeats=2)
    (verdict,) = judge(make_kept(tmp_path, {"bert-open": [simulate_series(strict, level=20)]}))
    assert (verdict.met, verdict.figure is None) == (False, False)


def test_an_invalid_level_gives_no_figure(tmp_path):
    (verdict,) = judge(make_kept(tmp_path, {"bert-closed": [make_series(generator_cores=(0.99,))]}))
    assert (verdict.met, verdict.figure) == (False, None)
    assert "the generator used too much CPU" in verdict.why
