"""Reads what a process does, from /proc/PID/stat and status (proc(5)): stopped or not, CPU time, age."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from server.processes import PROC

AT_WORK = 0.01
"""Of a core: a worker that computes uses far more, one that hangs or sleeps next to nothing."""

_STOPPED = ("T", "t")
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True)
class Activity:
    """One process at one time."""

    stopped: bool
    """Stopped by a signal or a debugger: it does nothing at all until it is continued."""
    cpu_seconds: float
    """CPU time of all its threads since it began."""
    start_ticks: int
    """When it began: ticks since boot."""
    switches: int = 0
    """Times its main thread went to sleep of its own accord: a worker's does so after each batch."""


def read_activity(pid: int, proc: Path = PROC) -> Activity | None:
    """None when there is no such process, or it is not to be read."""
    try:
        stat = (proc / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The name (field 2) stands in brackets and may hold blanks and brackets itself.
    fields = stat[stat.rfind(")") + 2 :].split()
    if len(fields) < 20 or fields[0] in ("Z", "X"):
        return None
    cpu = (int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND
    return Activity(
        stopped=fields[0] in _STOPPED,
        cpu_seconds=cpu,
        start_ticks=int(fields[19]),
        switches=int(read_status(pid, proc).get("voluntary_ctxt_switches", 0)),
    )


def read_status(pid: int, proc: Path = PROC) -> dict[str, str]:
    """Its lines by name; empty when there is no such process."""
    try:
        text = (proc / str(pid) / "status").read_text(errors="replace")
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def read_resident_mib(pid: int, proc: Path = PROC) -> int | None:
    """Resident memory; None when there is no such process, or it has none."""
    return _parse_mib(read_status(pid, proc).get("VmRSS", ""))


def read_anonymous_mib(pid: int, proc: Path = PROC) -> int | None:
    """The part of it that is no file's. Libraries are in the memory once, however many processes map them."""
    return _parse_mib(read_status(pid, proc).get("RssAnon", ""))


def _parse_mib(kib: str) -> int | None:
    words = kib.split()
    return int(words[0]) // 1024 if words else None


def read_age(pid: int, proc: Path = PROC) -> float | None:
    """Seconds since the process began; None when it is gone."""
    found = read_activity(pid, proc)
    try:
        uptime = float((proc / "uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return None if found is None else uptime - found.start_ticks / _TICKS_A_SECOND
