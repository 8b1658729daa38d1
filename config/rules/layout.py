"""How many workers, with how many cores, on which CPUs: pure arithmetic on the topology.

Outside facts: the launcher sorts the CPUs it is given and cuts them into equal chunks, so a worker's CPUs
must be neighbours in the sorted list of all CPUs in use (torch 2.8, run_cpu.py); TorchServe has one
cpu_launcher_args for all models, so all models get the same workers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from config.errors import FitError
from config.files import render_id_list
from config.plan import Inputs
from config.topology import Core, Topology

MAX_WORKERS = 32
"""Each start of a worker makes the launcher probe all CPUs with a process per worker (N² in all), and each
worker keeps a second Python process, its launcher, in memory; beyond this, more cores per worker are
cheaper."""

LATENCY_MAX_CORES = 16
"""A batch of one has too little work for more threads: their barriers cost more than they compute."""

LATENCY_MIN_L3_CORES = 4
"""A smaller L3 group is too few threads for a fast answer; then the NUMA node is the unit."""

Chunk = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One way to cut the cores."""

    unit: str
    """What a worker stays inside of: "L3 group", "NUMA node" or "machine"."""
    cores: int
    """Cores per worker."""
    chunks: tuple[Chunk, ...]
    """CPUs per rank."""

    @property
    def used(self) -> int:
        """Cores that work."""
        return self.cores * len(self.chunks)


def choose_layout(topology: Topology, inputs: Inputs, max_workers: int) -> Candidate:
    """The best cut for the profile; `max_workers` is what the memory holds."""
    cores = choose_cores(topology)
    check_sizes(inputs, topology)
    if inputs.workers is not None and inputs.workers > max_workers:
        raise FitError(
            f"WORKERS must be at most {max_workers}, which is what the memory holds "
            f"({topology.memory_limit_mib} MiB, {topology.memory_source}): got {inputs.workers}"
        )
    limit = inputs.workers or min(max_workers, MAX_WORKERS)
    everywhere = list(_candidates(cores, inputs, limit))
    candidates = _separate(everywhere, cores, topology, inputs, limit) or everywhere
    if not candidates:
        raise FitError(
            f"WORKERS × CORES_PER_WORKER must be at most {topology.usable_cores} (usable physical cores): "
            f"got {inputs.workers} × {inputs.cores_per_worker}"
        )
    return min(candidates, key=lambda candidate: _rank(candidate, inputs))


def choose_cores(topology: Topology) -> tuple[Core, ...]:
    """As many cores as the quota feeds, with their allowed siblings; if not all, the fullest NUMA node
    first. Where CPUs are shared only their number counts, and no node or cache is a worker's own."""
    allowed = set(topology.cpus_allowed)
    cores = [replace(core, siblings=tuple(sorted(allowed & set(core.siblings)))) for core in topology.cores]
    if not topology.owns_cpus:
        cores = sorted((replace(core, node=0, l3=0) for core in cores), key=lambda core: core.cpu)
    elif topology.usable_cores < len(cores):
        sizes = {node: sum(core.node == node for core in cores) for node in topology.nodes}
        cores.sort(key=lambda core: (-sizes[core.node], core.node, core.l3, core.cpu))
    return tuple(cores[: topology.usable_cores])


def check_sizes(inputs: Inputs, topology: Topology) -> None:
    """What was given against the cores there are."""
    usable = topology.usable_cores
    if inputs.workers is not None and not 1 <= inputs.workers <= usable:
        raise FitError(f"WORKERS must be 1 to {usable} (usable physical cores): got {inputs.workers}")
    if inputs.cores_per_worker is not None and not 1 <= inputs.cores_per_worker <= usable:
        raise FitError(
            f"CORES_PER_WORKER must be 1 to {usable} (usable physical cores): got {inputs.cores_per_worker}"
        )


def _candidates(cores: Sequence[Core], inputs: Inputs, limit: int) -> Iterator[Candidate]:
    """For each unit and size the largest number of workers whose CPUs the launcher can hand out."""
    for unit, groups in _groups(cores, inputs):
        for size in _sizes(groups, inputs):
            slots = _slots(groups, size)
            fewest = inputs.workers or 1
            for workers in range(min(limit, len(slots)), fewest - 1, -1):
                if chunks := _arrange(slots[:workers]):
                    yield Candidate(unit=unit, cores=size, chunks=chunks)
                    break


def _separate(
    everywhere: Sequence[Candidate], cores: Sequence[Core], topology: Topology, inputs: Inputs, limit: int
) -> list[Candidate]:
    """Of a hybrid CPU, workers of several cores on P-cores alone: with an E-core each step waits for it."""
    fast = [core for core in cores if core.cpu not in topology.efficient_cpus]
    if not 0 < len(fast) < len(cores) or not topology.owns_cpus:
        return []
    alone = (candidate for candidate in everywhere if candidate.cores == 1)
    return [*alone, *_candidates(fast, inputs, limit)]


def _groups(cores: Sequence[Core], inputs: Inputs) -> Iterator[tuple[str, list[list[Core]]]]:
    """Only who names the number of cores can make a worker cross NUMA nodes."""
    l3_groups = _grouped(cores, lambda core: (core.node, core.l3))
    if inputs.profile != "latency" or min(map(len, l3_groups)) >= LATENCY_MIN_L3_CORES:
        yield "L3 group", l3_groups
    yield "NUMA node", _grouped(cores, lambda core: (core.node,))
    if inputs.cores_per_worker is not None:
        yield "machine", [sorted(cores, key=lambda core: core.cpu)]


