"""Writes the recording of a made-up machine, as a kernel would show it; for the fixtures and for random
machines.

`python -m tests.config.synthetic` writes machines/ again; a test holds that they are what this prints.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from config.files import render_id_list

MACHINES = Path(__file__).parent / "machines"
NODES, CPUS = "sys/devices/system/node", "sys/devices/system/cpu"
INTEL = "avx avx2 avx512f avx512_vnni avx512_bf16 amx_bf16 amx_tile amx_int8"
AMD = "avx avx2 avx512f avx512_bf16 avx512_vnni"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A server; numbers per socket where not said otherwise."""

    sockets: int = 1
    cores: int = 8
    threads: int = 1
    """CPUs per core."""
    efficient: int = 0
    """Of the cores the last, without SMT: a hybrid CPU of one socket."""
    adjacent: bool = False
    """Siblings are neighbours (0, 1), as on cloud machines; else i and i + N."""
    interleaved: bool = False
    """Cores are numbered round the sockets, as some makers' firmware does."""
    nodes: int = 1
    """NUMA nodes; 0 = the kernel shows none at all."""
    l3_cores: int = 0
    """Cores sharing a level-3 cache; 0 = the whole socket."""
    offline: tuple[int, ...] = ()
    allowed: str | None = None
    """Cpus_allowed_list; None = all online ones."""
    mems: str | None = None
    """Mems_allowed_list; None = all nodes."""
    container: bool = False
    """System calls are filtered and CAP_SYS_NICE is missing."""
    groups: tuple[str, ...] = ()
    """Recorded lines of control groups."""
    numactl: bool = True
    memory_gib: int = 64
    vendor: str = "GenuineIntel"
    model_name: str = "Intel(R) Xeon(R) Platinum 8480+"
    flags: str = INTEL

    def cpu(self, socket: int, core: int, thread: int) -> int:
        """The kernel's number of a hardware thread."""
        if core >= self.cores - self.efficient:
            return core + (self.threads - 1) * (self.cores - self.efficient)
        number = core * self.sockets + socket if self.interleaved else socket * self.cores + core
        if self.adjacent:
            return number * self.threads + thread
        return number + thread * self.sockets * self.cores

    def places(self) -> Iterator[tuple[int, int, int]]:
        """(CPU, socket, core) of every online CPU."""
        for socket in range(self.sockets):
            for core in range(self.cores):
                for thread in range(1 if core >= self.cores - self.efficient else self.threads):
                    cpu = self.cpu(socket, core, thread)
                    if cpu not in self.offline:
                        yield cpu, socket, core


def render_machine(machine: Machine) -> str:
    """The recording."""
    places = sorted(machine.places())
    online = [cpu for cpu, _, _ in places]
    lines = [f"{CPUS}/online:{render_id_list(online)}"]
    for place in places:
        lines += _cpu_lines(machine, place, places)
    if machine.efficient:
        lines.append(f"sys/devices/cpu_atom/cpus:{render_id_list(online[-machine.efficient :])}")
    lines += _node_lines(machine, places) + _process_lines(machine, online)
    return "\n".join([*lines, *machine.groups]) + "\n"


