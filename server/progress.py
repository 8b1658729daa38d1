"""Shows how a long wait goes on: a line per change, and on a terminal the seconds in place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

Report = Callable[[str], None]
_CLEAR_LINE = "\r\033[K"


def ignore(_: str) -> None:
    """Show nothing."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Writes to one stream."""

    stream: TextIO
    """Where to; a terminal gets ticks."""

    def report(self, line: str) -> None:
        """A line that stays."""
        self._write(f"{line}\n")

    def tick(self, line: str) -> None:
        """A line that the next one replaces; nothing where it would pile up in a file."""
        if self.stream.isatty():
            self._write(line)

    def _write(self, text: str) -> None:
        self.stream.write(f"{_CLEAR_LINE}{text}" if self.stream.isatty() else text)
        self.stream.flush()
