"""The launcher's arguments that give each worker its planned CPUs, and what memory binding comes with them.

The launcher is modelled line by line, from torch 2.8's torch/backends/xeon/run_cpu.py (`_CPUinfo`,
`_Launcher.launch`) and TorchServe 0.12's WorkerLifeCycle.java, which appends `--ninstances N --rank r` when a
model has more than one worker. Arguments are accepted only when this model says that every rank gets exactly
the planned CPUs. torch 2.14 starts nothing with a core list and without `--ninstances`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from config.files import render_id_list
from config.rules.layout import Chunk, explain_shared
from config.topology import Topology

LSCPU_LINE = re.compile(r"^([\d]+,[\d]+,[\d]+,[\d]?)")
"""The launcher's own expression: of a NUMA node's number it keeps the first digit only."""


class LauncherError(Exception):
    """The launcher would stop with an exception; TorchServe would then run the workers unpinned."""


@dataclass(frozen=True, kw_only=True)
class LauncherArgs:
    """Those arguments that select CPUs."""

    node_id: int | None = None
    """--node_id"""
    core_list: tuple[int, ...] = ()
    """--core_list"""
    cores_per_instance: int | None = None
    """--ncores_per_instance"""
    instances: int | None = None
    """--ninstances, where TorchServe appends none"""
    disable_numactl: bool = False
    """--disable_numactl"""
    disable_taskset: bool = False
    """--disable_taskset: without numactl too nothing is bound"""

    def render(self) -> str:
        """As TorchServe takes them: one string, split at single blanks, so no blank inside the core list."""
        parts = []
        if self.node_id is not None:
            parts.append(f"--node_id {self.node_id}")
        if self.core_list:
            parts.append(f"--core_list {','.join(map(str, self.core_list))}")
        if self.cores_per_instance is not None:
            parts.append(f"--ncores_per_instance {self.cores_per_instance}")
        if self.instances is not None:
            parts.append(f"--ninstances {self.instances}")
        parts += ["--disable_numactl"] if self.disable_numactl else []
        return " ".join([*parts, "--disable_taskset"] if self.disable_taskset else parts)


@dataclass(frozen=True, kw_only=True)
class Launched:
    """What one worker gets."""

    instances: int
    """Copies of the worker that are started; anything but 1 breaks TorchServe."""
    cpus: tuple[int, ...]
    """The numbers handed to `numactl -C` or `taskset -c`; none where neither is used."""
    memory_nodes: tuple[int, ...] | None
    """The numbers handed to `numactl -m`; None with taskset."""
    omp_num_threads: int
    """OMP_NUM_THREADS."""


def simulate_launcher(
    args: LauncherArgs, lscpu_view: Sequence[str], *, workers: int, rank: int, numactl_works: bool
) -> Launched:
    """The launcher of worker `rank` of `workers`, as TorchServe starts it."""
    physical, cpu_nodes = _read_view(lscpu_view)
    ninstances = workers if workers > 1 else args.instances or -1
    cores, ninstances, per_instance = _select_cores(args, physical, ninstances)
    start = rank * per_instance if workers > 1 else 0
    bound = not (args.disable_numactl and args.disable_taskset)
    cpus = sorted(cores)[start : start + per_instance] if bound else []
    numactl = numactl_works and not args.disable_numactl
    return Launched(
        instances=1 if workers > 1 else ninstances,
        cpus=tuple(cpus),
        memory_nodes=_memory_nodes(cpus, cpu_nodes) if numactl else None,
        omp_num_threads=per_instance,
    )


def _read_view(lscpu_view: Sequence[str]) -> tuple[list[list[int]], dict[int, int]]:
    """Core numbers by node, and the node of each CPU. Without any NUMA node `int("")` stops the launcher."""
    matches = [LSCPU_LINE.search(line) for line in lscpu_view]
    rows = [match.group(1).split(",") for match in matches if match]
    last_node = max((row[3] for row in rows), default="")
    if not last_node:
        raise LauncherError(
            "lscpu is missing or shows no NUMA node, and the launcher reads no machine without one"
        )
    physical: list[list[int]] = [[] for _ in range(int(last_node) + 1)]
    cpu_nodes: dict[int, int] = {}
    for cpu, core, _, node in rows:
        cpu_nodes[int(cpu)] = int(node or 0)
        if int(core) not in physical[int(node or 0)]:
            physical[int(node or 0)].append(int(core))
    return physical, cpu_nodes


def _select_cores(
    args: LauncherArgs, physical: list[list[int]], ninstances: int
) -> tuple[list[int], int, int]:
    """(cores, instances, cores per instance)."""
    if args.core_list:
        return _select_listed(args, ninstances)
    cores = _node_cores(args.node_id, physical)
    if args.cores_per_instance is None:
        if ninstances == -1:
            return cores, 1, len(cores)
        if ninstances > len(cores):
            raise LauncherError(f"{ninstances} instances on {len(cores)} cores")
        return cores, ninstances, len(cores) // ninstances
    if ninstances == -1:
        return cores, len(cores) // args.cores_per_instance, args.cores_per_instance
    if ninstances * args.cores_per_instance > len(cores):
        raise LauncherError(f"{ninstances} instances of {args.cores_per_instance} on {len(cores)} cores")
    return cores, ninstances, args.cores_per_instance


def _select_listed(args: LauncherArgs, ninstances: int) -> tuple[list[int], int, int]:
    """Without `--ninstances` as many copies are started as fit into the list."""
    if args.cores_per_instance is None:
        raise LauncherError("--core_list needs --ncores_per_instance")
    if ninstances > 1 and args.cores_per_instance * ninstances < len(args.core_list):
        return list(args.core_list), ninstances, args.cores_per_instance
    return list(args.core_list), len(args.core_list) // args.cores_per_instance, args.cores_per_instance


def _node_cores(node_id: int | None, physical: list[list[int]]) -> list[int]:
    if node_id is None:
        return [core for cores in physical for core in cores]
    if node_id >= len(physical):
        raise LauncherError(f"no node {node_id}")
    return physical[node_id]


def _memory_nodes(cpus: Sequence[int], cpu_nodes: dict[int, int]) -> tuple[int, ...]:
    """Nodes in the order of the CPUs; a number lscpu does not list stops the launcher."""
    if not cpus or any(cpu not in cpu_nodes for cpu in cpus):
        raise LauncherError(f"lscpu does not list all of CPUs {list(cpus)}")
    return tuple(dict.fromkeys(cpu_nodes[cpu] for cpu in cpus))


@dataclass(frozen=True, kw_only=True)
class Pinning:
    """How the launcher is called, and what comes of it."""

    args: LauncherArgs | None
    """None: the launcher is not used."""
    args_reason: str
    """Why these arguments."""
    memory_nodes: tuple[tuple[int, ...] | None, ...]
    """Per rank: what `numactl -m` gets; None = memory is not bound."""
    memory_reason: str
    """Why."""

    @property
    def bound(self) -> bool:
        """Whether each worker is kept on CPUs of its own."""
        return self.args is not None and not self.args.disable_taskset


def choose_pinning(topology: Topology, chunks: Sequence[Chunk], *, counted: bool = False) -> Pinning:
    """`--node_id` where the model of the launcher says it means the plan, else the list of CPUs; `counted`: a
    launcher that must be told how many workers a list is for."""
    numactl = topology.launcher_numactl
    problem = ""
    for args in _proposals(topology, chunks, counted):
        try:
            launched = _launch(args, topology, chunks, numactl)
        except LauncherError as error:
            problem = str(error)
            continue
        got = [(each.cpus, each.instances, each.omp_num_threads) for each in launched]
        if got == [(chunk, 1, len(chunks[0])) for chunk in chunks]:
            return _describe(args, launched, topology, chunks, numactl)
    return unpinned(
        chunks, f"the launcher cannot be used on this machine: {problem or 'it cannot name these CPUs'}"
    )


def choose_unbound(topology: Topology, chunks: Sequence[Chunk]) -> Pinning:
    """The launcher for its libraries and threads alone: it counts cores without binding to any.

    One worker's count is said, because TorchServe says none, and as many would be started as fit.
    """
    reason = explain_shared(topology)
    args = LauncherArgs(
        cores_per_instance=len(chunks[0]),
        instances=1 if len(chunks) == 1 else None,
        disable_numactl=True,
        disable_taskset=True,
    )
    try:
        _simulate(args, topology, len(chunks), numactl=False)
    except LauncherError as error:
        return unpinned(chunks, f"{reason}; the launcher cannot be used on this machine: {error}")
    memory = "not bound: a worker may run on any NUMA node"
    return replace(unpinned(chunks, reason), args=args, memory_reason=memory)


def unpinned(chunks: Sequence[Chunk], reason: str) -> Pinning:
    """Nothing is bound."""
    return Pinning(args=None, args_reason=reason, memory_nodes=(None,) * len(chunks), memory_reason=reason)


def _proposals(topology: Topology, chunks: Sequence[Chunk], counted: bool) -> Iterator[LauncherArgs]:
    """The short form first; each with and without numactl."""
    cpu_nodes = _cpu_nodes(topology)
    nodes = {cpu_nodes[cpu] for chunk in chunks for cpu in chunk}
    flat = tuple(sorted(cpu for chunk in chunks for cpu in chunk))
    if len(nodes) == 1:
        yield LauncherArgs(node_id=nodes.pop())
    alone = 1 if counted and len(chunks) == 1 else None
    yield LauncherArgs(core_list=flat, cores_per_instance=len(chunks[0]), instances=alone)


def _launch(args: LauncherArgs, topology: Topology, chunks: Sequence[Chunk], numactl: bool) -> list[Launched]:
    """Each rank's outcome; numactl is switched off where its -m would name a node the worker cannot have."""
    launched = _simulate(args, topology, len(chunks), numactl)
    if numactl and not _binds_rightly(launched, topology):
        launched = _simulate(replace(args, disable_numactl=True), topology, len(chunks), numactl)
    return launched


