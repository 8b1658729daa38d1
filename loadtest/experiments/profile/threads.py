"""What the threads of a system's workers did in a window: where they ran, waited, moved and faulted.

Read from /proc/PID/task/TID/{stat,sched,schedstat,status} (proc(5)): nothing of it needs a right, a tool or a
hardware counter. What a kernel does not count is None, never 0.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from loadtest.systems.system import System
from server.processes import PROC, read_resident_mib
from server.throttling import find_loss, read_throttled

_TICKS = os.sysconf("SC_CLK_TCK")
_MIGRATIONS = re.compile(r"^(?:se\.)?nr_migrations\s*:\s*(\d+)", re.MULTILINE)
_SWITCHES = re.compile(r"^nonvoluntary_ctxt_switches:\s*(\d+)", re.MULTILINE)


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
    taken = _SWITCHES.search(status)
    return Counts(
        run_s=ran,
        wait_s=waited,
        migrations=int(moved[1]) if moved else None,
        involuntary=int(taken[1]) if taken else None,
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


GLANCE_SECONDS = 0.1
"""Ten pictures a second of each thread's CPU: a stretch of OpenMP work is shorter, a move is not."""
COUNTS_EVERY = 10
"""Glances from one reading of all counters to the next: these take four files for each thread."""
BUSY = 0.02
"""Of a core: less is the interpreter's, the allocator's and the profiler's own housekeeping."""
ASLEEP = -1
"""In a film strip: it used no CPU time since the glance before."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """All workers at one moment; counters are None between two readings of them."""

    at: float
    """Seconds since the epoch."""
    glances: Mapping[int, Mapping[int, Glance]]
    """Process → thread → glance."""
    counts: Mapping[int, Mapping[int, Counts]] | None = None
    throttled: Mapping[int, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class ThreadUse:
    """One thread of a window; rates are a second's, and None where the kernel does not count."""

    tid: int
    name: str
    cores: float
    """CPU time to time."""
    waiting: float | None
    """Of the time it could have run, the part in a CPU's queue (0 to 1)."""
    migrations: float | None
    involuntary: float | None
    strip: tuple[int, ...] = ()
    """The CPU at each glance; ASLEEP where it did not run."""

    @property
    def cpus(self) -> set[int]:
        return set(self.strip) - {ASLEEP}


@dataclass(frozen=True, kw_only=True)
class WorkerUse:
    """One worker of a window."""

    pid: int
    threads: int
    """All it has."""
    busy: tuple[ThreadUse, ...]
    """Those that used more than BUSY of a core, the busiest first."""
    minor_faults: float
    """A second, of all its threads."""
    resident_mib: int | None = None
    throttled_ms: float | None = None
    """Of each period of 100 ms, by its CPU quota; None where no control group counts."""

    @property
    def cpus(self) -> set[int]:
        """That its busy threads were seen on."""
        return {cpu for one in self.busy for cpu in one.cpus}


@dataclass(kw_only=True)
class ThreadWatch:
    """Reads in a thread of this process, from `with` to its end."""

    pids: Sequence[int]
    readings: list[Reading] = field(default_factory=list)
    resident_mib: dict[int, int | None] = field(default_factory=dict)
    """Of each worker, behind the load."""
    cost_s: float = 0.0
    """CPU seconds that the looking took."""

    def run(self, stop: threading.Event) -> None:
        """Until it is told to stop."""
        began = time.thread_time()
        while not stop.is_set():
            self.readings.append(self.read(full=len(self.readings) % COUNTS_EVERY == 0))
            stop.wait(GLANCE_SECONDS)
        self.cost_s = time.thread_time() - began

    def read(self, *, full: bool) -> Reading:
        """One look at all workers."""
        return Reading(
            at=time.time(),
            glances={pid: read_glances(pid) for pid in self.pids},
            counts={pid: read_counts(pid) for pid in self.pids} if full else None,
            throttled={pid: read_throttled(pid) for pid in self.pids} if full else None,
        )

    def cut(self, begin: float, end: float) -> Mapping[str, Any]:
        """What happened between the first and the last full reading of the window."""
        within = [one for one in self.readings if begin <= one.at <= end]
        full = [place for place, one in enumerate(within) if one.counts is not None]
        if len(full) < 2:
            return {}
        within = within[full[0] : full[-1] + 1]
        workers = [summarise_worker(pid, within, self.resident_mib.get(pid)) for pid in self.pids]
        cost = self.cost_s / max(1e-9, self.readings[-1].at - self.readings[0].at)
        return {"workers": [asdict(one) for one in workers], "cost_cores": round(cost, 4)}


@contextlib.contextmanager
def watch_threads(system: System) -> Iterator[ThreadWatch]:
    """Of all workers that it has now."""
    pids = [pid for model in system.models for pid in system.list_workers(model)]
    watch, stop = ThreadWatch(pids=pids), threading.Event()
    thread = threading.Thread(target=watch.run, args=(stop,), daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        stop.set()
        thread.join()
        watch.resident_mib = {pid: read_resident_mib(pid) for pid in pids}


def summarise_worker(pid: int, readings: Sequence[Reading], resident_mib: int | None) -> WorkerUse:
    """Between the first and the last of some readings, both with all counters."""
    first, last = readings[0], readings[-1]
    seconds = last.at - first.at
    every = [make_use(pid, tid, readings, seconds) for tid in last.glances.get(pid, {})]
    busy = tuple(sorted((one for one in every if one.cores > BUSY), key=lambda one: -one.cores))
    before_faults, faults = (
        sum(one.minor_faults for one in reading.glances.get(pid, {}).values()) for reading in (first, last)
    )
    before, now = (one.throttled.get(pid, {}) if one.throttled else {} for one in (first, last))
    return WorkerUse(
        pid=pid,
        threads=len(every),
        busy=busy,
        minor_faults=round(max(0, faults - before_faults) / seconds, 1),
        resident_mib=resident_mib,
        throttled_ms=round(find_loss(before, now).ms_per_period, 3) if now else None,
    )


def make_use(pid: int, tid: int, readings: Sequence[Reading], seconds: float) -> ThreadUse:
    """A thread that began in between is counted from its begin."""
    before, now = ((one.counts or {}).get(pid, {}).get(tid, Counts()) for one in (readings[0], readings[-1]))
    born = tid not in readings[0].glances.get(pid, {})

    def rate(name: str) -> float | None:
        then, later = getattr(before, name), getattr(now, name)
        if later is None or (then is None and not born):
            return None
        return round(float(later - (then or 0)) / seconds, 4)

    glances = [one.glances.get(pid, {}).get(tid) for one in readings]
    ran, waited = rate("run_s"), rate("wait_s")
    ticks = glances[-1].cpu_s - (glances[0].cpu_s if glances[0] else 0.0) if glances[-1] else 0.0
    return ThreadUse(
        tid=tid,
        name=glances[-1].name if glances[-1] else "",
        cores=round(ticks / seconds if ran is None else ran, 4),
        waiting=None if ran is None or waited is None else round(waited / max(1e-9, ran + waited), 4),
        migrations=rate("migrations"),
        involuntary=rate("involuntary"),
        strip=make_strip(glances),
    )


def make_strip(glances: Sequence[Glance | None]) -> tuple[int, ...]:
    """A thread ran where its CPU time grew, or where it was seen running."""
    pairs = zip((None, *glances), glances, strict=False)
    return tuple(
        ASLEEP if now is None or not (now.running or (then and now.cpu_s > then.cpu_s)) else now.cpu
        for then, now in pairs
    )
