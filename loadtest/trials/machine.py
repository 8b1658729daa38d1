"""What the machine did in a window: CPU time by who used it, and the memory of processes (proc(5)).

Read twice a second in a thread, so that a window can be cut out of it when its edges are known: utime and
stime of /proc/PID/stat, the lines of single CPUs in /proc/stat.
"""

from __future__ import annotations

import os
import resource
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.results.trial import CpuUse
from server.processes import PROC, Process, find_marked

GENERATOR = "load generator"
WATCH_SECONDS = 0.5
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """CPU seconds so far, at one moment."""

    at: float
    """Seconds since the epoch."""
    busy: float
    """Of the CPUs that we may use; idle and waiting for disks are not busy."""
    stolen: float
    by_role: Mapping[str, float]
    own: float
    """Of this process."""


def read_process_cpu(pid: int, proc: Path = PROC) -> float:
    """CPU seconds of all threads of a process; 0 when it has ended."""
    try:
        stat = (proc / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return 0.0
    fields = stat[stat.rfind(")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def read_machine_cpu(cpus: set[int], proc: Path = PROC) -> tuple[float, float]:
    """(busy, stolen) CPU seconds so far of some CPUs; guest time is contained in user time and left out."""
    busy = stolen = 0.0
    for line in (proc / "stat").read_text().splitlines():
        name, *words = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cpus:
            user, nice, system, _idle, _wait, irq, softirq, steal = (int(word) for word in words[:8])
            busy += (user + nice + system + irq + softirq) / _TICKS
            stolen += steal / _TICKS
    return busy, stolen


def find_cpu_use(
    readings: Sequence[Reading], begin: float, end: float, *, generator_cores: float
) -> CpuUse | None:
    """Between the readings around a window; None without two of them.

    The generator is known by its own account: its start and end are no part of the window.
    """
    before = [one for one in readings if one.at <= begin] or readings[:1]
    after = [one for one in readings if one.at >= end] or readings[-1:]
    if not before or not after or after[0].at <= before[-1].at:
        return None
    first, last = before[-1], after[0]
    seconds = last.at - first.at
    roles = {role: used - first.by_role.get(role, 0.0) for role, used in last.by_role.items()}
    roles = {role: round(max(0.0, used), 3) for role, used in roles.items()}
    if generator_cores:
        roles[GENERATOR] = round(generator_cores * seconds, 3)
    known = sum(roles.values()) + last.own - first.own
    return CpuUse(
        seconds=round(seconds, 3),
        cpus=len(os.sched_getaffinity(0)),
        by_role=roles,
        others=round(max(0.0, last.busy - first.busy - known), 3),
        stolen=round(last.stolen - first.stolen, 3),
    )


class CpuWatch:
    """Reads in a thread, from `with` to its end. Whose processes are watched is settled at its begin."""

    def __init__(self, run_path: Path | None, proc: Path = PROC) -> None:
        self.readings: list[Reading] = []
        self._proc, self._cpus = proc, os.sched_getaffinity(0)
        self._processes: list[Process] = find_marked(run_path, proc) if run_path else []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._stop.is_set():
            self.readings.append(self._read())
            self._stop.wait(WATCH_SECONDS)
        self.readings.append(self._read())

    def _read(self) -> Reading:
        busy, stolen = read_machine_cpu(self._cpus, self._proc)
        used: defaultdict[str, float] = defaultdict(float)
        for process in self._processes:
            used[process.role] += read_process_cpu(process.pid, self._proc)
        own = resource.getrusage(resource.RUSAGE_SELF)
        return Reading(
            at=time.time(), busy=busy, stolen=stolen, by_role=dict(used), own=own.ru_utime + own.ru_stime
        )

    def __enter__(self) -> CpuWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
