"""Finds workers that hang: stopped, idle while requests wait, or out of turn among idle workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from server.activity import AT_WORK, Activity, read_activity

STILL_SECONDS = 30.0
"""TorchServe hands a free worker the next batch within milliseconds, so one that is sound uses its core."""
TURNS = 2
"""Idle workers wait in line for one lock (Model.pollBatch), so of as many known requests as there are workers
each gets one; twice as many leave no doubt."""


@dataclass(kw_only=True)
class _Worker:
    """One process, and when it was last seen to work."""

    start_ticks: int
    cpu_seconds: float = 0.0
    switches: int = 0
    computed_at: float = 0.0
    """When it had used CPU time, or no request waited for it."""
    answered: int = 0
    """Known requests the model had answered when its main thread was last awake."""

    def look(self, activity: Activity, waiting: int, answered: int, now: float) -> None:
        computed = activity.cpu_seconds - self.cpu_seconds > AT_WORK * (now - self.computed_at)
        if computed or activity.switches != self.switches:
            self.switches, self.answered = activity.switches, answered
        if computed or not waiting:
            self.cpu_seconds, self.computed_at = activity.cpu_seconds, now


class Hangs:
    """Watches the workers of one model from look to look."""

    def __init__(self, read: Callable[[int], Activity | None] = read_activity) -> None:
        self._read = read
        self._workers: dict[int, _Worker] = {}

    def find(self, pids: Iterable[int], waiting: int, answered: int, now: float) -> str:
        """Which workers hang and why we think so; empty when none does.

        `waiting` counts the queue, `answered` the known requests that workers of the model answered so far.
        """
        found = {pid: activity for pid in pids if (activity := self._read(pid))}
        self._workers = {pid: self._look(pid, found[pid], waiting, answered, now) for pid in found}
        problems = [self._explain(pid, found[pid], waiting, answered, now) for pid in found]
        return ", ".join(problem for problem in problems if problem)

    def _look(self, pid: int, activity: Activity, waiting: int, answered: int, now: float) -> _Worker:
        worker = self._workers.get(pid)
        if worker is None or worker.start_ticks != activity.start_ticks:
            worker = _Worker(start_ticks=activity.start_ticks, computed_at=now, answered=answered)
        worker.look(activity, waiting, answered, now)
        return worker

    def _explain(self, pid: int, activity: Activity, waiting: int, answered: int, now: float) -> str:
        worker = self._workers[pid]
        still, turns = now - worker.computed_at, answered - worker.answered
        if activity.stopped:
            return f"worker {pid} is stopped"
        if still >= STILL_SECONDS:
            return f"worker {pid} has used no CPU time for {still:.0f} s while {waiting} requests wait"
        if turns >= TURNS * len(self._workers):
            return f"worker {pid} has answered none of the last {turns} known requests, nor computed"
        return ""
