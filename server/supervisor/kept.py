"""One process that is kept up: started again when it ended, with longer and longer pauses."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

from config.terminal import Report
from server.supervisor.record import BACKING_OFF, STARTING, Cause, add_cause

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
WELL_S = 300.0
"""Who ran for so long is not in a circle of failures: the next pause is a short one again."""

Launch = Callable[[], "subprocess.Popen[bytes]"]


class Kept:
    """Starts a process, and again when it ended; the first time again at once."""

    def __init__(
        self, name: str, launch: Launch, report: Report, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = name
        self.process: subprocess.Popen[bytes] | None = None
        self.restarts = 0
        self.causes: tuple[Cause, ...] = ()
        self._launch = launch
        self._report = report
        self._now = now
        self._began = 0.0
        self._due = 0.0
        self._pause = 0.0

    @property
    def pid(self) -> int | None:
        """None while it does not run."""
        return self.process.pid if self.process else None

    @property
    def phase(self) -> str:
        """starting or backing off; what else it is, its owner knows."""
        return STARTING if self.process or self._now() >= self._due else BACKING_OFF

    def start_if_due(self) -> bool:
        """Start it where it does not run and its pause is over; whether it was started."""
        if self.process or self._now() < self._due:
            return False
        self._began = self._now()
        try:
            self.process = self._launch()
        except OSError as problem:  # no memory for another process, a full disk
            self.note_end(f"cannot be started: {problem}")
            return False
        return True

    def find_end(self) -> int | None:
        """Its exit status once it has ended; None while it runs, or where that was seen before."""
        return self.process.poll() if self.process else None

    def note_end(self, cause: str) -> None:
        """It has ended, and why: the next start waits for the pause."""
        if self._now() - self._began >= WELL_S:
            self._pause = 0.0
        self.process = None
        self.restarts += 1
        self.causes = add_cause(self.causes, cause)
        self._due = self._now() + self._pause
        when = f"again in {self._pause:.0f} s" if self._pause else "again at once"
        self._report(f"{self.name}: {cause}; {when}")
        self._pause = min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, self._pause * 2))
