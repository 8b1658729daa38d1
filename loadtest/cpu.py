"""CPU time by who used it, to show what bounds a run and whether anything else disturbed it.

Sources, all of proc(5): utime and stime of /proc/PID/stat, the lines of single CPUs in /proc/stat.
"""

from __future__ import annotations

import os
import resource
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from server.processes import PROC, find_marked

GENERATOR = "load generator"
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(kw_only=True)
class CpuUse:
    """CPU seconds that were used during a measurement; filled when it ends."""

    seconds: float = 0.0
    """How long it was watched, with the load generator's own start and end."""
    by_role: dict[str, float] = field(default_factory=dict)
    """TorchServe, worker, launcher, helper, and the load generator."""
    others: float = 0.0
    """Everything else on the CPUs we may use: other programs, and the kernel's own work."""
    stolen: float = 0.0
    """What the host of a virtual machine gave to others."""


def read_server_cpu(run_path: Path, proc: Path = PROC) -> dict[str, float]:
    """Role → CPU seconds so far of the processes with a run directory's mark."""
    used: defaultdict[str, float] = defaultdict(float)
    for process in find_marked(run_path, proc):
        used[process.role] += read_process_cpu(process.pid, proc)
    return dict(used)


def read_process_cpu(pid: int, proc: Path = PROC) -> float:
    """CPU seconds of all threads of a process; 0 when it has ended."""
    try:
        stat = (proc / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return 0.0
    fields = stat[stat.rfind(")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def read_machine_cpu(cpus: set[int], proc: Path = PROC) -> tuple[float, float]:
    """(busy, stolen) CPU seconds so far of some CPUs; idle and waiting for disks are not busy."""
    busy = stolen = 0.0
    for line in (proc / "stat").read_text().splitlines():
        name, *words = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cpus:
            user, nice, system, _idle, _wait, irq, softirq, steal = (int(word) for word in words[:8])
            busy += (user + nice + system + irq + softirq) / _TICKS
            stolen += steal / _TICKS
    return busy, stolen


def read_own_cpu(who: int = resource.RUSAGE_SELF) -> float:
    """CPU seconds of this process, or of its children that have ended (RUSAGE_CHILDREN)."""
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


@contextmanager
def watch_cpu(run_path: Path) -> Iterator[CpuUse]:
    """What the marked processes, our children that end meanwhile (the load generator) and others use."""
    use, cpus = CpuUse(), os.sched_getaffinity(0)
    began, before, own = time.monotonic(), read_server_cpu(run_path), read_own_cpu()
    (busy, stolen), children = read_machine_cpu(cpus), read_own_cpu(resource.RUSAGE_CHILDREN)
    yield use
    use.seconds = time.monotonic() - began
    now_busy, now_stolen = read_machine_cpu(cpus)
    after = read_server_cpu(run_path)
    use.by_role = {role: seconds - before.get(role, 0.0) for role, seconds in after.items()}
    use.by_role[GENERATOR] = read_own_cpu(resource.RUSAGE_CHILDREN) - children
    known = sum(use.by_role.values()) + read_own_cpu() - own
    use.others = max(0.0, now_busy - busy - known)
    use.stolen = now_stolen - stolen


def count_cpus() -> int:
    """CPUs this process may use."""
    return len(os.sched_getaffinity(0))
