"""Facts no single file tells: the NUMA node of a CPU, whether memory can be bound, what lscpu shows the
launcher.

On the live machine the commands themselves are tried. A recorded machine may hold their outcome as
`probe/numactl` (its path), `probe/membind` ("ok" or the error) and `probe/lscpu` (its output); what is
missing is derived.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence

from config.files import MachineFiles, parse_id_list

CAP_SYS_NICE = 23
"""linux/capability.h: with it a container's system-call filter lets set_mempolicy through."""

LSCPU_COLUMNS = "CPU,Core,Socket,Node"


def read_field(files: MachineFiles, path: str, name: str) -> str | None:
    """The first `name: value` of a file like /proc/meminfo."""
    match = re.search(rf"^{re.escape(name)}\s*:[ \t]*(.*)$", files.read(path) or "", re.MULTILINE)
    return match.group(1).strip() if match else None


def read_status(files: MachineFiles, name: str) -> str | None:
    """A field of /proc/self/status."""
    return read_field(files, "proc/self/status", name)


def read_cpu_nodes(files: MachineFiles) -> dict[int, int]:
    """CPU → NUMA node; empty where the kernel shows no nodes."""
    nodes: dict[int, int] = {}
    for node in parse_id_list(files.read("sys/devices/system/node/online") or ""):
        for cpu in parse_id_list(files.read(f"sys/devices/system/node/node{node}/cpulist") or ""):
            nodes[cpu] = node
    return nodes


def has_numactl(files: MachineFiles) -> bool:
    """Is the numactl command installed?"""
    return shutil.which("numactl") is not None if files.live else bool(files.read("probe/numactl"))


def can_bind_memory(files: MachineFiles, nodes: Sequence[int]) -> bool:
    """Does `numactl -m` work for each of these nodes? set_mempolicy is often blocked in containers."""
    if not has_numactl(files):
        return False
    if files.live:
        return all(_succeeds("numactl", "-m", str(node), "true") for node in nodes)
    outcome = files.read("probe/membind")
    return outcome == "ok" if outcome else not _filtered_without_capability(files)


def launcher_numactl_works(files: MachineFiles, allowed: Sequence[int], mems: Sequence[int]) -> bool:
    """The launcher tries `numactl -C 0 -m 0 hostname`, whatever CPUs it is to use.

    So it fails where CPU 0 or node 0 is not ours, though numactl would work for the CPUs that are.
    """
    if not has_numactl(files):
        return False
    if files.live:
        return _succeeds("numactl", "-C", "0", "-m", "0", "hostname")
    return 0 in allowed and 0 in mems and can_bind_memory(files, (0,))


def read_lscpu(files: MachineFiles, online: Sequence[int]) -> tuple[str, ...]:
    """The data lines of lscpu's parsable output; derived from sysfs where it was not recorded."""
    text = _run_lscpu() if files.live else files.read("probe/lscpu")
    if text is None:
        return _derive_lscpu(files, online)
    return tuple(line for line in text.splitlines() if line and not line.startswith("#"))


def _run_lscpu() -> str:
    """The launcher runs it itself, and fails where it is missing: then it sees nothing."""
    if shutil.which("lscpu") is None:
        return ""
    command = ["lscpu", f"--parse={LSCPU_COLUMNS}"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def _derive_lscpu(files: MachineFiles, online: Sequence[int]) -> tuple[str, ...]:
    """lscpu (util-linux 2.38) numbers cores and sockets in the order their first online CPU comes; no node is
    ''."""
    nodes = read_cpu_nodes(files)
    cores: dict[tuple[int, ...], int] = {}
    sockets: dict[str, int] = {}
    lines = []
    for cpu in online:
        folder = f"sys/devices/system/cpu/cpu{cpu}/topology"
        siblings = parse_id_list(files.read(f"{folder}/thread_siblings_list") or str(cpu))
        core = cores.setdefault(siblings, len(cores))
        socket = sockets.setdefault(files.read(f"{folder}/physical_package_id") or "0", len(sockets))
        lines.append(f"{cpu},{core},{socket},{nodes.get(cpu, '')}")
    return tuple(lines)


def _filtered_without_capability(files: MachineFiles) -> bool:
    """Container engines filter system calls (Seccomp: 2) and let set_mempolicy through with CAP_SYS_NICE
    only."""
    capabilities = int(read_status(files, "CapEff") or "0", 16)
    return read_status(files, "Seccomp") == "2" and not capabilities >> CAP_SYS_NICE & 1


def _succeeds(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=10, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
