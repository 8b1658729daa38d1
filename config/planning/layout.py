"""How many workers, with how many cores, on which CPUs: arithmetic on the topology.

The launcher sorts the CPUs it is given and cuts them into equal chunks, so a worker's CPUs must be neighbours
in the sorted list of all CPUs in use (torch 2.8, run_cpu.py); TorchServe has one cpu_launcher_args for all
models, so all models of an instance get the same workers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from config.errors import FitError
from config.settings import Settings
from config.topology import Core, Topology

MAX_WORKERS = 32
"""Each start of a worker makes the launcher probe all CPUs with a process per worker (N² in all), and each
worker keeps a second Python process, its launcher, in memory; beyond this, more cores per worker are
cheaper."""

LATENCY_MAX_CORES = 16
"""A batch of one has too little work for more threads: their barriers cost more than they compute."""

LATENCY_MIN_L3_CORES = 4
"""A smaller L3 group is too few threads for a fast answer; then the NUMA node is the unit."""

UNITS = ("L3 group", "NUMA node", "machine")
"""What a worker stays inside of."""

Chunk = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One way to cut the cores."""

    unit: str
    """Of UNITS."""
    cores: int
    """Cores per worker."""
    chunks: tuple[Chunk, ...]
    """CPUs per rank."""

    @property
    def used(self) -> int:
        """Cores that work."""
        return self.cores * len(self.chunks)


def choose_layout(topology: Topology, settings: Settings, max_workers: int, why: dict[str, str]) -> Layout:
    """The best cut for the mode; `max_workers` is what the memory holds. FitError where none is possible."""
    cores = choose_cores(topology)
    check_sizes(settings, topology)
    if settings.workers is not None and settings.workers > max_workers:
        raise FitError(
            f"WORKERS must be at most {max_workers}, which is what the memory holds "
            f"({topology.memory_limit_mib} MiB, {topology.memory_source}): got {settings.workers}"
        )
    limit = settings.workers or min(max_workers, MAX_WORKERS)
    layouts = list(_list_layouts(cores, settings, limit))
    fast = [core for core in cores if core.cpu not in topology.efficient_cpus]
    if topology.owns_cpus and 0 < len(fast) < len(cores):
        # Of a hybrid CPU, workers of several cores on P-cores alone: with an E-core each step waits for it.
        single = (one for one in layouts if one.cores == 1)
        layouts = [*single, *_list_layouts(fast, settings, limit)] or layouts
    if not layouts:
        raise FitError(
            f"WORKERS × CORES_PER_WORKER must be at most {topology.usable_cores} (usable physical cores): "
            f"got {settings.workers} × {settings.cores_per_worker}"
        )
    layout = min(layouts, key=lambda one: _rank(one, settings))
    _explain(topology, settings, layout, max_workers, why)
    return layout


def choose_cores(topology: Topology) -> tuple[Core, ...]:
    """All cores with their allowed siblings. Where CPUs are shared, as many as the quota feeds: only their
    number counts then, and no node or cache is a worker's own."""
    allowed = set(topology.cpus_allowed)
    cores = [replace(core, siblings=tuple(sorted(allowed & set(core.siblings)))) for core in topology.cores]
    if not topology.owns_cpus:
        cores = sorted((replace(core, node=0, l3=0) for core in cores), key=lambda core: core.cpu)
    return tuple(cores[: topology.usable_cores])


def check_sizes(settings: Settings, topology: Topology) -> None:
    """What was given against the cores there are; FitError."""
    usable = topology.usable_cores
    for name, given in (("WORKERS", settings.workers), ("CORES_PER_WORKER", settings.cores_per_worker)):
        if given is not None and not 1 <= given <= usable:
            raise FitError(f"{name} must be 1 to {usable} (usable physical cores): got {given}")


