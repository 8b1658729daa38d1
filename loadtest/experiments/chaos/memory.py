"""A control group with little memory, for one worker: the kernel ends it as any that needs more.

Moving a process moves none of the memory it has (cgroups(7)), so only what it takes from then on counts, and
a picture larger than all before makes it take some. A limit on addresses (RLIMIT_AS) would be something else:
malloc fails, and nobody is killed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
LIMIT_BYTES = 32 << 20
_V1, _V2 = "memory.limit_in_bytes", "memory.max"
_V1_COUNT, _V2_COUNT = "memory.oom_control", "memory.events"


def find_own_group(cgroups: Path = CGROUPS, membership: Path = Path("/proc/self/cgroup")) -> Path | None:
    """Of this process, in whichever hierarchy has the memory controller; None where there is none."""
    for line in membership.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        folder = cgroups / "memory" / path.strip("/")
        if "memory" in controllers.split(",") and folder.is_dir():
            return folder
        if not controllers and (cgroups / "cgroup.controllers").exists():
            return cgroups / path.strip("/")
    return None


@contextlib.contextmanager
def small_group(parent: Path | None, limit_bytes: int = LIMIT_BYTES) -> Iterator[Path | None]:
    """A new group below; None where none can be made or limited. Whoever is left in it goes back."""
    group = parent / f"cpu-kit-chaos-{os.getpid()}" if parent else None
    try:
        made = group is not None and _make(group, limit_bytes)
        yield group if made else None
    finally:
        if group is not None and group.is_dir():
            _remove(group)


def _make(group: Path, limit_bytes: int) -> bool:
    try:
        group.mkdir()
        limit = next(file for name in (_V1, _V2) if (file := group / name).exists())
        limit.write_text(str(limit_bytes))
    except (OSError, StopIteration):
        return False
    return True


def _remove(group: Path) -> None:
    with contextlib.suppress(OSError):
        for pid in (group / "cgroup.procs").read_text().split():
            move(int(pid), group.parent)
    with contextlib.suppress(OSError):
        group.rmdir()


def move(pid: int, group: Path) -> None:
    """All its threads; nothing where it has ended."""
    with contextlib.suppress(ProcessLookupError):
        (group / "cgroup.procs").write_text(str(pid))


def count_kills(group: Path) -> int:
    """Processes of the group that the kernel ended for memory."""
    for name in (_V1_COUNT, _V2_COUNT):
        with contextlib.suppress(OSError, ValueError):
            lines = dict(line.split() for line in (group / name).read_text().splitlines())
            return int(lines.get("oom_kill", 0))
    return 0
