"""Finds workers that hang: stopped, or without CPU time while requests wait for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from server.activity import AT_WORK, Activity, read_activity

STILL_SECONDS = 30.0
"""TorchServe hands a free worker the next batch within milliseconds, so one that is sound uses its core."""


@dataclass(frozen=True, kw_only=True)
class _Mark:
    """From when on a worker's CPU time is watched, and what it was then."""

    since: float
    cpu_seconds: float
    start_ticks: int


class Hangs:
    """Watches the workers of one model from look to look."""

    def __init__(self, read: Callable[[int], Activity | None] = read_activity) -> None:
        self._read = read
        self._marks: dict[int, _Mark] = {}

    def find(self, pids: Iterable[int], waiting: int, now: float) -> str:
        """Which workers hang and why we think so; empty when none does."""
        found = {pid: activity for pid in pids if (activity := self._read(pid))}
        self._marks = {pid: self._mark(pid, activity, waiting, now) for pid, activity in found.items()}
        problems = [self._explain(pid, activity, waiting, now) for pid, activity in found.items()]
        return ", ".join(problem for problem in problems if problem)

    def _mark(self, pid: int, activity: Activity, waiting: int, now: float) -> _Mark:
        mark = self._marks.get(pid)
        if mark and waiting and mark.start_ticks == activity.start_ticks:
            used = activity.cpu_seconds - mark.cpu_seconds
            if used <= AT_WORK * (now - mark.since):
                return mark
        return _Mark(since=now, cpu_seconds=activity.cpu_seconds, start_ticks=activity.start_ticks)

    def _explain(self, pid: int, activity: Activity, waiting: int, now: float) -> str:
        if activity.stopped:
            return f"worker {pid} is stopped"
        still = now - self._marks[pid].since
        if still < STILL_SECONDS:
            return ""
        return f"worker {pid} has used no CPU time for {still:.0f} s while {waiting} requests wait"
