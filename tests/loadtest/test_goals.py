"""Met or missed follows from the figures alone, at the limit too."""

from __future__ import annotations

import dataclasses
import os

import pytest

from loadtest.errors import LoadTestError
from loadtest.goals import Goal, faster, render_goal, share_of
from loadtest.rows.bert import describe_padding, find_spikes
from loadtest.rows.load import describe_start, judge_start
from loadtest.rows.resnet50 import judge_latency
from loadtest.starts import Start, find_worker_birth
from server.processes import LAUNCHER_MODULE, WORKER_SCRIPT, Process
from tests.loadtest.making import make_measurement, make_samples, make_turns


def goal(value, *, limit=12.0, at_least=True):
    return Goal(what="a / b", value=value, limit=limit, at_least=at_least, unit="×")


@pytest.mark.parametrize(
    ("value", "at_least", "met"),
    [
        (12.0, True, True),
        (11.99, True, False),
        (12.0, False, True),
        (12.01, False, False),
        (float("nan"), True, False),
        (float("nan"), False, False),
    ],
)
def test_a_goal_is_met_from_its_limit_on(value, at_least, met):
    assert goal(value, at_least=at_least).met is met


@pytest.mark.parametrize(
    ("one", "line"),
    [
        (goal(12.34), "a / b: 12.34×, target ≥ 12×: met"),
        (goal(11.0), "a / b: 11×, target ≥ 12×: MISSED"),
        (goal(11.0, at_least=False), "a / b: 11×, target ≤ 12×: met"),
    ],
)
def test_a_goal_prints_both_figures_and_the_verdict(one, line):
    assert render_goal(one) == line


def test_ratios_are_of_medians():
    fast = make_turns("kit", *(make_measurement(rate) for rate in (120.0, 130.0, 900.0)))
    slow = make_turns("stock", *(make_measurement(rate) for rate in (1.0, 10.0, 11.0)))
    assert faster(fast, slow, at_least=12).value == 13.0
    assert share_of(slow, fast, at_least=95).value == pytest.approx(100 * 10 / 130)


@pytest.mark.parametrize(
    ("p50", "p99", "met"),
    [(13.5, 20.25, [True, True]), (13.6, 13.7, [False, True]), (10.0, 15.1, [True, False])],
)
def test_latency_is_judged_by_both_targets(p50, p99, met):
    assert [one.met for one in judge_latency(p50=p50, p99=p99, alone=10.0)] == met


def test_a_latency_limit_says_where_it_comes_from():
    first, _ = judge_latency(p50=12.0, p99=13.0, alone=10.0)
    assert render_goal(first) == (
        "p50 over REST: 12 ms, target ≤ 13.5 ms (1.15 × 10 ms in-process + 2 ms): met"
    )


START = Start(
    model="bert", arguments=(), server_seconds=29.0, worker_seconds=24.9, load_seconds=(20.0, 21.04)
)


@pytest.mark.parametrize(("seconds", "met"), [(25.0, True), (25.1, False)])
def test_a_workers_start_to_ready_is_judged(seconds, met):
    assert judge_start("bert int8", dataclasses.replace(START, worker_seconds=seconds)).met is met


def test_a_start_says_what_is_in_it():
    assert describe_start("bert int8", START) == (
        "bert int8: the handlers' own load 20.0, 21.0 s; server's start to ready 29.0 s"
    )


def make_process(start_seconds, *words):
    ticks = round(start_seconds * os.sysconf("SC_CLK_TCK"))
    return Process(pid=1, start_ticks=ticks, parent_pid=1, command=words)


def test_a_worker_is_born_with_its_launcher():
    worker = (WORKER_SCRIPT, "--sock-type")
    processes = [
        make_process(104.5, "python", *worker),
        make_process(103.5, "python", "-m", LAUNCHER_MODULE, *worker),
        make_process(101.0, "java"),
        make_process(100.0, "torchserve"),
    ]
    assert find_worker_birth(processes) == 3.5
    assert find_worker_birth([processes[0], processes[3]]) == 4.5


def test_a_server_without_workers_is_said():
    with pytest.raises(LoadTestError, match="no worker process"):
        find_worker_birth([make_process(100.0, "torchserve")])


def workers(tokens, padded, runs):
    return [{"padding": {"tokens": tokens, "padded_tokens": padded, "runs": runs}}] * 2


def test_padding_is_what_was_computed_in_between():
    line = describe_padding("kit", workers(100, 1000, 10), workers(700, 1800, 20))
    # 1,200 of 1,600 tokens were real, in 20 runs.
    assert line == "padding of kit: 25.0 % of 1600 tokens computed in 20 runs (80 tokens a run)"


def test_an_archive_that_counts_no_padding_is_said():
    with pytest.raises(LoadTestError, match=r"no padding\.tokens: the archive is of an older kit"):
        describe_padding("kit", [{"padding": {}}], [{"padding": {}}])


FLAT, SPIKED = [0.1] * 1000, [1.0] * 5 + [0.1] * 995


@pytest.mark.parametrize(("first", "met"), [(FLAT, True), (SPIKED, False)])
def test_a_compile_spike_after_ready_is_found_even_in_the_warm_up(first, met):
    turns = make_turns(
        "kit",
        make_measurement(samples=make_samples(FLAT)),
        make_measurement(samples=make_samples(FLAT)),
        warm_up=[make_measurement(samples=make_samples(first))],
    )
    lines, found = find_spikes(turns)
    assert found.met is met
    assert "3000 requests since ready" in lines[0]
    assert lines[0].endswith(f"largest {1000 * max(first):.0f} ms")
