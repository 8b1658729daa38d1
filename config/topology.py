"""The machine as this process may use it: CPUs, cores, caches, NUMA nodes, quota, memory, instruction sets.

Facts come from sysfs and procfs below a root folder, so a recorded machine can be planned for on any other.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from config import probes
from config.errors import ConfigError
from config.files import MachineFiles, parse_id_list, read_machine

UNLIMITED_BYTES = 1 << 60
"""cgroup v1 writes "no limit" as the largest page-aligned 63-bit number; nothing above an exbibyte is a
limit."""


class Limits(NamedTuple):
    """What the control groups leave to this process, and the files that say so; None = no limit."""

    cpus: tuple[int, ...] | None
    quota_cpus: float | None
    quota_source: str | None
    memory_bytes: int | None
    memory_source: str | None


def read_limits(files: MachineFiles) -> Limits:
    """The limits on the path from the process's own group to the top."""
    quota, memory = (min(found, default=(None, None)) for found in (_quotas(files), _memory_limits(files)))
    return Limits(_cpuset(files), *quota, *memory)


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


FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16")
"""The instruction sets that decide speed here, as /proc/cpuinfo spells them."""

CPU_FOLDER = "sys/devices/system/cpu"
NODE_FOLDER = "sys/devices/system/node"
EFFICIENT = "sys/devices/cpu_atom/cpus"
"""Only where there are P-cores too (Linux 5.13, arch/x86/events/intel/core.c)."""
MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Core:
    """One physical core, of which one CPU is used."""

    cpu: int
    """The CPU that works: the lowest allowed one of the core."""
    siblings: tuple[int, ...]
    """All online CPUs of the core (SMT siblings), allowed or not."""
    core_id: int
    """The kernel's number for the core; unique only within a socket."""
    socket: int
    """Physical package."""
    node: int
    """NUMA node; 0 on a machine without NUMA."""
    l3: int
    """The group sharing a level-3 cache, named by its lowest CPU."""