def _cpu_lines(
    machine: Machine, place: tuple[int, int, int], places: Sequence[tuple[int, int, int]]
) -> list[str]:
    cpu, socket, core = place
    size = machine.l3_cores or machine.cores
    siblings = [c for c, s, k in places if (s, k) == (socket, core)]
    l3 = [c for c, s, k in places if (s, k // size) == (socket, core // size)]
    folder = f"{CPUS}/cpu{cpu}"
    return [
        f"{folder}/topology/core_id:{core}",
        f"{folder}/topology/physical_package_id:{socket}",
        f"{folder}/topology/thread_siblings_list:{render_id_list(siblings)}",
        f"{folder}/cache/index3/shared_cpu_list:{render_id_list(l3)}",
    ]


def _node_lines(machine: Machine, places: Sequence[tuple[int, int, int]]) -> list[str]:
    if not machine.nodes:
        return []
    total, size = machine.sockets * machine.nodes, machine.cores / machine.nodes
    lines = [f"{NODES}/online:{render_id_list(range(total))}"]
    for node in range(total):
        cpus = [c for c, s, k in places if s * machine.nodes + int(k // size) == node]
        lines.append(f"{NODES}/node{node}/cpulist:{render_id_list(cpus)}")
    return lines


def _process_lines(machine: Machine, online: Sequence[int]) -> list[str]:
    nodes = f"0-{machine.sockets * max(machine.nodes, 1) - 1}"
    return [
        f"proc/cpuinfo:vendor_id\t: {machine.vendor}",
        f"proc/cpuinfo:model name\t: {machine.model_name}",
        f"proc/cpuinfo:flags\t\t: fpu sse2 {machine.flags}",
        f"proc/meminfo:MemTotal:       {machine.memory_gib << 20} kB",
        f"proc/self/status:CapEff:\t{'00000000a80425fb' if machine.container else '000001ffffffffff'}",
        f"proc/self/status:Seccomp:\t{2 if machine.container else 0}",
        f"proc/self/status:Cpus_allowed_list:\t{machine.allowed or render_id_list(list(online))}",
        f"proc/self/status:Mems_allowed_list:\t{machine.mems or nodes}",
        *(["probe/numactl:/usr/bin/numactl"] if machine.numactl else []),
    ]


def _v2(*files: str, path: str = "/") -> tuple[str, ...]:
    """A container's control groups, version 2: its own group is the root it sees."""
    return (
        f"proc/self/cgroup:0::{path}",
        "proc/self/mountinfo:30 23 0:26 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw,nsdelegate",
        *(f"sys/fs/cgroup/{file}" for file in files),
    )


def _v1(*files: str) -> tuple[str, ...]:
    """A container's, version 1, without a namespace of its own: the host's path is shown, the group is the
    root."""
    name = "/docker/6f2a"
    mounts, base = ("cpu,cpuacct", "cpuset", "memory"), "/sys/fs/cgroup"
    return (
        *(f"proc/self/cgroup:{number}:{mount}:{name}" for number, mount in enumerate(mounts, start=2)),
        *(
            f"proc/self/mountinfo:{40 + n} 39 0:3{n} {name} {base}/{mount} ro - cgroup cgroup rw,{mount}"
            for n, mount in enumerate(mounts)
        ),
        *(f"sys/fs/cgroup/{file}" for file in files),
    )


EPYC = {"vendor": "AuthenticAMD", "model_name": "AMD EPYC 9354", "flags": AMD}

FIXTURES: dict[str, Machine] = {
    "single-socket": Machine(cores=8),
    "two-sockets-smt": Machine(sockets=2, cores=16, threads=2, memory_gib=256),
    "cloud-adjacent-siblings": Machine(cores=4, threads=2, adjacent=True, memory_gib=32),
    "sub-numa-clusters": Machine(sockets=2, cores=16, threads=2, nodes=2, memory_gib=256),
    "amd-l3-groups": Machine(cores=32, threads=2, l3_cores=8, memory_gib=256, **EPYC),  # type: ignore[arg-type]
    "interleaved-nodes": Machine(sockets=2, cores=8, threads=2, interleaved=True, memory_gib=128),
    "container-cpuset": Machine(
        sockets=2, cores=8, threads=2, memory_gib=128, container=True, allowed="10-13,26-29", mems="1",
        groups=_v2("cpuset.cpus.effective:10-13,26-29", "cpu.max:max 100000", "memory.max:34359738368"),
    ),
    "container-quota-v2": Machine(
        cores=8, memory_gib=64, container=True,
        groups=_v2(
            "kubepods.slice/pod1.slice/app.scope/cpu.max:max 100000",
            "kubepods.slice/pod1.slice/cpu.max:250000 100000",
            "kubepods.slice/cpu.max:700000 100000", "kubepods.slice/pod1.slice/memory.max:17179869184",
            "cpuset.cpus.effective:0-7", path="/kubepods.slice/pod1.slice/app.scope",
        ),
    ),
    "container-quota-v1": Machine(
        cores=4, memory_gib=32, container=True,
        groups=_v1(
            "cpu,cpuacct/cpu.cfs_quota_us:150000", "cpu,cpuacct/cpu.cfs_period_us:100000",
            "cpuset/cpuset.effective_cpus:0-3", "memory/memory.limit_in_bytes:12884901888",
        ),
    ),
    "hybrid": Machine(
        cores=12, threads=2, adjacent=True, efficient=4, memory_gib=64, flags="avx avx2",
        model_name="12th Gen Intel(R) Core(TM) i7-12700",
    ),
    "offline-cpus": Machine(cores=6, threads=2, offline=(2, 7, 8, 11)),
    "no-numa": Machine(cores=4, nodes=0, numactl=False, memory_gib=16),
}  # fmt: skip


def write_fixtures() -> None:
    """All of FIXTURES, each as one recording."""
    for name, machine in FIXTURES.items():
        folder = MACHINES / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "recording.txt").write_text(render_machine(machine), encoding="utf-8")


if __name__ == "__main__":
    write_fixtures()
