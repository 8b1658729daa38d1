"""What a live server adds to the times of batches, layout by layout."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from loadtest.experiments.tune.candidate import DEFAULT, Layout
from loadtest.experiments.tune.space import Points, Space, find_overheads, predict, predict_best, read_space
from loadtest.results.stats import pick
from loadtest.simulation.search import LONG, find_peak
from loadtest.simulation.server import replay, simulate
from loadtest.simulation.service import Overhead, ServiceTimes
from tests.loadtest.experiments.tune.live import plan
from tests.loadtest.experiments.tune.results import make_asked, make_course, make_profile

ONE_CORE, TWO_CORES = (2, 1), (1, 2)
PROFILES = [make_profile(*ONE_CORE), make_profile(*TWO_CORES, 0.55)]
LIVE = {
    ONE_CORE: Overhead(pace=1.2, per_batch_s=0.0072, per_request_s=0.0012),
    TWO_CORES: Overhead(pace=1.1, per_batch_s=0.006, per_request_s=0.001, outside_s=0.001),
}


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
        other_s = LIVE[one.layout].others_s(one.batch) / one.batch
        worker_s = simulate(server, times, np.sort(due), seed=3).worker_s / len(due)
        point = space.make_point(
            one, due=tuple(due.tolist()), begin_s=0.0,
            p50_s=pick(found, 50), worker_s=worker_s, other_s=other_s,
        )  # fmt: skip
        points.append((one.layout, point))
    return tuple(points)


@pytest.mark.parametrize("name", ["w2x1-b8-d1", "w1x2-b8-d1", "w1x2-b2-d5"])
def test_plans_of_each_layout_are_predicted_as_they_are(space, name):
    one = space.find_candidate(name)
    truth = find_peak(space.simulate(one), serve(space, one.layout), space.limit, requests=LONG)
    points = measure_start(space, [ONE_CORE, TWO_CORES])
    assert predict(space, points, name) == pytest.approx(truth, rel=0.04)


def test_a_layout_that_was_not_measured_is_slowed_as_the_default(space):
    overheads = dict(find_overheads(space, measure_start(space, [ONE_CORE])))
    assert overheads[ONE_CORE].per_request_s > 0
    assert overheads[TWO_CORES] == overheads[ONE_CORE]


def test_without_points_nothing_is_added(space):
    assert set(dict(find_overheads(space, ())).values()) == {Overhead()}


def test_each_layout_is_measured_first():
    turns = make_course(plan(4), profiles=PROFILES).make_start().turns
    assert [turn.member.name for turn in turns] == [DEFAULT, DEFAULT, "w1x2-b4-d1", "w1x2-b4-d1"]
    assert [turn.scenario.is_open for turn in turns] == [False, True, False, True]


def test_a_layout_that_cannot_keep_the_limit_is_not_measured():
    slow = [PROFILES[0], make_profile(*TWO_CORES, 20.0)]
    turns = make_course(plan(4), profiles=slow).make_start().turns
    assert {turn.member.name for turn in turns} == {DEFAULT}


@pytest.mark.parametrize(("scale", "raced"), [(0.55, True), (0.62, True), (1.2, False), (20.0, False)])
def test_the_best_of_each_layout_is_raced_unless_it_is_far_behind(scale, raced):
    """The pace of a layout is that of one window."""
    space = read_space(make_asked(plan(16), profiles=[PROFILES[0], make_profile(*TWO_CORES, scale)]))
    predicted = predict_best(space, (), 2)
    others = [space.find_candidate(name) for name in predicted if name != DEFAULT]
    assert (TWO_CORES in [one.layout for one in others]) == raced
    assert len(others) == 2
    best = max(predicted, key=lambda name: predicted[name])
    assert space.find_candidate(best).layout == ONE_CORE
