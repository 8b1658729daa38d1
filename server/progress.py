"""Shows how a long wait goes on: a line per change, and meanwhile the seconds: in place on a terminal."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TextIO

Report = Callable[[str], None]
LOG_SECONDS = 20.0
"""Silence after which a log gets a line too: enough to see that it goes on, too few to fill it."""
_CLEAR_LINE = "\r\033[K"


def say(line: str) -> None:
    """Print it, and go on where that cannot be: a full disk must not end who watches over a server."""
    with contextlib.suppress(OSError):
        print(line, flush=True)


def ignore(_: str) -> None:
    """Show nothing."""


@dataclass(kw_only=True)
class Progress:
    """Writes to one stream."""

    stream: TextIO
    """Where to; a terminal gets every tick."""
    now: Callable[[], float] = time.monotonic
    """Seconds."""
    _said: float = field(init=False)
    """When the last line that stays was written."""

    def __post_init__(self) -> None:
        """Silence counts from here."""
        self._said = self.now()

    def report(self, line: str) -> None:
        """A line that stays."""
        self._write(f"{line}\n")
        self._said = self.now()

    def tick(self, line: str) -> None:
        """A line that the next one replaces; in a file, where it would pile up, after a long silence only."""
        if self.stream.isatty():
            self._write(line[: shutil.get_terminal_size().columns - 1])  # a wrapped one cannot be replaced
        elif self.now() - self._said >= LOG_SECONDS:
            self.report(line)

    def _write(self, text: str) -> None:
        self.stream.write(f"{_CLEAR_LINE}{text}" if self.stream.isatty() else text)
        self.stream.flush()
