"""What came out: a row for each plan, the winner against the default, and what may be chosen of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from loadtest.errors import LoadTestError
from loadtest.experiments.tune.candidate import DEFAULT, Candidate
from loadtest.experiments.tune.curve import Seen, compare_peaks, find_peak
from loadtest.experiments.tune.evidence import (
    SATURATED,
    START,
    list_done,
    list_out,
    list_points,
    list_seen,
    list_tried,
)
from loadtest.experiments.tune.race import LIBRARIES, Race
from loadtest.experiments.tune.raced import Raced, RacedPlan, compare_finals, is_gain, list_finals
from loadtest.experiments.tune.space import Space, find_ideal, find_limit, find_overheads, predict, read_space
from loadtest.results.kept import Kept
from loadtest.results.stats import Interval
from loadtest.simulation.search import Limit
from loadtest.trials.block import Verdict
from loadtest.trials.validity import ENDS_OF_A_SEARCH, find_doubts


@dataclass(frozen=True, kw_only=True)
class Row(RacedPlan):
    """One plan of the race."""

    candidate: Candidate
    dropped: bool
    """By its pairs with the leader."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """A library that was tried at the best plan."""

    item: str
    value: str
    ratio: Interval | None
    """Of the peaks, with it over without."""

    @property
    def better(self) -> bool:
        return is_gain(self.ratio)


@dataclass(frozen=True, kw_only=True)
class Outcome(Raced[Row]):
    """Of one model; behind the default the rows are in the order of their peaks."""

    model: str
    queueing_limit: float
    """Of any server with these times of batches."""
    limit_here: float
    """With what this server adds to them."""
    ideal: float
    """Of TorchServe, if batches alone took time."""
    saturated: Mapping[str, float]
    """Plan → requests a second of a closed loop."""
    changes: tuple[Change, ...] = ()

    @property
    def reached(self) -> float:
        """Of the queueing limit."""
        peak = self.best.peak
        return peak.value / self.queueing_limit if peak and peak.known else 0.0

    def describe_row(self, row: Row) -> str:
        """What became of it, in a few words."""
        if row.name == DEFAULT:
            return "replaced" if self.adopted else "stays"
        if row.name == self.winner:
            return "chosen" if self.adopted else "not better"
        return "dropped" if row.dropped else "a tie with the winner" if self.adopted else "not better"


def find_outcome(kept: Kept) -> Outcome:
    """From what is kept alone, finished or not; LoadTestError before the default was measured."""
    if kept.find(START) is None:
        raise LoadTestError(f"{kept.folder.name}: nothing was measured yet")
    space, seen = read_space(kept.asked), list_seen(kept)
    points, done = list_points(space, kept), list_done(kept)
    names = dict.fromkeys((DEFAULT, *list_tried(kept)))
    predicted, out = {name: predict(space, points, name) for name in names}, list_out(kept)
    race = Race(predicted=predicted, limit=space.limit, done=done, out=frozenset(out))
    winner = race.find_winner(seen)
    rows = [_make_row(space.find_candidate(name), name, race, seen, out.get(name, "")) for name in names]
    found = Outcome(
        model=str(kept.asked["model"]),
        limit=space.limit,
        rows=tuple(sorted(rows, key=lambda row: (row.name != DEFAULT, -(row.peak.value if row.peak else 0)))),
        winner=winner,
        ratio=compare_finals(seen, winner, space.limit),
        seen=tuple(seen),
        queueing_limit=find_limit(space),
        limit_here=find_limit(space, find_overheads(space, points)),
        ideal=find_ideal(space),
        saturated=dict(_list_saturated(kept)),
    )
    return replace(found, changes=tuple(_list_changes(seen, found.best.name, space)))


def _make_row(candidate: Candidate, name: str, race: Race, seen: list[Seen], invalid: str) -> Row:
    """The finals' figures of those who were in them, else the race's."""
    own = list_finals(seen, name) or [one for one in seen if one.plan == name]
    why = invalid or ("" if own else "no window of it may be quoted: the machine was not quiet")
    return Row(
        name=name,
        candidate=candidate,
        predicted=race.predicted[name],
        peak=None if why else find_peak(own, race.limit),
        windows=len(own),
        dropped=not why and name not in race.list_left(seen),
        invalid=why,
    )


def _list_saturated(kept: Kept) -> list[tuple[str, float]]:
    """Of closed loops that may be quoted."""
    blocks = [block for name in (START, SATURATED) if (block := kept.find(name))]
    every = [series for block in blocks for series in kept.list_series(block)]
    closed = [
        one for one in every if not one.scenario.is_open and not find_doubts(one, without=ENDS_OF_A_SEARCH)
    ]
    return [(one.system, one.trials[0].rate) for one in closed]


def _list_changes(seen: list[Seen], best: str, space: Space) -> list[Change]:
    """Each against the best plan in the same block."""
    there = [one for one in seen if one.block.startswith(LIBRARIES)]
    names = [name for name in dict.fromkeys(one.plan for one in there) if name != best]
    return [_make_change(space.find_candidate(name), there, best, space.limit) for name in names]


def _make_change(one: Candidate, there: list[Seen], best: str, limit: Limit) -> Change:
    with_it = [seen for seen in there if seen.plan == one.name]
    without = [seen for seen in there if seen.plan == best and seen.block == with_it[0].block]
    return Change(
        item="allocator" if one.allocator else "openmp",
        value=one.allocator or one.openmp,
        ratio=compare_peaks(without, with_it, limit) if without else None,
    )


def judge(kept: Kept) -> list[Verdict]:
    """The plan to serve, and what it gains; no figure where the default could not be measured."""
    try:
        found = find_outcome(kept)
    except LoadTestError as problem:
        return [Verdict(what=f"{kept.asked['model']}: tuned", why=str(problem))]
    default = found.find_row(DEFAULT)
    if default.peak is None:
        return [Verdict(what=f"{found.model}: tuned", why=f"the default plan is INVALID: {default.invalid}")]
    return [_judge_peak(found), *found.judge_gain()]


def _judge_peak(found: Outcome) -> Verdict:
    peak, what = found.best.peak, f"{found.model}, {found.best.name}: highest rate with {found.limit}"
    assert peak is not None
    if not peak.known:
        why = f"{peak.boundary}, and those tried end at {peak.value:.4g}/s; give more BUDGET_MINUTES"
        return Verdict(what=what, why=why)
    why = (
        f"{found.reached:.0%} of the queueing limit, {found.queueing_limit:.1f} ({found.limit_here:.1f} with "
    )
    why += "what TorchServe, the door and the load generator take from the same cores)"
    why += f"; the boundary is a cliff: {peak.cliff}" if peak.cliff else f"; ends by: {peak.boundary}"
    figure = peak.interval or Interval(value=peak.value, low=peak.value, high=peak.value)
    return Verdict(what=what, figure=figure, unit=" requests/s", why=why)


def describe_gain(found: Outcome, folder: str) -> str:
    """A sentence for the plan's reasons."""
    default, best = found.find_row(DEFAULT).peak, found.best.peak
    if default is None or best is None:
        return f"could not be told, trials in {folder}"
    if not best.known and not found.adopted:
        return f"could not be told, {best.boundary} of those that were tried; trials in {folder}"
    if not found.adopted or found.ratio is None:
        told = f"the default is right: {default.value:.4g}/s at {found.limit}, {found.why_not}"
        return f"{told}; trials in {folder}"
    ratio = found.ratio
    return (
        f"{best.value:.4g}/s at {found.limit} against {default.value:.4g}/s of the default "
        f"({ratio.value:.2f}x, {ratio.low:.2f}-{ratio.high:.2f}{found.bound}), "
        f"{found.reached:.0%} of the queueing limit; "
        f"trials in {folder}"
    )


def choose(found: Outcome, *, alone: bool) -> dict[str, Any]:
    """What replaces the default's numbers; workers and libraries are one for all models."""
    default, best = found.find_row(DEFAULT).candidate, found.best.candidate
    chosen: dict[str, Any] = {
        name: {found.model: getattr(best, name)}
        for name in ("batch", "delay_ms")
        if getattr(best, name) != getattr(default, name)
    }
    if alone:
        names = ("workers", "cores_per_worker")
        if any(getattr(best, name) != getattr(default, name) for name in names):
            chosen |= {name: getattr(best, name) for name in names}
        chosen |= {one.item: one.value for one in found.changes if one.better}
    return chosen
