"""Arrivals are planned without a look at any server, and the payloads are mixed evenly."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from loadtest.drivers.schedule import order_payloads, plan_arrivals, share_count


def test_constant_arrivals_are_a_clock():
    due = plan_arrivals("constant", rate=4, begin_s=-1, end_s=1, seed=1)
    assert due.tolist() == [-1, -0.75, -0.5, -0.25, 0, 0.25, 0.5, 0.75]


def test_poisson_gaps_are_exponential():
    due = plan_arrivals("poisson", rate=50, begin_s=0, end_s=400, seed=3)
    gaps = np.diff(due)
    assert len(due) == pytest.approx(20_000, rel=0.03)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.03)
    assert (due.min() >= 0, due.max() < 400) == (True, True)


def test_the_same_seed_gives_the_same_arrivals_and_another_does_not():
    plan = [plan_arrivals("poisson", rate=5, begin_s=0, end_s=10, seed=seed).tolist() for seed in (1, 1, 2)]
    assert plan[0] == plan[1] != plan[2]


def test_every_payload_comes_once_in_each_round():
    order = list(itertools.islice(order_payloads(10, seed=1), 25))
    assert sorted(order[:10]) == sorted(order[10:20]) == list(range(10))
    assert order[:10] != order[10:20]
    assert order == list(itertools.islice(order_payloads(10, seed=1), 25))


def test_several_generators_stop_together_after_so_many():
    assert [share_count(20, worker=worker, workers=3) for worker in range(3)] == [7, 7, 6]
    assert share_count(None, worker=0, workers=1) is None
