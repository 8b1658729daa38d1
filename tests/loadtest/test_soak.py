"""Memory is compared worker by worker, between the first leg and the last; the tail between the open legs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadtest.answers import AnswerCheck
from loadtest.errors import LoadTestError
from loadtest.experiments.soak import LEGS, ask, run
from loadtest.servers.base import kept_server
from tests.loadtest.making import QUIET, make_load, make_series, reading

EARLY = {"resnet50 11": 1000.0, "bert 12": 2000.0}


def read_soak(tmp_path, late=EARLY, *, latencies=(0.05,) * LEGS, **changes):
    load = make_load(80.0, models=("bert",), name="leg", percentile=99.0)
    ends = [EARLY] * (LEGS - 1) + [late]
    blocks = {"first": [make_series("kit", (100.0,), memory_mib=EARLY)]}
    for number, (end, latency) in enumerate(zip(ends, latencies, strict=True), 1):
        leg = replace(load, name=f"leg {number}")
        series = make_series("kit", (100.0,), load=leg, latency=latency, memory_mib=end, **changes)
        blocks[f"leg-{number}"] = [series]
    asked = ask(kept_server("kit"), ("resnet50", "bert"), seconds=600.0)
    return run(reading(tmp_path, blocks, kind="soak", asked=asked))


@pytest.mark.parametrize(("late", "bounded"), [(1049.9, True), (1050.1, False), (900.0, True)])
def test_five_percent_is_the_limit(tmp_path, late, bounded):
    tail, first, second = read_soak(tmp_path, {**EARLY, "resnet50 11": late}).verdicts
    assert (tail.passed, first.passed, second.passed) == (True, bounded, True)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"late": {"resnet50 11": 1000.0, "bert 13": 2000.0}}, "workers must stay the same: got "),
        ({"late": {}}, "workers must stay the same: got "),
        (
            {"answers": AnswerCheck(checked=100, wrong=1, source="test")},
            "INVALID: 1 of 100 answers are wrong",
        ),
        ({"errors": 1}, "INVALID: 1 of 1000 requests failed"),
    ],
)
def test_what_makes_the_comparison_void_gives_no_figure(tmp_path, changes, why):
    (verdict,) = read_soak(tmp_path, **changes).verdicts
    assert (verdict.passed, verdict.figure) == (False, None)
    assert verdict.why.startswith(why)


def test_a_busy_machine_does_not_make_memory_grow(tmp_path):
    result = read_soak(tmp_path, cpu=replace(QUIET, others=300.0))
    assert result.passed
    assert result.valid


@pytest.mark.parametrize(("last", "passed"), [(0.054, True), (0.056, False), (0.02, True)])
def test_the_tail_may_be_a_tenth_longer_at_the_end(tmp_path, last, passed):
    tail, *_ = read_soak(tmp_path, latencies=(*(0.05,) * (LEGS - 1), last)).verdicts
    assert tail.passed is passed
    assert tail.why.startswith(f"50 ms, then {1000 * last:.0f} ms")


def test_memory_after_each_leg_is_shown(tmp_path):
    memory = read_soak(tmp_path, {**EARLY, "bert 12": 2200.0}).tables[0].frame
    assert memory.iloc[1].tolist() == ["bert 12", 2000.0, 2000.0, 2000.0, 2000.0, 2200.0]


@pytest.mark.parametrize("seconds", [59, 14401])
def test_a_soak_has_bounds(seconds):
    with pytest.raises(LoadTestError, match=f"DURATION must be 60 to 14400: got {seconds}"):
        ask(kept_server("kit"), ("bert",), seconds=seconds)