def _list_layouts(cores: Sequence[Core], settings: Settings, limit: int) -> Iterator[Layout]:
    """For each unit and size the largest number of workers whose CPUs the launcher can hand out. Only who
    names the number of cores can make a worker cross NUMA nodes."""
    cache, node, machine = UNITS
    l3_groups = group_cores(cores, lambda core: (core.node, core.l3))
    units = {cache: l3_groups, node: group_cores(cores, lambda core: (core.node,))}
    if settings.mode == "latency" and min(map(len, l3_groups)) < LATENCY_MIN_L3_CORES:
        del units[cache]
    if settings.cores_per_worker is not None:
        units[machine] = [sorted(cores, key=lambda core: core.cpu)]
    for unit, groups in units.items():
        for size in _list_sizes(max(map(len, groups)), settings):
            # Dealt round the groups so that the first few workers already use all nodes and caches.
            turns = range(max(map(len, groups)) // size)
            dealt = (group[turn * size : (turn + 1) * size] for turn in turns for group in groups)
            slots = [slot for slot in dealt if len(slot) == size]
            for workers in range(min(limit, len(slots)), (settings.workers or 1) - 1, -1):
                if chunks := _arrange(slots[:workers]):
                    yield Layout(unit=unit, cores=size, chunks=chunks)
                    break


def group_cores(cores: Iterable[Core], key: Callable[[Core], tuple[int, ...]]) -> list[list[Core]]:
    """By key, in its order."""
    return [[*group] for _, group in itertools.groupby(sorted(cores, key=key), key)]


def _list_sizes(largest: int, settings: Settings) -> range:
    """Cores per worker worth trying."""
    if settings.cores_per_worker is not None:
        return range(settings.cores_per_worker, settings.cores_per_worker + 1)
    if settings.mode == "latency" and settings.workers is None:
        largest = min(largest, LATENCY_MAX_CORES)
        return range(math.ceil(largest / 2), largest + 1)
    return range(1, largest + 1)


def _arrange(slots: list[list[Core]]) -> tuple[Chunk, ...]:
    """The slots' CPUs such that cutting their sorted list gives the slots back; () when that is impossible.

    Where two nodes' CPU numbers interleave (0, 2, 4 … and 1, 3, 5 …), using the second SMT sibling on the
    second node separates them.
    """
    first = [[core.cpu for core in slot] for slot in slots]
    shifted = [[core.siblings[core.node % len(core.siblings)] for core in slot] for slot in slots]
    for choice in (first, shifted):
        wanted = sorted(tuple(sorted(chunk)) for chunk in choice)
        flat = sorted(cpu for chunk in choice for cpu in chunk)
        size = len(slots[0])
        if wanted == [tuple(flat[i : i + size]) for i in range(0, len(flat), size)]:
            return tuple(wanted)
    return ()


def _rank(layout: Layout, settings: Settings) -> tuple[bool, int, int, int]:
    """Lowest wins. Crossing NUMA nodes is the last resort; then idle cores are the worst, then crossing a
    cache.

    For throughput few cores per worker win; a number of workers that was asked for gets all the cores there
    are.
    """
    spread = settings.mode == "throughput" and settings.workers is None
    size = layout.cores if spread else -layout.cores
    return (layout.unit == "machine", -layout.used, UNITS.index(layout.unit), size)


def _explain(
    topology: Topology, settings: Settings, layout: Layout, max_workers: int, why: dict[str, str]
) -> None:
    used = f"{layout.used} of {topology.usable_cores} usable physical cores work"
    if max_workers == len(layout.chunks) < topology.usable_cores:
        used += f": the memory holds {max_workers} workers of each model"
    elif settings.mode == "throughput" and topology.usable_cores > MAX_WORKERS:
        used += f", by at most {MAX_WORKERS} workers: each keeps a launcher process"
    modes = {
        "throughput": "many workers with few cores each: threads of one worker wait for each other",
        "latency": "few workers with many cores each, which answer one request together (MODE=latency)",
    }
    why["worker_cpus"] = (
        f"{modes[settings.mode] if settings.workers is None else 'WORKERS was given'}; {used}"
    )
    if settings.cores_per_worker is not None:
        cores = "CORES_PER_WORKER was given"
    elif layout.cores == 1:
        cores = "no barriers between threads"
    else:
        inside = f"; a worker stays inside one {layout.unit}" if topology.owns_cpus else ""
        cores = f"the number with which the fewest cores stay idle{inside}"
    efficient, taken = {*topology.efficient_cpus}, {cpu for chunk in layout.chunks for cpu in chunk}
    if layout.cores > 1 and efficient & {*topology.cpus_allowed}:
        mixed = (taken & efficient and not taken <= efficient) or not topology.owns_cpus
        cores += f"; a hybrid CPU, {'whose P-cores wait for E-cores' if mixed else 'with one kind of cores'}"
    why["cores_per_worker"] = cores
