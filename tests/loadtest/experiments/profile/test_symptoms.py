"""Each planted fault is seen in its own figure and in no other, and a healthy system shows none.

The figures are made by hand: of a healthy worker by those of live ones, with a fault by what it does to them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadtest.experiments.profile.evidence import Operator
from loadtest.experiments.profile.roofline import break_down
from loadtest.experiments.profile.symptoms import FAULTS, find_symptoms
from tests.loadtest.experiments.profile.figures import (
    make_calls,
    make_evidence,
    make_use,
    make_worker,
    plant,
)

HEALTHY = make_evidence()
WANDERING = make_use(0, migrations=9.0, strip=(0, 1, 0, 2) * 5)
CROWD = tuple(make_use(0, tid=number, cores=0.24, waiting=0.7) for number in range(4))
GNU = ({"openmp": {"name": "gnu"}, "allocator": {"name": "jemalloc"}},)
NORMS = (*HEALTHY.operators, Operator(name="aten::batch_norm", calls=424, own_ms=3.0, whole_ms=3.0))
PLANTED = {
    "not pinned": replace(HEALTHY, workers=(make_worker(0, WANDERING), make_worker(1))),
    "two OpenMP runtimes": replace(HEALTHY, described=GNU, libraries=("libgomp.so.1", "libiomp5.so")),
    "not frozen": replace(HEALTHY, operators=NORMS),
    "channels_last off": replace(HEALTHY, lines=tuple(break_down(make_calls(reorders=4)))),
    "memory given back (glibc's malloc)": plant(HEALTHY, minor_faults=40_000.0),
    "memory on another node": plant(HEALTHY, remote=0.98),
    "throttled": plant(HEALTHY, throttled_ms=23.0),
    "too many threads": replace(HEALTHY, workers=(make_worker(0, *CROWD), make_worker(1))),
}


def test_there_is_a_planted_one_of_each():
    assert list(PLANTED) == list(FAULTS)


@pytest.mark.parametrize(("fault", "evidence"), PLANTED.items())
def test_a_fault_is_seen_in_exactly_its_figure(fault, evidence):
    seen = find_symptoms(evidence)
    assert {one.fault for one in seen} == {fault}
    assert {one.figure for one in seen} == {FAULTS[fault][0]}
    assert all(any(letter.isdigit() for letter in one.evidence) for one in seen)


def test_a_healthy_system_shows_none():
    assert find_symptoms(HEALTHY) == []


def test_what_nobody_counts_is_no_symptom():
    silent = make_use(0, migrations=None, involuntary=None, voluntary=None, waiting=None)
    dark = make_worker(0, silent, remote=None, throttled_ms=None)
    nothing = replace(HEALTHY, workers=(dark,), operators=(), lines=(), described=(), runs=0)
    assert find_symptoms(nothing) == []
    assert find_symptoms(replace(nothing, workers=(), series={})) == []


def test_a_thread_that_waits_for_requests_is_no_computing_thread():
    waiting = make_use(0, tid=9, cores=0.05, waiting=0.5)
    assert find_symptoms(replace(HEALTHY, workers=(make_worker(0, make_use(0), waiting),))) == []
