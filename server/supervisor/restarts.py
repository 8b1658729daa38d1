"""When a part that ended is started again (the first time at once, then after longer and longer pauses), and
what the record says of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from config.terminal import Report
from server.supervisor.record import CAUSES_KEPT, Cause, Part, Phase, tell_time

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
WELL_S = 300.0
"""What ran for so long is not in a circle of failures: the next pause is a short one again."""


class Restarts:
    """Of one part."""

    def __init__(self, name: str, report: Report, now: Callable[[], float] = time.monotonic) -> None:
        self.part = Part(since=tell_time())
        self._name, self._report, self._now = name, report, now
        self._began = self._due = self._pause = 0.0

    @property
    def due(self) -> bool:
        """Whether the pause is over."""
        return self._now() >= self._due

    def note_start(self) -> None:
        """It is started now."""
        self._began = self._now()

    def note_end(self, cause: str) -> None:
        """It has ended, and why: the next start waits for the pause."""
        if self._now() - self._began >= WELL_S:
            self._pause = 0.0
        causes = (*self.part.causes, Cause(at=tell_time(), cause=cause))[-CAUSES_KEPT:]
        self.part = self.part.changed(restarts=self.part.restarts + 1, causes=causes)
        self._due = self._now() + self._pause
        when = f"again in {self._pause:.0f} s" if self._pause else "again at once"
        self._report(f"{self._name}: {cause}; {when}")
        self._pause = min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, self._pause * 2))

    def describe(
        self, pid: int | None, *, starts: bool, phase: Phase | None = None, health: str = "",
        models: Mapping[str, int] | None = None,
    ) -> Part:  # fmt: skip
        """For the record; without a phase it is starting or backing off."""
        now = phase or (Phase.STARTING if starts or self.due else Phase.BACKING_OFF)
        since = self.part.since if now == self.part.phase else tell_time()
        self.part = self.part.changed(phase=now, since=since, pid=pid, health=health, models=models or {})
        return self.part
