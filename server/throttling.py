"""Counts how often the kernel stopped a control group for using up its CPU quota (cpu.stat, cgroups(7))."""

from __future__ import annotations

import contextlib
from pathlib import Path, PurePosixPath

CGROUP_ROOT = Path("/sys/fs/cgroup")


def read_throttled(
    pid: int | str = "self", proc: Path = Path("/proc"), root: Path = CGROUP_ROOT
) -> dict[str, int]:
    """cpu.stat file → nr_throttled for the process's group and those above it; {} when none counts.

    A quota may be set on any group above, and its count stands there; so all of them are read.
    """
    counts = {}
    for stat in _stat_files(pid, proc, root):
        with contextlib.suppress(OSError, ValueError):
            for line in stat.read_text().splitlines():
                if line.startswith("nr_throttled "):
                    counts[str(stat)] = int(line.split()[1])
    return counts


def _stat_files(pid: int | str, proc: Path, root: Path) -> list[Path]:
    try:
        lines = (proc / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return []
    files = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        # Version 2 has no controller names; version 1 mounts the cpu controller alone or with cpuacct.
        mounts = [root / controllers, root / "cpu"] if controllers else [root, root / "unified"]
        mount = next((folder for folder in mounts if folder.is_dir()), root)
        group = PurePosixPath(path)
        files += [mount / str(part).lstrip("/") / "cpu.stat" for part in (group, *group.parents)]
    return files


def count_since(before: dict[str, int], now: dict[str, int]) -> int:
    """Times throttled between two readings."""
    return sum(max(0, count - before.get(stat, 0)) for stat, count in now.items())
