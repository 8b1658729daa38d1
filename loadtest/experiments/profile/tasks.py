"""Reads what the kernel counts of one thread: /proc/PID/task/TID/{stat,sched,schedstat,status} (proc(5)).

Nothing of it needs a right, a tool or a hardware counter. What a kernel does not count is None, never 0.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from server.processes import PROC

_TICKS = os.sysconf("SC_CLK_TCK")
_MIGRATIONS = re.compile(r"^(?:se\.)?nr_migrations\s*:\s*(\d+)", re.MULTILINE)
_SWITCHES = re.compile(r"^(voluntary|nonvoluntary)_ctxt_switches:\s*(\d+)", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Glance:
    """What is cheap to read ten times a second: one file."""

    name: str
    running: bool
    """On a CPU, or in its queue, at this moment."""
    cpu: int
    """That it ran on last."""
    cpu_s: float
    """User and system time so far; to 10 ms."""
    minor_faults: int
    """Pages that were given to it without a disk, so far."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What the scheduler counts, so far."""

    run_s: float | None = None
    """On a CPU; to the nanosecond."""
    wait_s: float | None = None
    """Ready to run, in the queue of a CPU."""
    migrations: int | None = None
    """To another CPU."""
    voluntary: int | None = None
    """Went to sleep, or called sched_yield with another one waiting."""
    involuntary: int | None = None
    """Was taken from its CPU while it had work."""


def parse_stat(text: str) -> Glance:
    """The name stands in brackets and may hold blanks and brackets itself."""
    name = text[text.index("(") + 1 : text.rindex(")")]
    fields = text[text.rindex(")") + 2 :].split()
    return Glance(
        name=name,
        running=fields[0] == "R",
        cpu=int(fields[36]),
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS,
        minor_faults=int(fields[7]),
    )


def parse_counts(*, schedstat: str = "", sched: str = "", status: str = "") -> Counts:
    """From the files' texts; an empty one is a file that this kernel has not."""
    ran, waited = ([int(word) / 1e9 for word in schedstat.split()[:2]] + [None, None])[:2]
    moved = _MIGRATIONS.search(sched)
    switches = {kind: int(count) for kind, count in _SWITCHES.findall(status)}
    return Counts(
        run_s=ran,
        wait_s=waited,
        migrations=int(moved[1]) if moved else None,
        voluntary=switches.get("voluntary"),
        involuntary=switches.get("nonvoluntary"),
    )


def read_glances(pid: int, proc: Path = PROC) -> dict[int, Glance]:
    """Thread → its glance; threads that end while we look are left out."""
    return {tid: parse_stat(text) for tid, text in _read_each(pid, "stat", proc).items() if text}


def read_counts(pid: int, proc: Path = PROC) -> dict[int, Counts]:
    """Thread → what the scheduler counted of it."""
    kinds = ("schedstat", "sched", "status")
    texts: Mapping[str, Mapping[int, str]] = {kind: _read_each(pid, kind, proc) for kind in kinds}
    return {
        tid: parse_counts(**{kind: texts[kind].get(tid, "") for kind in kinds})
        for tid, text in texts["status"].items()
        if text
    }


def _read_each(pid: int, name: str, proc: Path) -> dict[int, str]:
    try:
        with os.scandir(proc / str(pid) / "task") as entries:
            return {int(entry.name): _read(f"{entry.path}/{name}") for entry in entries}
    except OSError:
        return {}


def _read(file: str) -> str:
    """Hundreds of these are read beside a load: pathlib takes four times as long."""
    try:
        with os.fdopen(os.open(file, os.O_RDONLY), "rb", buffering=0) as opened:
            return opened.read().decode(errors="replace")
    except OSError:
        return ""
