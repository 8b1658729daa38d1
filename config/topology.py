"""The machine as this process may use it: CPUs, cores, caches, NUMA nodes, quota, memory, instruction sets.

Facts come from sysfs and procfs below a root folder, so a recorded machine can be planned for on any other.
What no file tells is tried on the live machine. A recorded one may hold the outcome as `probe/numactl` (its
path), `probe/membind` ("ok" or the error) and `probe/lscpu` (its output); what is missing is derived.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from config.errors import ConfigError
from config.files import MachineFiles, parse_id_list, read_machine

FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16")
"""The instruction sets that decide speed here, as /proc/cpuinfo spells them."""

CPU_FOLDER = "sys/devices/system/cpu"
NODE_FOLDER = "sys/devices/system/node"
EFFICIENT = "sys/devices/cpu_atom/cpus"
"""Only where there are P-cores too (Linux 5.13, arch/x86/events/intel/core.c)."""
STATUS = "proc/self/status"
MIB = 1 << 20
UNLIMITED_BYTES = 1 << 60
"""cgroup v1 writes "no limit" as the largest page-aligned 63-bit number; nothing above an exbibyte is a
limit."""
CAP_SYS_NICE = 23
"""linux/capability.h: with it a container's system-call filter lets set_mempolicy through."""
LSCPU = ("lscpu", "--parse=CPU,Core,Socket,Node")
"""As the launcher calls it."""


@dataclass(frozen=True, kw_only=True)
class Core:
    """One physical core, of which one CPU is used."""

    cpu: int
    """The CPU that works: the lowest allowed one of the core."""
    siblings: tuple[int, ...]
    """All online CPUs of the core (SMT siblings), allowed or not."""
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
    online = files.read_ids(f"{CPU_FOLDER}/online")
    if not online:
        raise ConfigError(
            f"no machine below {files.root}: {CPU_FOLDER}/online is missing; "
            "name a recorded machine (a folder with sys/ and proc/, or with recording.txt)"
        )
    allowed = _read_allowed(files, online)
    node_of = {
        cpu: node
        for node in files.read_ids(f"{NODE_FOLDER}/online")
        for cpu in files.read_ids(f"{NODE_FOLDER}/node{node}/cpulist")
    }
    cores = _read_cores(files, allowed, node_of)
    nodes = tuple(sorted({core.node for core in cores}))
    quota_cpus = min(_list_quotas(files), default=None)
    memory_mib, memory_source = _read_memory(files)
    flags = (files.read_field("proc/cpuinfo", "flags") or "").split()  # the same of all CPUs of a server
    mems = parse_id_list(files.read_field(STATUS, "Mems_allowed_list") or "0")
    numactl = shutil.which("numactl") is not None if files.live else bool(files.read("probe/numactl"))
    return Topology(
        cpus_allowed=allowed,
        cores=cores,
        nodes=nodes,
        sockets=len({core.socket for core in cores}),
        numa=files.read(f"{NODE_FOLDER}/online") is not None,
        quota_cpus=quota_cpus,
        usable_cores=count_usable_cores(len(cores), quota_cpus),
        memory_limit_mib=memory_mib,
        memory_source=memory_source,
        flags=tuple(flag for flag in FLAGS if flag in flags),
        vendor=files.read_field("proc/cpuinfo", "vendor_id") or "unknown",
        model_name=files.read_field("proc/cpuinfo", "model name") or "unknown",
        cpu_total=len(online),
        efficient_cpus=files.read_ids(EFFICIENT),
        mems_allowed=mems,
        numactl=numactl,
        can_bind_memory=numactl and {*nodes} <= {*mems} and _can_bind_memory(files, nodes),
        launcher_numactl=numactl and _can_launcher_bind(files, allowed, mems),
        lscpu_view=_read_lscpu(files, online, node_of),
    )


def count_usable_cores(cores: int, quota_cpus: float | None) -> int:
    """A part of a CPU above the quota's whole part would be spent throttled, so it is not used; but at least
    one."""
    return cores if quota_cpus is None else max(1, min(cores, int(quota_cpus + 1e-9)))


def _read_allowed(files: MachineFiles, online: tuple[int, ...]) -> tuple[int, ...]:
    """The scheduler's mask already holds the cpuset, except where a manager changed one behind the other's
    back. Going up, the first cpuset that is not empty counts: `effective` is what is left after all
    parents."""
    recorded = parse_id_list(files.read_field(STATUS, "Cpus_allowed_list") or "") or online
    allowed = {*online} & {*(os.sched_getaffinity(0) if files.live else recorded)}
    if not allowed:
        raise ConfigError(f"no CPU is left: online {list(online)}, allowed by affinity none of them")
    names = ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus")
    cpusets = (files.read_ids(f"{group}/{name}") for group in _list_groups(files, "cpuset") for name in names)
    return tuple(sorted(allowed & {*next(filter(None, cpusets), ())} or allowed))


def _read_cores(
    files: MachineFiles, allowed: tuple[int, ...], node_of: Mapping[int, int]
) -> tuple[Core, ...]:
    """One per physical core: of its siblings the lowest allowed CPU. A virtual machine may show no topology:
    then each CPU is a core, and a node shares its cache."""
    cores = []
    for cpu in allowed:
        folder, node = f"{CPU_FOLDER}/cpu{cpu}", node_of.get(cpu, 0)
        siblings = files.read_ids(f"{folder}/topology/thread_siblings_list") or (cpu,)
        shared = files.read_ids(f"{folder}/cache/index3/shared_cpu_list")
        if cpu == min({*siblings} & {*allowed}):
            cores.append(
                Core(
                    cpu=cpu,
                    siblings=siblings,
                    socket=int(files.read(f"{folder}/topology/physical_package_id") or 0),
                    node=node,
                    l3=shared[0] if shared else min((c for c, n in node_of.items() if n == node), default=0),
                )
            )
    return tuple(sorted(cores, key=lambda core: (core.node, core.l3, core.cpu)))


