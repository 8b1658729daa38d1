"""The machine: what it is, and what it did in a window (CPU time by who used it, memory of processes)."""

from __future__ import annotations

import os
import platform
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from config.topology import read_topology
from server.processes import find_marked

GENERATOR = "load generator"
WATCH_SECONDS = 0.5
PACKAGES = (
    *("torch", "intel_extension_for_pytorch", "openvino", "torchserve"),
    *("transformers", "locust", "numpy", "matplotlib"),
)


def read_host() -> dict[str, Any]:
    """The machine and the versions, as they are kept with every result; no name of the machine itself."""
    machine = read_topology()
    flags = next(
        (line for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines() if "flags" in line),
        "",
    )
    return {
        "cpu": machine.model_name,
        "vendor": machine.vendor,
        "flags": machine.flags,
        "cpus": machine.cpu_total,
        "usable_cores": machine.usable_cores,
        "memory_gib": round(machine.memory_limit_mib / 1024),
        "virtual": "hypervisor" in flags.split(),  # Linux gives the CPUs of a guest this flag
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {name: _read_version(name) for name in PACKAGES},
    }


def read_commit() -> str:
    """Of the checkout, with `-dirty` where a tracked file differs; empty outside of one."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def _read_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


@dataclass(frozen=True, kw_only=True)
class CpuUse:
    """CPU seconds that were used in a window."""

    seconds: float
    """How long it was."""
    cpus: int
    """That we may use."""
    by_role: Mapping[str, float] = field(default_factory=dict)
    """TorchServe, worker, launcher, helper of the server, and the load generator."""
    others: float = 0.0
    """Everything else on these CPUs: other programs, and the kernel's own work."""
    stolen: float = 0.0
    """What the host of a virtual machine gave to others."""

    def share(self, cpu_seconds: float) -> float:
        """Of all CPUs' time (0 to 1)."""
        return cpu_seconds / (self.cpus * self.seconds) if self.seconds else 0.0


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


class CpuWatch:
    """Reads twice a second in a thread, from `with` to its end; whose processes is settled at its begin."""

    def __init__(self, run_path: Path | None) -> None:
        self.readings: list[Reading] = []
        self._cpus = os.sched_getaffinity(0)
        marked = find_marked(run_path) if run_path else []
        self._processes = [
            (one.role, psutil.Process(one.pid)) for one in marked if psutil.pid_exists(one.pid)
        ]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._stop.is_set():
            self.readings.append(self._read())
            self._stop.wait(WATCH_SECONDS)
        self.readings.append(self._read())

    def _read(self) -> Reading:
        every = psutil.cpu_times(percpu=True)
        own = [one for number, one in enumerate(every) if number in self._cpus]
        used: defaultdict[str, float] = defaultdict(float)
        for role, process in self._processes:
            try:
                times = process.cpu_times()
                used[role] += times.user + times.system
            except psutil.Error:  # it has ended
                continue
        me = psutil.Process().cpu_times()
        return Reading(
            at=time.time(),
            busy=sum(one.user + one.nice + one.system + one.irq + one.softirq for one in own),
            stolen=sum(one.steal for one in own),
            by_role=dict(used),
            own=me.user + me.system,
        )

    def __enter__(self) -> CpuWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


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
    roles = {
        role: round(max(0.0, used - first.by_role.get(role, 0.0)), 3) for role, used in last.by_role.items()
    }
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
