"""Tells a health check through a file what /ready tells: no program has to be started to ask.

As that of an instance (server/health.py): what it says is as old as it is itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from config.folders import write_text_atomically
from config.terminal import Report
from server.health import LOOK_SECONDS


class Telling:
    """Writes when there is something new to say, and every few seconds that it still is so."""

    def __init__(self, file: Path, report: Report, now: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._report = report
        self._now = now
        self._told = ""
        self._at = 0.0
        self._lost = False

    def tell(self, text: str) -> None:
        """As far as the disk allows; that it does not is reported once."""
        if text == self._told and self._now() - self._at < LOOK_SECONDS:
            return
        try:
            write_text_atomically(self._file, f"{text}\n")
        except OSError as problem:
            if not self._lost:
                self._report(f"health: cannot be written, so it counts as not ready in a minute: {problem}")
            self._lost = True
            return
        self._told, self._at, self._lost = text, self._now(), False
