"""What torch.backends.xeon.run_cpu would do with given arguments: a model of its CPU selection, line by line.

From torch 2.8's torch/backends/xeon/run_cpu.py (`_CPUinfo`, `_Launcher.launch`) and TorchServe 0.12's
WorkerLifeCycle.java, which appends `--ninstances N --rank r` when a model has more than one worker. The rules
accept arguments only when this model says that every rank gets exactly the planned CPUs. torch 2.14's differs
in one thing of these: with a core list and without `--ninstances` it starts nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

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
