"""Finds workers that hang: stopped, asleep while requests wait, busy for longer than any batch, out of turn.

A worker's main thread goes to sleep after each batch, until it gets the next one. So a thread that was not
seen to do so has finished nothing, and what it used of CPU time tells a hang that sleeps from one that spins.
"""

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

    last: Activity
    """What it was like when its main thread was last seen to have slept or woken."""
    woke_at: float
    """When that was."""
    answered: int
    """Known requests the model had answered by then."""
    cpu_seconds: float
    computed_at: float
    """When it had used CPU time, or no request waited for it."""
    waited_since: float
    """Since when requests wait without a break."""

    def look(self, activity: Activity, waiting: int, answered: int, now: float) -> None:
        if activity.switches != self.last.switches:
            self.last, self.woke_at, self.answered = activity, now, answered
        if not waiting:
            self.waited_since = now
        if not waiting or activity.cpu_seconds - self.cpu_seconds > AT_WORK * (now - self.computed_at):
            self.cpu_seconds, self.computed_at = activity.cpu_seconds, now

    def is_asleep(self, activity: Activity, now: float) -> bool:
        """Whether it computed nothing since its main thread last woke."""
        return activity.cpu_seconds - self.last.cpu_seconds <= AT_WORK * (now - self.woke_at)


class Hangs:
    """Watches the workers of one model from look to look."""

    def __init__(self, batch_seconds: float, read: Callable[[int], Activity | None] = read_activity) -> None:
        """No batch takes longer than `batch_seconds`."""
        self._batch_seconds = batch_seconds
        self._read = read
        self._workers: dict[int, _Worker] = {}
        self.hanging: tuple[int, ...] = ()
        """Those that were found the last time, but for stopped ones."""

    def find(self, pids: Iterable[int], waiting: int, answered: int, now: float) -> str:
        """Which workers hang and why we think so; empty when none does.

        `waiting` counts the queue, `answered` the known requests that workers of the model answered so far.
        """
        found = {pid: activity for pid in pids if (activity := self._read(pid))}
        self._workers = {pid: self._look(pid, found[pid], waiting, answered, now) for pid in found}
        problems = {pid: self._explain(pid, found[pid], waiting, answered, now) for pid in found}
        # Whether one is stopped can be seen at any time: by a look of seconds ago nobody must end it.
        self.hanging = tuple(pid for pid, problem in problems.items() if problem and not found[pid].stopped)
        return ", ".join(f"worker {pid} {problem}" for pid, problem in problems.items() if problem)

    def _look(self, pid: int, activity: Activity, waiting: int, answered: int, now: float) -> _Worker:
        worker = self._workers.get(pid)
        if worker is None or worker.last.start_ticks != activity.start_ticks:
            worker = _Worker(
                last=activity,
                woke_at=now,
                answered=answered,
                cpu_seconds=activity.cpu_seconds,
                computed_at=now,
                waited_since=now,
            )
        worker.look(activity, waiting, answered, now)
        return worker

    def _explain(self, pid: int, activity: Activity, waiting: int, answered: int, now: float) -> str:
        worker = self._workers[pid]
        if activity.stopped:
            return "is stopped"
        if (still := now - worker.computed_at) >= STILL_SECONDS:
            return f"has used no CPU time for {still:.0f} s while {waiting} requests wait"
        if (busy := now - max(worker.woke_at, worker.waited_since)) > self._batch_seconds:
            return f"has finished nothing for {busy:.0f} s while {waiting} requests wait"
        turns = answered - worker.answered
        too_long = now - worker.woke_at > self._batch_seconds
        if turns >= TURNS * len(self._workers) and (too_long or worker.is_asleep(activity, now)):
            return f"has taken none of the last {turns} known requests"
        return ""
