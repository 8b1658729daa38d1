"""What a live server adds to the times of batches, layout by layout."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from loadtest.experiments.tune.candidate import DEFAULT, Layout
from loadtest.experiments.tune.space import Points, Space, fit_space, predict, read_space
from loadtest.results.stats import pick
from loadtest.simulation.overhead import find_saturated_rate
from loadtest.simulation.search import LONG, find_peak
from loadtest.simulation.server import replay
from loadtest.simulation.service import Overhead, ServiceTimes
from tests.loadtest.experiments.tune.live import plan
from tests.loadtest.experiments.tune.results import make_asked, make_course, make_profile

ONE_CORE, TWO_CORES = (2, 1), (1, 2)
PROFILES = [make_profile(*ONE_CORE), make_profile(*TWO_CORES, 0.55)]
LIVE = {
    ONE_CORE: Overhead(per_batch_s=0.003, per_request_s=0.003),
    TWO_CORES: Overhead(per_batch_s=0.002, per_request_s=0.0025, outside_s=0.001),
}
"""A request costs a worker of two cores more than half of what it costs one of a core."""


@pytest.fixture(scope="module")
def space() -> Space:
    return read_space(make_asked(plan(4), profiles=PROFILES))


def serve(space: Space, layout: Layout) -> ServiceTimes:
    return dataclasses.replace(dict(space.times)[layout], overhead=LIVE[layout])


def measure_start(space: Space, layouts: list[Layout]) -> Points:
    points = []
    for one in (space.find_candidate(name) for name in space.list_first()):
        if one.layout not in layouts:
            continue
        server, times = space.simulate(one), serve(space, one.layout)
        due = np.cumsum(np.random.default_rng(5).exponential(1 / 75, 900)) - 1
        found = replay(server, times, due, begin_s=0, end_s=math.inf, seed=3)
        seen = {"p50_s": pick(found, 50), "quoted_s": pick(found, 99)}
        points += [
            (one.layout, space.make_point(one, done=find_saturated_rate(server, times))),
            (one.layout, space.make_point(one, due=tuple(due.tolist()), begin_s=0.0, **seen)),
        ]
    return tuple(points)


@pytest.mark.parametrize("name", ["w2x1-b8-d1", "w1x2-b8-d1", "w1x2-b2-d5"])
def test_plans_of_each_layout_are_predicted_as_they_are(space, name):
    one = space.find_candidate(name)
    truth = find_peak(space.simulate(one), serve(space, one.layout), space.limit, requests=LONG)
    points = measure_start(space, [ONE_CORE, TWO_CORES])
    assert predict(space, points, name) == pytest.approx(truth, rel=0.04)


def test_a_layout_that_was_not_measured_is_the_defaults_with_a_requests_share_of_its_cores(space):
    overheads = dict(fit_space(space, measure_start(space, [ONE_CORE])))
    own, other = overheads[ONE_CORE], overheads[TWO_CORES]
    assert own.per_request_s > 0
    assert other == dataclasses.replace(own, per_request_s=own.per_request_s / 2)


def test_without_points_nothing_is_added(space):
    assert set(dict(fit_space(space, ())).values()) == {Overhead()}


def test_each_layout_is_measured_first():
    turns = make_course(plan(4), profiles=PROFILES).make_start().turns
    assert [turn.member.name for turn in turns] == [DEFAULT, DEFAULT, "w1x2-b4-d1", "w1x2-b4-d1"]
    assert [turn.scenario.is_open for turn in turns] == [False, True, False, True]


def test_a_layout_that_cannot_keep_the_limit_is_not_measured():
    slow = [PROFILES[0], make_profile(*TWO_CORES, 20.0)]
    turns = make_course(plan(4), profiles=slow).make_start().turns
    assert {turn.member.name for turn in turns} == {DEFAULT}
