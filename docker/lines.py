"""Makes every line of the container's log one JSON object: time, level, source, message."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TextIO

# server/log4j2.xml: %d{ISO8601} [%-5p] %t %c - %m
_TORCHSERVE = re.compile(r"^(\d{4}-\d\d-\d\dT\S+) \[(\w+) *\] (.+?) (\S+) - (.*)$")
# HAProxy's own words; a line for a failed request (config/door/process.py) has its own form.
_HAPROXY = re.compile(r"^\[(NOTICE|WARNING|ALERT)\] +\(\d+\) : (.*)$")
# A worker prints it for every batch, HAProxy for each of its sections when it ends.
_ROUTINE = re.compile(r"Backend received inference at|Proxy \S+ stopped \(cumulated conns")
_LEVELS = {"WARN": "warning", "FATAL": "error", "TRACE": "debug", "NOTICE": "info", "ALERT": "error"}


def parse_torchserve(text: str) -> dict[str, str]:
    """The fields of a line of TorchServe's logs; a line of a stack trace is a message alone."""
    match = _TORCHSERVE.match(text)
    if not match:
        return {"message": text}
    time, level, thread, logger, message = match.groups()
    return {
        "time": time.replace(",", ".") + "Z",  # the container's clock is UTC
        "level": _name_level(level),
        "thread": thread,
        "logger": logger,
        "message": message,
    }


def parse_haproxy(text: str) -> dict[str, str]:
    """The fields of a line of the door's log."""
    match = _HAPROXY.match(text)
    return {"level": _name_level(match[1]), "message": match[2]} if match else {"message": text}


def _name_level(name: str) -> str:
    return _LEVELS.get(name, name.lower())


def is_routine(message: str) -> bool:
    """Whether it tells nothing and comes again and again."""
    return _ROUTINE.match(message) is not None


@dataclass(frozen=True, kw_only=True)
class Speaker:
    """Writes to one stream."""

    stream: TextIO
    """Standard output."""

    def say(self, source: str, message: str, level: str = "info", **more: str) -> None:
        """One line of our own."""
        self._write({"time": _now(), "level": level, "source": source, "message": message, **more})

    def pass_on(self, source: str, fields: Mapping[str, str]) -> None:
        """One line of another program."""
        self._write({"time": _now(), "level": "info", "source": source, **fields})

    def _write(self, fields: Mapping[str, str]) -> None:
        self.stream.write(json.dumps(fields, ensure_ascii=False) + "\n")
        self.stream.flush()


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