def _simulate(args: LauncherArgs, topology: Topology, workers: int, numactl: bool) -> list[Launched]:
    return [
        simulate_launcher(args, topology.lscpu_view, workers=workers, rank=rank, numactl_works=numactl)
        for rank in range(workers)
    ]


def _binds_rightly(launched: Sequence[Launched], topology: Topology) -> bool:
    """`numactl -m` of a node that is not ours, or not there, would stop the worker instead of binding it."""
    cpu_nodes = _cpu_nodes(topology)
    return topology.can_bind_memory and all(
        set(each.memory_nodes or ()) == {cpu_nodes.get(cpu) for cpu in each.cpus} for each in launched
    )


def _describe(
    args: LauncherArgs,
    launched: Sequence[Launched],
    topology: Topology,
    chunks: Sequence[Chunk],
    numactl: bool,
) -> Pinning:
    bound = launched[0].memory_nodes is not None
    return Pinning(
        args=replace(args, disable_numactl=not bound),
        args_reason=_explain_args(args, chunks),
        memory_nodes=tuple(each.memory_nodes for each in launched),
        memory_reason=_explain_memory(topology, bound, numactl),
    )


def _explain_args(args: LauncherArgs, chunks: Sequence[Chunk]) -> str:
    cpus = render_id_list([cpu for chunk in chunks for cpu in chunk])
    if args.node_id is not None:
        return f"--node_id {args.node_id}: on this machine the launcher takes it for exactly CPUs {cpus}"
    return (
        "an explicit list, because --node_id would not mean exactly these CPUs here: the launcher passes "
        "lscpu's core numbers of the whole node as CPU numbers and knows neither cpusets nor quotas"
    )


def _explain_memory(topology: Topology, bound: bool, numactl: bool) -> str:
    if bound:
        return "the launcher runs each worker under numactl -m with the NUMA node of its CPUs"
    if not topology.numactl:
        return "not bound: numactl is not installed, so the launcher pins with taskset"
    if not topology.can_bind_memory:
        return (
            "not bound: numactl -m does not work here (a container without CAP_SYS_NICE, or with other nodes)"
        )
    if not numactl:
        return (
            "not bound: the launcher tries numactl on CPU 0 and node 0, which are not ours, and takes taskset"
        )
    return "not bound: the launcher would name the wrong NUMA node to numactl -m, so numactl is switched off"


def _cpu_nodes(topology: Topology) -> dict[int, int]:
    return {cpu: core.node for core in topology.cores for cpu in core.siblings}
