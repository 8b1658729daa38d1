"""The launcher's arguments that give each worker exactly its planned CPUs, and what memory binding comes
with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from config.files import render_id_list
from config.launcher import Launched, LauncherArgs, LauncherError, simulate_launcher
from config.rules.layout import Chunk
from config.rules.reasons import explain_shared
from config.topology import Topology


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
        if [each.cpus for each in launched] == list(chunks) and _is_one_instance_each(launched, chunks):
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


def _is_one_instance_each(launched: Sequence[Launched], chunks: Sequence[Chunk]) -> bool:
    return all(each.instances == 1 and each.omp_num_threads == len(chunks[0]) for each in launched)


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
