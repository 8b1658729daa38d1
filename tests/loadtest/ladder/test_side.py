"""A turn is long enough for a slow server's rounds, and its rate leaves the first round out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadtest.ladder.rungs import list_rungs
from loadtest.ladder.side import PARTS, RungSide, count_users, is_unsteady
from loadtest.sides import LocustSide
from tests.loadtest.making import make_measurement, make_samples


def make_side(seconds_each, *, users=8, stretch=1.0, asked):
    """A server that answers one request after the other, each after so many seconds in all its queue."""

    class Fake(LocustSide):
        def measure(self, seconds):
            asked.append(seconds)
            count = int((seconds + 1) / seconds_each) + users
            samples = make_samples([seconds_each] * count)
            ends = samples.start + seconds_each
            starts = (ends - users * seconds_each).clip(0)
            timed = replace(samples, start=starts, latency=ends - starts)
            return make_measurement(samples=timed, seconds=float(ends.max()))

    fake = Fake(server=None, payloads=None, users=users, folder=None, stretch=stretch)
    return RungSide(locust=fake, done=lambda seconds: None)


def test_a_slow_servers_turn_holds_its_first_round_and_two_more():
    asked: list[float] = []
    side = make_side(0.5, asked=asked)
    side.measure(3.0)
    rate = side.measure(3.0).rate
    assert rate == pytest.approx(2.0, rel=0.1)
    assert asked[1] == pytest.approx(3.0 + 8.0, rel=0.3)  # a round takes 4 s, of which one passes in the ramp


def test_a_fast_servers_turn_is_as_long_as_asked():
    asked: list[float] = []
    side = make_side(0.01, asked=asked)
    side.measure(3.0)
    assert side.measure(3.0).parts == ()
    assert asked == [3.0, 3.0]


def test_an_unsteady_servers_turn_is_longer_and_cut_into_parts():
    asked: list[float] = []
    side = make_side(0.1, stretch=4.0, asked=asked)
    side.measure(3.0)
    assert len(side.measure(3.0).parts) == PARTS
    assert asked[1] == pytest.approx(12.0, rel=0.1)


def test_only_stock_as_it_comes_has_more_threads_than_cpus():
    for model in ("resnet50", "bert"):
        assert [rung.name for rung in list_rungs(model) if is_unsteady(rung)] == ["stock"]


def test_users_fill_the_batches_there_are():
    users = {rung.name: count_users(rung) for rung in list_rungs("resnet50")}
    expected = {"stock": 8, "stock-one": 32, "kit-off": 8, "int8": 8, "top": 64}
    assert {name: users[name] for name in expected} == expected
