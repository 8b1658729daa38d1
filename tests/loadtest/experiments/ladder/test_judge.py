"""A rung whose setting is not seen on, or was on before, has no figure; and what a figure means."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadtest.experiments.ladder.judge import (
    NO_HELP,
    SLOWS,
    UNKNOWN,
    describe_setting,
    find_setting_doubts,
    judge_left_out,
    judge_step,
)
from loadtest.experiments.ladder.observe import Worker, judge_workers
from loadtest.experiments.ladder.rungs import find_rung, list_rungs
from loadtest.results.stats import Interval
from tests.loadtest.experiments.ladder.results import see

RUNGS = list_rungs("resnet50")


def find_doubts(name, before, **changes):
    rung, below = find_rung(RUNGS, name), find_rung(RUNGS, before)
    found = find_setting_doubts(rung, see(rung, **changes), see(below))
    return [f"{one.state}: {one.evidence}" for one in found]


@pytest.mark.parametrize("rung", [one for one in RUNGS if one.before], ids=lambda one: one.name)
def test_a_rung_that_is_what_it_says_has_no_doubt(rung):
    assert find_doubts(rung.name, rung.before) == []


def test_a_setting_that_is_silently_not_on_is_found():
    assert find_doubts("jemalloc", "freeze", allocator="system") == [
        "its setting is not in effect: allocator asked jemalloc: got system (seen)",
        "its setting was in effect before: allocator: system (seen) on freeze too",
    ]


def test_a_setting_that_was_on_before_is_found():
    rung, before = find_rung(RUNGS, "ipex"), find_rung(RUNGS, "channels-last")
    (doubt,) = find_setting_doubts(rung, see(rung), see(before, ipex="on"))
    assert (doubt.state, doubt.invalid) == ("its setting was in effect before", True)
    assert doubt.evidence == "ipex: on (seen) on channels-last too"


def test_another_setting_that_changed_too_is_found():
    assert find_doubts("openmp", "jemalloc", allocator="system") == [
        "another setting is not as asked: allocator asked jemalloc: got system (seen)"
    ]


def test_what_was_seen_is_told_before_and_now():
    rung = find_rung(RUNGS, "jemalloc")
    told = describe_setting(rung, see(rung), see(find_rung(RUNGS, "freeze")))
    assert told == "allocator: system (seen) → jemalloc (seen)"


@pytest.mark.parametrize(
    ("low", "high", "step", "left_out"),
    [
        (1.01, 1.2, "helps", "is better so on this host"),
        (0.8, 0.99, SLOWS, "is worth having"),
        (0.98, 1.02, NO_HELP, "is not missed on this host"),
        (0.5, 2.0, UNKNOWN, UNKNOWN),
    ],
)
def test_verdicts(low, high, step, left_out):
    ratio = Interval(value=1.0, low=low, high=high)
    assert (judge_step(ratio), judge_left_out(ratio)) == (step, left_out)


def make_worker(**changes):
    described = {
        "archive_id": "abc",
        "precision": "bf16",
        "self_check": {"relative_error": 0.006},
        "engine": {"name": "ipex"},
        "graph": {"kind": "frozen torchscript"},
        "memory_format": {
            "applicable": True,
            "convolutions": 53,
            "channels_last_weights": 53,
            "input": "channels_last",
        },
        "allocator": {"name": "jemalloc", "library": "/usr/lib/libjemalloc.so.2"},
        "openmp": {"name": "intel", "library": "/env/lib/libiomp5.so"},
        "packing": {"applicable": True, "on": True, "row_tokens": 128},
        "fill": {"fill": 0.97},
    }
    values = {
        "pid": 1,
        "cpus": (0,),
        "launched": True,
        "libraries": ("libintel-ext-pt-cpu.so", "libc.so.6"),
        "environment": {"CPU_KIT_OPTIONS": '{"resnet50":{"precision":"bf16"}}'},
        "described": {**described, **changes.pop("described", {})},
    }
    return Worker(**{**values, **changes})


def look(*workers, batch_size=16):
    seen = judge_workers(workers, batch_size=batch_size, model="resnet50")
    return {item: one.state for item, one in seen.items()}


def test_a_live_server_is_read_in_the_words_of_the_settings():
    assert look(make_worker(), make_worker(pid=2, cpus=(1,))) == {
        "handler": "kit",
        "channels_last": "on",
        "ipex": "on",
        "graph": "frozen torchscript",
        "allocator": "jemalloc",
        "openmp": "intel",
        "workers": "pinned",
        "precision": "bf16",
        "batches": "batches",
        "buckets": "on",
        "packing": "on",
    }


@pytest.mark.parametrize(
    ("item", "change", "state"),
    [
        ("precision", {"described": {"self_check": {"relative_error": 1e-6}}}, "fp32"),
        ("ipex", {"libraries": ("libc.so.6",)}, "off"),
        ("workers", {"launched": False}, "one worker"),
        ("packing", {"described": {"packing": {"applicable": True, "on": False}}}, "off"),
        ("packing", {"described": {"packing": {"applicable": False, "on": False}}}, "on"),
        ("buckets", {"environment": {"CPU_KIT_OPTIONS": '{"resnet50":{"off":["buckets"]}}'}}, "off"),
    ],
)
def test_what_is_asked_for_is_not_believed(item, change, state):
    assert look(make_worker(**change))[item] == state


def test_workers_that_share_cpus_are_not_pinned():
    assert look(make_worker(cpus=(0, 1)), make_worker(pid=2, cpus=(0, 1)))["workers"] == "not pinned"


def test_workers_that_differ_are_in_no_known_state():
    other = make_worker(pid=2, cpus=(1,), libraries=("libc.so.6",))
    assert look(make_worker(), other)["ipex"] == "on and off"


def test_a_stock_worker_is_read_by_what_is_mapped():
    stock = replace(make_worker(launched=False, libraries=("libtcmalloc.so.4",)), described={})
    seen = look(stock)
    told = {item: seen[item] for item in ("handler", "allocator", "precision")}
    assert told == {"handler": "stock", "allocator": "tcmalloc", "precision": None}
