"""What the machine did meanwhile: CPU time for us, for nothing, and for other guests (proc(5))."""

from __future__ import annotations

import os
import platform
import threading
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any

STAT = Path("/proc/stat")
WATCH_SECONDS = 0.5
PACKAGES = (
    "torch",
    "intel_extension_for_pytorch",
    "torchserve",
    "transformers",
    "locust",
    "numpy",
    "matplotlib",
)
STEAL = 7
"""Column of /proc/stat after the word cpu: user nice system idle iowait irq softirq steal."""
IDLE = (3, 4)


@dataclass(frozen=True, kw_only=True)
class CpuTimes:
    """One reading."""

    at: float
    """Seconds since the epoch."""
    total: int
    """Ticks of all CPUs since boot."""
    idle: int
    steal: int


def parse_cpu_times(text: str, at: float) -> CpuTimes:
    """The first line of /proc/stat; guest time is contained in user time and left out."""
    ticks = [int(word) for word in text.splitlines()[0].split()[1:9]]
    idle = sum(ticks[column] for column in IDLE)
    return CpuTimes(at=at, total=sum(ticks), idle=idle, steal=ticks[STEAL])


@dataclass(frozen=True, kw_only=True)
class CpuUse:
    """Shares of all CPUs' time in a window."""

    busy: float
    steal: float
    """What a hypervisor gave to others while we wanted it."""


def find_cpu_use(readings: list[CpuTimes], begin: float, end: float) -> CpuUse | None:
    """From the readings around a window; None without two of them."""
    before = [one for one in readings if one.at <= begin] or readings[:1]
    after = [one for one in readings if one.at >= end] or readings[-1:]
    if not before or not after or after[0].total <= before[-1].total:
        return None
    first, last = before[-1], after[0]
    total = last.total - first.total
    idle = (last.idle - first.idle) / total
    return CpuUse(busy=round(1 - idle, 4), steal=round((last.steal - first.steal) / total, 4))


class CpuWatch:
    """Reads /proc/stat twice a second in a thread, from `with` to its end."""

    def __init__(self, stat: Path = STAT) -> None:
        self.readings: list[CpuTimes] = []
        self._stat, self._stop = stat, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while True:
            self.readings.append(parse_cpu_times(self._stat.read_text(), time.time()))
            if self._stop.wait(WATCH_SECONDS):
                break
        self.readings.append(parse_cpu_times(self._stat.read_text(), time.time()))

    def __enter__(self) -> CpuWatch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()


def read_host() -> dict[str, Any]:
    """The machine and the versions, as they are kept with every result."""
    return {
        "cpu": _read_field("/proc/cpuinfo", "model name"),
        "cpus": os.cpu_count(),
        "memory": f"{int(_read_field('/proc/meminfo', 'MemTotal').split()[0]) / 2**20:.1f} GiB",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": os.getloadavg(),
        "versions": {name: _read_version(name) for name in PACKAGES},
    }


def _read_field(file: str, name: str) -> str:
    lines = Path(file).read_text(errors="replace").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "unknown")


def _read_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
