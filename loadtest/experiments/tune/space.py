"""Which plans are worth a race: all are simulated with the overheads of this server, the best are kept."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from loadtest.experiments.tune.candidate import DEFAULT, Candidate, Layout, list_candidates
from loadtest.simulation.limit import find_queueing_limit
from loadtest.simulation.overhead import LivePoint, find_overhead
from loadtest.simulation.search import LONG, REFINED, Limit, find_peak, rank_plans
from loadtest.simulation.server import ServerPlan
from loadtest.simulation.service import NO_OVERHEAD, Overhead, ServiceTimes, read_service

DELAYS_MS = (1, 5, 20)
"""TorchServe's least, and what fills batches; the wait is under a lock that idle workers need."""
FINE_BEST = 5
"""So many batch sizes and layouts, and the best of each layout, are tried with every delay; the others with
the least alone."""
LEAST_SHARE = 0.85
"""Of the best predicted peak: predictions are not so far off that less could win."""
LAYOUT_SHARE = 0.7
"""The same for the best plan of each layout: a layout's pace is that of one short window of its own, and in
two runs within an hour that of one worker of both cores was 1.13 and 0.95 of the other's (BERT, Zen 4)."""


Overheads = tuple[tuple[Layout, Overhead], ...]
"""What a live server adds to the times of batches, by layout: a worker of two cores waits for both of them,
and does what only one thread does on one."""
Points = tuple[tuple[Layout, LivePoint], ...]


@dataclass(frozen=True, kw_only=True)
class Space:
    """All plans of one model, with what is known of their times."""

    times: tuple[tuple[Layout, ServiceTimes], ...]
    """Of each layout, the default's first."""
    batches: tuple[int, ...]
    """That may be served."""
    default: Candidate
    queue: int
    instances: int
    """Behind a door; 0 is no door."""
    limit: Limit

    def simulate(self, one: Candidate) -> ServerPlan:
        return one.simulate_as(self.queue, self.instances)

    def find_candidate(self, name: str) -> Candidate:
        return self.default if name == DEFAULT else Candidate.parse(name)

    def find_times(self, one: Candidate, overheads: Overheads) -> ServiceTimes:
        return self.load_times(one.layout, overheads)

    def load_times(self, layout: Layout, overheads: Overheads) -> ServiceTimes:
        """With what a server of that layout adds to them."""
        return replace(dict(self.times)[layout], overhead=dict(overheads).get(layout, NO_OVERHEAD))

    def list_first(self) -> list[str]:
        """The default, and its batch and delay in each other layout: what `start` measures."""
        others = (layout for layout, _ in self.times if layout != self.default.layout)
        plans = (replace(self.default, workers=workers, cores_per_worker=cores) for workers, cores in others)
        return [DEFAULT, *(one.name for one in plans)]

    def make_point(self, one: Candidate, **figures: Any) -> LivePoint:
        """Of a plan as it was measured."""
        return LivePoint(plan=self.simulate(one), service=dict(self.times)[one.layout], **figures)


def read_space(asked: Mapping[str, Any]) -> Space:
    """From the plain values that a result keeps."""
    profiles = {(one["workers"], one["cores_per_worker"]): one["service"] for one in asked["profiles"]}
    limit = asked["limit"]
    return Space(
        times=tuple(
            ((workers, cores), read_service(service, f"the profile of {workers} × {cores} cores"))
            for (workers, cores), service in profiles.items()
        ),
        batches=tuple(asked["batches"]),
        default=Candidate(**asked["default"]),
        queue=int(asked["queue"]),
        instances=int(asked["instances"]),
        limit=Limit(percentile=float(limit["percentile"]), seconds=float(limit["ms"]) / 1000),
    )


@functools.lru_cache(maxsize=32)
def find_overheads(space: Space, points: Points) -> Overheads:
    """What this server takes beyond the model's own times; a layout not measured has the default's."""
    seen = {layout: find_overhead(point) for layout, point in points}
    default = seen.get(space.default.layout, NO_OVERHEAD)
    return tuple((layout, seen.get(layout, default)) for layout, _ in space.times)


@functools.lru_cache(maxsize=32)
def find_limit(space: Space, overheads: Overheads = ()) -> float:
    """The queueing limit of the times alone, or with what a server adds to them."""
    times = ((layout[0], space.load_times(layout, overheads)) for layout, _ in space.times)
    return find_queueing_limit(times, space.limit)


def find_ideal(space: Space) -> float:
    """What the best plan would serve if batches alone took time: TorchServe's own share of the queueing
    limit, as it answers in order, and whole batches at once."""
    ((_, peak), *_) = _rank(space, ())
    return peak


@functools.lru_cache(maxsize=128)
def predict(space: Space, points: Points, name: str) -> float:
    """The peak of one plan, with what its points told of this server."""
    one = space.find_candidate(name)
    times = space.find_times(one, find_overheads(space, points))
    return find_peak(space.simulate(one), times, space.limit, requests=LONG)


def predict_best(space: Space, points: Points, most: int) -> dict[str, float]:
    """Plan → peak, the best first: the default, and at most so many others that may beat it, the best of each
    layout before all others.

    Of each layout and batch size only the best delay: plans that differ in it alone differ little.
    """
    ranked = _rank(space, points)
    top, others = ranked[0][1], [(one, peak) for one, peak in ranked if peak and one != space.default]
    leaders: dict[Layout, tuple[str, float]] = {}
    near: dict[tuple[Layout, int], tuple[str, float]] = {}
    for one, peak in others:
        if peak >= LAYOUT_SHARE * top:
            leaders.setdefault(one.layout, (one.name, peak))
        if peak >= LEAST_SHARE * top:
            near.setdefault((one.layout, one.batch), (one.name, peak))
    chosen = list(dict.fromkeys([*leaders.values(), *near.values()]))[:most]
    best = {DEFAULT: predict(space, points, DEFAULT), **dict(chosen)}
    return dict(sorted(best.items(), key=lambda item: -item[1]))


@functools.lru_cache(maxsize=32)
def _rank(space: Space, points: Points) -> list[tuple[Candidate, float]]:
    """The best first: every batch size with the least delay, then the best of them, and of each layout, with
    all delays."""
    layouts = [layout for layout, _ in space.times]
    first = _simulate(space, points, list_candidates(layouts, space.batches, DELAYS_MS[:1]), refined=0)
    leaders = {one.layout: one for one, _ in reversed(first)}
    fine = [
        other
        for one in dict.fromkeys([*(one for one, _ in first[:FINE_BEST]), *leaders.values()])
        for other in list_candidates([one.layout], [one.batch], DELAYS_MS)
    ]
    return _simulate(space, points, fine, refined=REFINED)


def _simulate(
    space: Space, points: Points, plans: Sequence[Candidate], *, refined: int
) -> list[tuple[Candidate, float]]:
    overheads = find_overheads(space, points)
    # Two layouts of one simulated plan differ in their times, so the pair names the candidate.
    by_plan = {(space.simulate(one), space.find_times(one, overheads)): one for one in plans}
    ranked = rank_plans(by_plan, space.limit, refined=refined)
    return [(by_plan[one.plan, one.service], one.peak) for one in ranked]