@dataclass(frozen=True, kw_only=True)
class Topology:
    """What the rules know about the machine."""

    cpus_allowed: tuple[int, ...]
    """Scheduler affinity ∩ control-group cpuset ∩ online."""
    cores: tuple[Core, ...]
    """Physical cores with at least one allowed CPU, by NUMA node, then L3 group, then CPU."""
    nodes: tuple[int, ...]
    """NUMA nodes of these cores."""
    sockets: int
    """Number of sockets of these cores."""
    numa: bool
    """False where the kernel shows no NUMA nodes at all."""
    quota_cpus: float | None
    """CPU time the control groups allow, in CPUs; None = unlimited."""
    quota_source: str | None
    """The file that says so."""
    usable_cores: int
    """Cores that can be busy all the time: all of them, or the quota's whole part, at least 1."""
    memory_limit_mib: int
    """The machine's memory, or the tightest control-group limit."""
    memory_source: str
    """The file that says so."""
    flags: tuple[str, ...]
    """Those of FLAGS the CPU has."""
    vendor: str
    """GenuineIntel, AuthenticAMD …"""
    model_name: str
    """The CPU's name."""
    cpu_total: int
    """CPUs online in the machine, allowed or not."""
    efficient_cpus: tuple[int, ...]
    """E-cores of an Intel hybrid CPU: about half as fast as its P-cores."""
    mems_allowed: tuple[int, ...]
    """NUMA nodes this process may take memory from."""
    numactl: bool
    """The numactl command is installed."""
    can_bind_memory: bool
    """`numactl -m` works here for the nodes of all cores."""
    launcher_numactl: bool
    """The launcher's own probe (`numactl -C 0 -m 0`) succeeds; if not, it falls back to taskset."""
    lscpu_view: tuple[str, ...]
    """The lines `lscpu --parse=CPU,Core,Socket,Node` prints: all the launcher knows about the machine."""

    @property
    def owns_cpus(self) -> bool:
        """Whether CPUs may be chosen by name.

        A quota below the CPUs says how much of them is ours, and not which: whoever else has one sees the
        same CPUs, and would choose the same first ones. So too in a cpuset: all pods in the shared pool of
        Kubernetes' static CPU manager have the same one.
        """
        return self.quota_cpus is None or self.quota_cpus >= len(self.cpus_allowed)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, lists instead of tuples."""
        return dict(json.loads(json.dumps(dataclasses.asdict(self))))


def read_topology(root: Path | str = "/") -> Topology:
    """The machine below `root`; "/" is this one."""
    return parse_topology(read_machine(Path(root)))


def parse_topology(files: MachineFiles) -> Topology:
    """The machine these files tell of."""
    limits = read_limits(files)
    online = _read_online(files)
    allowed = _read_allowed(files, limits, online)
    cores = _read_cores(files, allowed)
    memory_mib, memory_source = _read_memory(files, limits)
    return Topology(
        cpus_allowed=allowed,
        cores=cores,
        nodes=tuple(sorted({core.node for core in cores})),
        sockets=len({core.socket for core in cores}),
        numa=files.read(f"{NODE_FOLDER}/online") is not None,
        quota_cpus=limits.quota_cpus,
        quota_source=limits.quota_source,
        usable_cores=count_usable_cores(len(cores), limits.quota_cpus),
        memory_limit_mib=memory_mib,
        memory_source=memory_source,
        cpu_total=len(online),
        efficient_cpus=parse_id_list(files.read(EFFICIENT) or ""),
        **_read_cpuinfo(files),
        **_read_binding(files, allowed, cores),
        lscpu_view=probes.read_lscpu(files, online),
    )


def count_usable_cores(cores: int, quota_cpus: float | None) -> int:
    """A part of a CPU above the quota's whole part would be spent throttled, so it is not used; but at least
    one."""
    return cores if quota_cpus is None else max(1, min(cores, int(quota_cpus + 1e-9)))


def _read_online(files: MachineFiles) -> tuple[int, ...]:
    text = files.read(f"{CPU_FOLDER}/online")
    if not text:
        raise ConfigError(
            f"no machine below {files.root}: {CPU_FOLDER}/online is missing; "
            "name a recorded machine (a folder with sys/ and proc/, or with recording.txt)"
        )
    return parse_id_list(text)


def _read_allowed(files: MachineFiles, limits: Limits, online: tuple[int, ...]) -> tuple[int, ...]:
    """The scheduler's mask already holds the cpuset, except where a manager changed one behind the other's
    back."""
    text = probes.read_status(files, "Cpus_allowed_list")
    recorded = set(parse_id_list(text)) if text else set(online)
    allowed = set(online) & (set(os.sched_getaffinity(0)) if files.live else recorded)
    if limits.cpus is not None and allowed & set(limits.cpus):
        allowed &= set(limits.cpus)
    if not allowed:
        raise ConfigError(f"no CPU is left: online {list(online)}, allowed by affinity none of them")
    return tuple(sorted(allowed))


def _read_cores(files: MachineFiles, allowed: tuple[int, ...]) -> tuple[Core, ...]:
    """One per physical core: of its siblings the lowest allowed CPU."""
    nodes = probes.read_cpu_nodes(files)
    cores = (_read_core(files, cpu, nodes) for cpu in allowed)
    usable = [core for core in cores if core.cpu == min(set(core.siblings) & set(allowed))]
    return tuple(sorted(usable, key=lambda core: (core.node, core.l3, core.cpu)))


def _read_core(files: MachineFiles, cpu: int, nodes: dict[int, int]) -> Core:
    """A virtual machine may show no topology: then each CPU is a core, and a node shares its cache."""
    folder = f"{CPU_FOLDER}/cpu{cpu}"
    node = nodes.get(cpu, 0)
    shared = parse_id_list(files.read(f"{folder}/cache/index3/shared_cpu_list") or "")
    siblings = parse_id_list(files.read(f"{folder}/topology/thread_siblings_list") or "")
    return Core(
        cpu=cpu,
        siblings=siblings or (cpu,),
        core_id=int(files.read(f"{folder}/topology/core_id") or cpu),
        socket=int(files.read(f"{folder}/topology/physical_package_id") or 0),
        node=node,
        l3=shared[0] if shared else min((c for c, n in nodes.items() if n == node), default=0),
    )


def _read_memory(files: MachineFiles, limits: Limits) -> tuple[int, str]:
    total_kib = probes.read_field(files, "proc/meminfo", "MemTotal")
    if total_kib is None:
        raise ConfigError(f"no machine below {files.root}: proc/meminfo with MemTotal is missing")
    total_mib = int(total_kib.split()[0]) // 1024
    if limits.memory_bytes is None or limits.memory_bytes // MIB >= total_mib:
        return total_mib, "/proc/meminfo MemTotal"
    return limits.memory_bytes // MIB, str(limits.memory_source)


def _read_cpuinfo(files: MachineFiles) -> dict[str, Any]:
    """All CPUs of a server have the same flags, so the first one's are read."""
    flags = (probes.read_field(files, "proc/cpuinfo", "flags") or "").split()
    return {
        "flags": tuple(flag for flag in FLAGS if flag in flags),
        "vendor": probes.read_field(files, "proc/cpuinfo", "vendor_id") or "unknown",
        "model_name": probes.read_field(files, "proc/cpuinfo", "model name") or "unknown",
    }


def _read_binding(files: MachineFiles, allowed: tuple[int, ...], cores: tuple[Core, ...]) -> dict[str, Any]:
    mems_text = probes.read_status(files, "Mems_allowed_list")
    mems = parse_id_list(mems_text) if mems_text else (0,)
    nodes = {core.node for core in cores}
    can_bind = nodes <= set(mems) and probes.can_bind_memory(files, tuple(sorted(nodes)))
    return {
        "mems_allowed": mems,
        "numactl": probes.has_numactl(files),
        "can_bind_memory": can_bind,
        "launcher_numactl": probes.launcher_numactl_works(files, allowed, mems),
    }