def _list_quotas(files: MachineFiles) -> Iterator[float]:
    """In CPUs, of the own control group and all above."""
    for group in _list_groups(files, "cpu"):
        quota, period = [*(files.read(f"{group}/cpu.max") or "max").split(), "100000"][:2]
        if quota != "max":
            yield int(quota) / int(period)
        v1_quota = files.read(f"{group}/cpu.cfs_quota_us")
        v1_period = files.read(f"{group}/cpu.cfs_period_us")
        if v1_quota and v1_period and int(v1_quota) > 0:
            yield int(v1_quota) / int(v1_period)


def _read_memory(files: MachineFiles) -> tuple[int, str]:
    """MiB, and the file that says so. memory.high counts too: above it the kernel slows the process down
    until it gives memory back."""
    total_kib = files.read_field("proc/meminfo", "MemTotal")
    if total_kib is None:
        raise ConfigError(f"no machine below {files.root}: proc/meminfo with MemTotal is missing")
    found = [(int(total_kib.split()[0]) // 1024, "/proc/meminfo MemTotal")]
    for group in _list_groups(files, "memory"):
        for name in ("memory.max", "memory.high", "memory.limit_in_bytes"):
            text = files.read(f"{group}/{name}")
            if text and text != "max" and int(text) < UNLIMITED_BYTES:
                found.append((int(text) // MIB, f"{group}/{name}"))
    return min(found, key=lambda one: one[0])


def _list_groups(files: MachineFiles, controller: str) -> Iterator[str]:
    """The folder of the own control group and its parents up to the mount point, in each hierarchy that has
    the controller; proc(5): /proc/pid/cgroup and mountinfo. Version 2 has no controllers' names: it is "".
    """
    groups: dict[str, str] = {}
    for line in (files.read("proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        groups |= dict.fromkeys(controllers.split(","), path)
    for line in (files.read("proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        kind, options = right.split(" ")[0], right.split(" ")[-1].split(",")
        key = "" if kind == "cgroup2" else controller
        if key in groups and (kind == "cgroup2" or (kind == "cgroup" and controller in options)):
            shown, mount_point = left.split(" ")[3:5]
            group, inside = PurePosixPath(groups[key]), PurePosixPath()
            # A group outside the part that is mounted is not visible: limits are read at the mount point.
            if group.is_relative_to(shown) and ".." not in group.relative_to(shown).parts:
                inside = group.relative_to(shown)
            folder = mount_point / inside
            yield from (str(one) for one in (folder, *folder.parents) if one.is_relative_to(mount_point))


def _can_bind_memory(files: MachineFiles, nodes: Collection[int]) -> bool:
    """Does `numactl -m` work for each of these nodes? Container engines filter system calls (Seccomp: 2) and
    let set_mempolicy through with CAP_SYS_NICE only."""
    if files.live:
        return all(_succeeds("numactl", "-m", str(node), "true") for node in nodes)
    if outcome := files.read("probe/membind"):
        return outcome == "ok"
    capabilities = int(files.read_field(STATUS, "CapEff") or "0", 16)
    return files.read_field(STATUS, "Seccomp") != "2" or bool(capabilities >> CAP_SYS_NICE & 1)


def _can_launcher_bind(files: MachineFiles, allowed: Collection[int], mems: Collection[int]) -> bool:
    """The launcher tries `numactl -C 0 -m 0 hostname`, whatever CPUs it is to use.

    So it fails where CPU 0 or node 0 is not ours, though numactl would work for the CPUs that are.
    """
    if files.live:
        return _succeeds("numactl", "-C", "0", "-m", "0", "hostname")
    return 0 in allowed and 0 in mems and _can_bind_memory(files, (0,))


def _succeeds(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=10, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _read_lscpu(files: MachineFiles, online: Collection[int], node_of: Mapping[int, int]) -> tuple[str, ...]:
    """The data lines of lscpu's parsable output; nothing where it is missing: the launcher runs it, too.

    Where it was not recorded it is derived: lscpu (util-linux 2.38) numbers cores and sockets in the order
    their first online CPU comes; no node is ''.
    """
    text = files.read("probe/lscpu")
    if files.live:
        there = shutil.which(LSCPU[0]) is not None
        text = subprocess.run(LSCPU, capture_output=True, text=True, check=False).stdout if there else ""
    if text is not None:
        return tuple(line for line in text.splitlines() if line and not line.startswith("#"))
    cores: dict[tuple[int, ...], int] = {}
    sockets: dict[str, int] = {}
    lines = []
    for cpu in online:
        folder = f"{CPU_FOLDER}/cpu{cpu}/topology"
        core = cores.setdefault(files.read_ids(f"{folder}/thread_siblings_list") or (cpu,), len(cores))
        socket = sockets.setdefault(files.read(f"{folder}/physical_package_id") or "0", len(sockets))
        lines.append(f"{cpu},{core},{socket},{node_of.get(cpu, '')}")
    return tuple(lines)
