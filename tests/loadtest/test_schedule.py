"""Arrivals are planned without a look at any server, and the payloads are mixed evenly."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from loadtest.schedule import list_gaps, order_payloads
from tests.loadtest.virtual import VirtualServer, simulate_open


def take(gaps, count):
    return np.array(list(itertools.islice(gaps, count)))


def test_poisson_gaps_are_exponential():
    gaps = take(list_gaps(seed=3), 20_000)
    assert gaps.mean() == pytest.approx(1.0, rel=0.03)
    assert gaps.var() == pytest.approx(1.0, rel=0.06)
    assert (gaps > np.log(20)).mean() == pytest.approx(0.05, rel=0.1)
    assert np.corrcoef(gaps[:-1], gaps[1:])[0, 1] == pytest.approx(0.0, abs=0.03)


@pytest.mark.parametrize("kind", ["arrivals", "payloads"])
def test_the_same_seed_gives_the_same_and_another_does_not(kind):
    made = [order_payloads(9, seed=n) if kind == "payloads" else list_gaps(seed=n) for n in (1, 1, 2)]
    first, again, other = (take(one, 3000).tolist() for one in made)
    assert first == again != other


def test_every_payload_comes_once_in_each_round():
    order = list(itertools.islice(order_payloads(10, seed=1), 20))
    assert sorted(order[:10]) == sorted(order[10:]) == list(range(10))
    assert order[:10] != order[10:]


def test_arrivals_depend_on_no_answer():
    calm, stalled = (
        simulate_open(VirtualServer(service=lambda _, s=seconds: s), rate=20, begin_s=0, end_s=10)
        for seconds in (0.001, 5.0)
    )
    assert calm["due"].tolist() == stalled["due"].tolist()
    assert stalled["ended"].max() > 10 * calm["ended"].max()
