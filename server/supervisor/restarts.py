"""When a part that ended is started again (the first time at once, then after longer and longer pauses), and
what the record says of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from config.terminal import Report
from server.state import Cause, Part, Phase, tell_time
from server.supervisor.counters import RESTARTS
from server.supervisor.judge import Kind

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
WELL_S = 300.0  # what ran for so long is not in a circle of failures: the next pause is a short one again
CAUSES_KEPT = 5


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
        self._began = self._now()

    def note_end(self, cause: str, kind: Kind = Kind.ENDED) -> None:
        """The next start waits for the pause."""
        now = self._now()
        RESTARTS.labels("proxy" if self._name == "proxy" else "instance", kind.value).inc()
        pause = 0.0 if now - self._began >= WELL_S else self._pause
        causes = (*self.part.causes, Cause(at=tell_time(), cause=cause))[-CAUSES_KEPT:]
        self.part = replace(self.part, restarts=self.part.restarts + 1, causes=causes)
        self._report(f"{self._name}: {cause}; {f'again in {pause:.0f} s' if pause else 'again at once'}")
        self._due, self._pause = now + pause, min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, pause * 2))

    def describe(self, pid: int | None, phase: Phase | None, health: str = "",
                 models: Mapping[str, int] | None = None) -> Part:  # fmt: skip
        """For the record; without a phase it is starting or backing off."""
        phase = phase or (Phase.STARTING if self.due else Phase.BACKING_OFF)
        since = self.part.since if phase == self.part.phase else tell_time()
        self.part = replace(self.part, phase=phase, since=since, pid=pid, health=health, models=models or {})
        return self.part
