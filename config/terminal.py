"""Lines for a person: printed in any locale, and beside a disk that is full; and entries of logs."""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, TextIO

STAMP = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ")
"""Before each line of a log for people."""


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


def render_entry(log: str, message: str, **facts: Any) -> str:
    """An entry of a log (LOG=text|json), with the time in UTC. `facts` are fields of JSON; a text for people
    has them in its message."""
    at = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if log == "json":
        return json.dumps({"time": at, **facts, "message": message}, ensure_ascii=False)
    return "\n".join(f"{at} {line}" for line in message.split("\n"))


def read_message(line: str) -> str:
    """What an entry says."""
    if line.startswith("{"):
        with contextlib.suppress(ValueError, LookupError):
            return str(json.loads(line)["message"])
    return STAMP.sub("", line)


class JsonLines(io.TextIOBase):
    """In place of a stream of text, where LOG=json: each line is an entry."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._rest = stream, ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in filter(None, lines):
            self._stream.write(render_entry("json", line, level="INFO", source="serve") + "\n")
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()
