"""Reads how long the kernel stopped a control group for using up its CPU quota (cpu.stat, cgroups(7)).

Time is what counts: a group that uses one CPU wholly, with a quota of just that, is stopped now and then by
the kernel's own bookkeeping, for a fraction of a millisecond (measured with a busy loop on one CPU).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

CGROUP_ROOT = Path("/sys/fs/cgroup")
PERIODS, TIMES, LOST = "nr_periods", "nr_throttled", "microseconds"
_UNITS = {"throttled_usec": 1.0, "throttled_time": 1e-3}  # version 2; version 1 counts nanoseconds
Counts = Mapping[str, Mapping[str, float]]  # cpu.stat file → {nr_periods, nr_throttled, microseconds}


@dataclass(frozen=True, kw_only=True)
class Loss:
    """What throttling cost between two readings, in the group that lost most; a period is 100 ms."""

    times: int = 0
    ms_per_period: float = 0.0


def read_throttled(
    pid: int | str = "self", proc: Path = Path("/proc"), root: Path = CGROUP_ROOT
) -> dict[str, dict[str, float]]:
    """Of the process's group and of those above it, which may have a quota too; {} when none counts."""
    counts = {}
    for stat in _list_stat_files(pid, proc, root):
        with contextlib.suppress(OSError, ValueError):
            found = parse_stat(stat.read_text())
            if TIMES in found:
                counts[str(stat)] = found
    return counts


def parse_stat(text: str) -> dict[str, float]:
    """What a cpu.stat file says of throttling, in the units of Counts."""
    values = {name: float(value) for name, value in (line.split() for line in text.splitlines())}
    found = {name: values[name] for name in (PERIODS, TIMES) if name in values}
    lost = [factor * values[name] for name, factor in _UNITS.items() if name in values]
    return {**found, LOST: sum(lost)} if lost else found


def _list_stat_files(pid: int | str, proc: Path, root: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        for line in (proc / str(pid) / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            # Version 2 has no controller names; version 1 mounts the cpu controller alone or with cpuacct.
            mounts = [root / controllers, root / "cpu"] if controllers else [root, root / "unified"]
            mount = next((folder for folder in mounts if folder.is_dir()), root)
            for group in (PurePosixPath(path), *PurePosixPath(path).parents):
                yield mount / str(group).lstrip("/") / "cpu.stat"


def find_loss(before: Counts, now: Counts) -> Loss:
    """Between two readings; a group that was not there before is counted from its beginning."""
    losses = [Loss()]
    for stat, counts in now.items():
        start = before.get(stat, {})
        if counts[TIMES] < start.get(TIMES, 0):  # a new group under the same name
            start = {}
        periods, times, lost = (counts.get(name, 0) - start.get(name, 0) for name in (PERIODS, TIMES, LOST))
        losses.append(Loss(times=int(times), ms_per_period=lost / 1000 / max(1.0, periods)))
    return max(losses, key=lambda loss: (loss.ms_per_period, loss.times))
