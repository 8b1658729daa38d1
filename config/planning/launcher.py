"""cpu_launcher_args that give each worker its planned CPUs, and the memory binding that comes with them.

`simulate_launcher` is torch 2.8's torch/backends/xeon/run_cpu.py as TorchServe 0.12 calls it, with
`--ninstances N --rank r` behind the arguments where a model has more than one worker; a test compares it with
the real launcher. Arguments are taken only where it hands every rank exactly the planned CPUs.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from config.planning.layout import Chunk
from config.topology import Topology

LSCPU_LINE = re.compile(r"^(\d+),(\d+),\d+,(\d?)")
"""The launcher's own expression: of a NUMA node's number it keeps the first digit only."""
SHARED = "the quota names no CPUs: every server on this machine that bound itself would take the first ones"
UNBOUND = "--disable_numactl --disable_taskset"
"""Both: the launcher binds nothing, and still sets threads and preloads libraries."""

MemoryNodes = tuple[int, ...] | None
"""None: memory is not bound."""


class LauncherError(Exception):
    """The launcher would stop with an exception; TorchServe would then start workers unpinned."""


@dataclass(frozen=True, kw_only=True)
class Launched:
    """What one worker gets."""

    copies: int
    """Processes that are started for it; anything but 1 breaks TorchServe."""
    cpus: Chunk
    """Handed to `numactl -C` or `taskset -c`; none where neither is used."""
    nodes: MemoryNodes
    """Handed to `numactl -m`; None without numactl."""
    threads: int
    """OMP_NUM_THREADS."""


def simulate_launcher(args: str, lscpu_view: Sequence[str], *, workers: int, numactl: bool) -> list[Launched]:
    """By rank; `numactl`: the launcher's own probe of it succeeds."""
    cores_of, node_of = _read_view(lscpu_view)
    words = args.split(" ")
    given = dict(itertools.pairwise(words))
    count = workers if workers > 1 else int(given.get("--ninstances", 0))
    size = int(given.get("--ncores_per_instance", 0))
    if "--core_list" in given:
        cores = [int(cpu) for cpu in given["--core_list"].split(",")]
        if not 1 < count < len(cores) / size:
            count = len(cores) // size
    else:
        node = int(given.get("--node_id", -1))
        if node >= len(cores_of):
            raise LauncherError(f"no node {node}")
        cores = [core for one in (cores_of if node < 0 else [cores_of[node]]) for core in one]
        count = count or (len(cores) // size if size else 1)
        size = size or len(cores) // count
        if not size or count * size > len(cores):
            raise LauncherError(f"{count} workers of {size} cores on {len(cores)}")
    bound = "--disable_taskset" not in words
    launched = []
    for rank in range(workers):
        cpus = tuple(sorted(cores)[rank * size : (rank + 1) * size]) if bound else ()
        nodes = None
        if numactl and "--disable_numactl" not in words:
            if not cpus or not {*cpus} <= {*node_of}:
                raise LauncherError(f"lscpu does not list all of CPUs {list(cpus)}")
            nodes = tuple(dict.fromkeys(node_of[cpu] for cpu in cpus))
        launched.append(Launched(copies=1 if workers > 1 else count, cpus=cpus, nodes=nodes, threads=size))
    return launched


def _read_view(lscpu_view: Sequence[str]) -> tuple[list[list[int]], dict[int, int]]:
    """Core numbers by node, and the node of each CPU. Without any NUMA node `int("")` stops the launcher."""
    rows = [found.groups() for found in map(LSCPU_LINE.match, lscpu_view) if found]
    last = max((node for _, _, node in rows), default="")
    if not last:
        raise LauncherError(
            "lscpu is missing or shows no NUMA node, and the launcher reads no machine without one"
        )
    cores: list[list[int]] = [[] for _ in range(int(last) + 1)]
    for _, core, node in rows:
        if int(core) not in cores[int(node or 0)]:
            cores[int(node or 0)].append(int(core))
    return cores, {int(cpu): int(node or 0) for cpu, _, node in rows}


def choose_launch(
    topology: Topology, chunks: Sequence[Chunk], why: dict[str, str], *, counted: bool, pinning: bool
) -> tuple[str | None, tuple[MemoryNodes, ...]]:
    """(The part of cpu_launcher_args that selects CPUs, None where the launcher is not used; the NUMA nodes
    that `numactl -m` gets, by rank): `--node_id` where it means the plan, else the list of CPUs.

    `counted`: a launcher that must be told how many workers a list is for (torch 2.14 starts nothing
    without). `pinning`: False for a baseline.
    """
    unbound = (None,) * len(chunks)
    if not pinning:
        why["launched"] = "the launcher is switched off: a baseline"
        return None, unbound
    owned, size, problem = topology.owns_cpus, len(chunks[0]), "it cannot name these CPUs"
    node_of = {cpu: core.node for core in topology.cores for cpu in core.siblings}
    cpus = sorted(cpu for chunk in chunks for cpu in chunk)
    # One worker's count is said, because TorchServe says none, and as many would be started as fit.
    single = " --ninstances 1" * (len(chunks) == 1 and (counted or not owned))
    each = f"--ncores_per_instance {size}{single}"
    listed = f"--core_list {','.join(map(str, cpus))} {each}"
    by_node = (f"--node_id {node}" for node in dict.fromkeys(node_of[cpu] for cpu in cpus))
    simulate = functools.partial(
        simulate_launcher,
        lscpu_view=topology.lscpu_view,
        workers=len(chunks),
        numactl=topology.launcher_numactl,
    )
    for args in [*by_node, listed] if owned else [f"{each} {UNBOUND}"]:
        try:
            found = simulate(args)
            right = all(
                {*one.nodes} == {node_of.get(cpu) for cpu in one.cpus}
                for one in found
                if one.nodes is not None
            )
            # `numactl -m` of a node that is not ours, or not there, would stop the worker.
            if owned and not (topology.launcher_numactl and topology.can_bind_memory and right):
                args = f"{args} --disable_numactl"
                found = simulate(args)
        except LauncherError as error:
            problem = str(error)
            continue
        if not owned:
            why["pinned"] = why["memory_nodes"] = SHARED
            return args, unbound
        if [(one.cpus, one.copies, one.threads) for one in found] == [(chunk, 1, size) for chunk in chunks]:
            why["properties.cpu_launcher_args"] = (
                "on this machine the launcher takes this node for exactly the planned CPUs"
                if args.startswith("--node_id")
                else "a list, because --node_id would not mean exactly these CPUs: the launcher takes core "
                "numbers of lscpu for CPU numbers, and knows no cpusets"
            )
            why["memory_nodes"] = _explain_memory(topology, found[0].nodes is not None)
            return args, tuple(one.nodes for one in found)
    why["launched"] = f"the launcher cannot be used on this machine: {problem}"
    return None, unbound


def _explain_memory(topology: Topology, bound: bool) -> str:
    if bound:
        return "the launcher runs each worker under numactl -m with the NUMA node of its CPUs"
    if not topology.numactl:
        why = "numactl is not installed, so the launcher pins with taskset"
    elif not topology.can_bind_memory:
        why = "numactl -m does not work here (a container without CAP_SYS_NICE, or with other nodes)"
    elif not topology.launcher_numactl:
        why = "the launcher tries numactl on CPU 0 and node 0, which are not ours, and takes taskset"
    else:
        why = "the launcher would name the wrong NUMA node to numactl -m, so numactl is switched off"
    return f"not bound: {why}"
