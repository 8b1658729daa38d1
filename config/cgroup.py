"""What the control groups allow this process: CPUs, CPU time and memory, in version 1, version 2 and both
mixed.

The kernel's documents: Documentation/admin-guide/cgroup-v1/ and cgroup-v2.rst. A limit on any group between
the process's own and the top applies, so the whole path is walked and the tightest value wins. Inside a
container the group named by /proc/self/cgroup may not be visible; then the walk starts at the nearest folder
that is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from config.files import MachineFiles, parse_id_list

UNLIMITED_BYTES = 1 << 60
"""cgroup v1 writes "no limit" as the largest page-aligned 63-bit number; nothing above an exbibyte is a
limit."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the control groups leave to this process; None = no limit."""

    cpus: tuple[int, ...] | None
    """CPUs of the cpuset."""
    quota_cpus: float | None
    """CPU time per time, in CPUs."""
    quota_source: str | None
    """The file the quota was read from."""
    memory_bytes: int | None
    """The tightest memory limit."""
    memory_source: str | None
    """The file that limit was read from."""


def read_limits(files: MachineFiles) -> Limits:
    """The limits on the path from the process's own group to the top."""
    quota, quota_source = min(_quotas(files), default=(None, None))
    memory, memory_source = min(_memory_limits(files), default=(None, None))
    return Limits(
        cpus=_cpuset(files),
        quota_cpus=quota,
        quota_source=quota_source,
        memory_bytes=memory,
        memory_source=memory_source,
    )


def _cpuset(files: MachineFiles) -> tuple[int, ...] | None:
    """The first non-empty list going up: `effective` is what is left after all parents."""
    for folder in _folders(files, "cpuset"):
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
            if text := files.read(f"{folder}/{name}"):
                return parse_id_list(text)
    return None


def _quotas(files: MachineFiles) -> Iterator[tuple[float, str]]:
    for folder in _folders(files, "cpu"):
        if text := files.read(f"{folder}/cpu.max"):
            quota, period = [*text.split(), "100000"][:2]
            if quota != "max":
                yield int(quota) / int(period), f"{folder}/cpu.max"
        v1_quota = files.read(f"{folder}/cpu.cfs_quota_us")
        v1_period = files.read(f"{folder}/cpu.cfs_period_us")
        if v1_quota and v1_period and int(v1_quota) > 0:
            yield int(v1_quota) / int(v1_period), f"{folder}/cpu.cfs_quota_us"


def _memory_limits(files: MachineFiles) -> Iterator[tuple[int, str]]:
    """memory.high counts too: above it the kernel slows the process down until it gives memory back."""
    for folder in _folders(files, "memory"):
        for name in ("memory.max", "memory.high", "memory.limit_in_bytes"):
            text = files.read(f"{folder}/{name}")
            if text and text != "max" and int(text) < UNLIMITED_BYTES:
                yield int(text), f"{folder}/{name}"


def _folders(files: MachineFiles, controller: str) -> Iterator[str]:
    """The group's folder and its parents up to the mount point, for each hierarchy that has the
    controller."""
    groups = _own_groups(files)
    for mount_root, mount_point, kind, options in _mounts(files):
        if kind == "cgroup2" and "" in groups:
            yield from _walk_up(mount_point, mount_root, groups[""])
        elif kind == "cgroup" and controller in options and controller in groups:
            yield from _walk_up(mount_point, mount_root, groups[controller])


def _own_groups(files: MachineFiles) -> dict[str, str]:
    """Controller → path of the own group; version 2 has no controller names and stands under ""."""
    groups = {}
    for line in (files.read("proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), path))
    return groups


def _mounts(files: MachineFiles) -> Iterator[tuple[str, str, str, list[str]]]:
    """(folder shown, mount point, kind, options) of each mounted cgroup hierarchy; proc(5), mountinfo."""
    for line in (files.read("proc/self/mountinfo") or "").splitlines():
        left, dash, right = line.partition(" - ")
        kind = right.split(" ")[0]
        if dash and kind in ("cgroup", "cgroup2"):
            fields = left.split(" ")
            yield fields[3], fields[4], kind, right.split(" ")[-1].split(",")


def _walk_up(mount_point: str, mount_root: str, group: str) -> Iterator[str]:
    """A group outside the part that is mounted is not visible: its limits are read at the mount point."""
    try:
        relative = PurePosixPath(group).relative_to(mount_root)
    except ValueError:
        relative = PurePosixPath(".")
    if ".." in relative.parts:
        relative = PurePosixPath(".")
    folder = PurePosixPath(mount_point) / relative
    while folder != PurePosixPath(mount_point):
        yield str(folder)
        folder = folder.parent
    yield str(folder)