def _grouped(cores: Iterable[Core], key: Callable[[Core], tuple[int, ...]]) -> list[list[Core]]:
    groups: dict[tuple[int, ...], list[Core]] = {}
    for core in cores:
        groups.setdefault(key(core), []).append(core)
    return [groups[name] for name in sorted(groups)]


def _sizes(groups: list[list[Core]], inputs: Inputs) -> range:
    """Cores per worker worth trying."""
    largest = max(map(len, groups))
    if inputs.cores_per_worker is not None:
        return range(inputs.cores_per_worker, inputs.cores_per_worker + 1)
    if inputs.profile == "latency" and inputs.workers is None:
        largest = min(largest, LATENCY_MAX_CORES)
        return range(math.ceil(largest / 2), largest + 1)
    return range(1, largest + 1)


def _slots(groups: list[list[Core]], size: int) -> list[list[Core]]:
    """Workers' places, dealt round the groups so that the first few already use all nodes and caches."""
    dealt = [
        (turn, index, group[turn * size : (turn + 1) * size])
        for index, group in enumerate(groups)
        for turn in range(len(group) // size)
    ]
    return [slot for _, _, slot in sorted(dealt, key=lambda item: item[:2])]


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
        size = len(slots[0]) if slots else 1
        if wanted == [tuple(flat[i : i + size]) for i in range(0, len(flat), size)]:
            return tuple(wanted)
    return ()


def _rank(candidate: Candidate, inputs: Inputs) -> tuple[bool, int, int, int]:
    """Lowest wins. Crossing NUMA nodes is the last resort; then idle cores are the worst, then crossing a
    cache.

    For throughput few cores per worker win; a number of workers that was asked for gets all the cores there
    are.
    """
    crossing = ("L3 group", "NUMA node", "machine").index(candidate.unit)
    spread = inputs.profile == "throughput" and inputs.workers is None
    size = candidate.cores if spread else -candidate.cores
    return (candidate.unit == "machine", -candidate.used, crossing, size)


def explain_workers(topology: Topology, inputs: Inputs, cut: Candidate, fitting: int) -> str:
    """What decided the number of workers."""
    if inputs.workers is not None:
        return f"WORKERS={inputs.workers} was given"
    why = {
        "throughput": "many workers with few cores each: threads of one worker wait for each other",
        "latency": "few workers with many cores each: all cores of "
        f"{f'a {cut.unit}' if topology.owns_cpus else 'the quota'} answer one request",
    }[inputs.profile]
    limits = [] if topology.owns_cpus else ["the quota's whole CPUs: part of one is a throttled one"]
    if fitting == len(cut.chunks) < topology.usable_cores:
        limits.append(f"the memory holds {fitting}")
    if inputs.profile == "throughput" and topology.usable_cores > MAX_WORKERS:
        limits.append(
            f"at most {MAX_WORKERS}, because each start probes all others and each keeps a launcher process"
        )
    return "; ".join([why, f"{cut.used} of {topology.usable_cores} usable physical cores work", *limits])


def explain_cores(topology: Topology, inputs: Inputs, cut: Candidate) -> str:
    """What decided the cores of one worker."""
    if inputs.cores_per_worker is not None:
        crossing = "; a worker may cross NUMA nodes" if cut.unit == "machine" and topology.owns_cpus else ""
        return (
            f"CORES_PER_WORKER={inputs.cores_per_worker} was given{crossing}{_explain_kinds(topology, cut)}"
        )
    if cut.cores == 1:
        return "one core per worker: no barriers between threads"
    where = f"; a worker stays inside one {cut.unit}" if topology.owns_cpus else ""
    return f"the number with which the fewest cores stay idle{where}{_explain_kinds(topology, cut)}"


def _explain_kinds(topology: Topology, cut: Candidate) -> str:
    """Of a hybrid CPU's cores."""
    efficient = {*topology.efficient_cpus}
    if cut.cores == 1 or not efficient & {*topology.cpus_allowed}:
        return ""
    used = {cpu for chunk in cut.chunks for cpu in chunk}
    if used <= efficient and topology.owns_cpus:
        return "; a hybrid CPU: on E-cores alone"
    if used & efficient or not topology.owns_cpus:
        return "; a hybrid CPU: threads on P-cores wait for those on E-cores"
    return "; a hybrid CPU: on P-cores alone, which would wait for threads on E-cores"


def explain_shared(topology: Topology) -> str:
    """Why nothing is bound."""
    return (
        f"CPUs are shared under a quota of {topology.quota_cpus:g} of {len(topology.cpus_allowed)} CPUs "
        f"({topology.quota_source}): it names none of them, and every server on this machine that bound "
        "itself would be on the same first ones"
    )


def explain_list(topology: Topology, *, of_share: bool = False) -> str:
    """Why these CPUs."""
    smt = any(len(core.siblings) > 1 for core in topology.cores)
    parts = ["one CPU per physical core" + ", because SMT siblings share its vector units" * smt]
    if len(topology.cpus_allowed) < topology.cpu_total:
        whose = "this instance's share" if of_share else "which this process may use"
        parts.append(f"of CPUs {render_id_list(topology.cpus_allowed)}, {whose}")
    if topology.usable_cores < len(topology.cores):
        parts.append(
            f"{topology.usable_cores} of {len(topology.cores)} cores, because the quota is "
            f"{topology.quota_cpus:g} CPUs ({topology.quota_source}), and part of a CPU is a throttled CPU"
        )
    return "; ".join(parts)


def explain_server(topology: Topology, server_cpus: Chunk | None) -> str:
    """Why TorchServe itself is confined, or not."""
    if server_cpus is not None:
        return "confined to this instance's share of the CPUs, as each of the others is to its own"
    if not topology.owns_cpus:
        return f"not confined: {explain_shared(topology)}"
    return "not confined: no quota below the CPUs it may use"
