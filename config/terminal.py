"""Lines for a person: printed in any locale, and beside a disk that is full."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable


def print_in_any_locale() -> None:
    """UTF-8, line by line: `→` in a Latin-1 locale must not end a command whose work is already done.

    By lines, because a process that stays must not hold them back in a pipe's buffer.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)


Report = Callable[[str], None]


def say(line: str) -> None:
    """Print it, and go on where that cannot be: a full disk must not end who watches over a server."""
    with contextlib.suppress(OSError):
        print(f"{line}\n", end="", flush=True)  # in one piece: another thread's may come between two
