"""Lets a command print what it has to say in any locale; make does the same for all by PYTHONUTF8."""

from __future__ import annotations

import io
import sys


def print_in_any_locale() -> None:
    """UTF-8, line by line: `→` in a Latin-1 locale must not end a command whose work is already done.

    By lines, because a process that stays must not hold them back in a pipe's buffer.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
