"""Which part of the machine each instance of TorchServe has: cores, memory, models, ports.

There are several because HAProxy sees servers, not workers: only between two of them can a request be tried
again, and only one of two can be drained or replaced while the other answers. An archive that others made
gets an instance of its own, with TorchServe's own defaults.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from config.archives import ForeignArchive, ModelDefinition
from config.errors import ConfigError
from config.plan import JavaPlan, Libraries
from config.planning.launcher import Launch
from config.planning.layout import Layout, choose_cores, group_cores
from config.proxy import GENERATIONS, MAX_INSTANCES, PORTS_OF_INSTANCE
from config.settings import Settings
from config.topology import Core, Topology

USUAL_INSTANCES = 2
"""The fewest of which one can answer while the other one cannot."""

PROXY_SHARE = 16
LEAST_PROXY_MIB, MOST_PROXY_MIB = 192, 4096
"""A 16th of the memory is for HAProxy, which keeps what waits in its buffers, and the supervisor: on a
machine of 24 GiB with two models, 200 clients of each with pictures of 8 MB have a place."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """One instance's part."""

    name: str
    """a1, a2 …; b1, b2 … in the other generation."""
    kit: bool
    """False: it serves archives that others made."""
    port: int
    topology: Topology
    """The machine as if there were nothing but its part."""
    settings: Settings
    """As given; `workers` are those of each model in this instance."""


@dataclass(frozen=True, kw_only=True)
class Draft(Share):
    """An instance, as far as no batch changes it."""

    models: Sequence[ModelDefinition]
    """The kit's that it serves."""
    foreign: Mapping[str, Sequence[ForeignArchive]]
    """Or those that others made, by model."""
    variants: Mapping[str, str]
    """By kit model (catalogue.name_variant)."""
    backends: Collection[str]
    """That compute in it."""
    libraries: Libraries
    java: JavaPlan
    layout: Layout
    launch: Launch
    why: dict[str, str]
    """Reasons, by path within the instance."""

    @property
    def server_cpus(self) -> tuple[int, ...] | None:
        """Confined where nothing else keeps it off the others' CPUs."""
        owns = self.launch.args is None and self.topology.owns_cpus
        return self.topology.cpus_allowed if owns else None

    @property
    def worker_cpus(self) -> tuple[tuple[int, ...], ...]:
        """By rank."""
        if self.launch.bound:
            return self.layout.chunks
        return (self.topology.cpus_allowed,) * len(self.layout.chunks)


def list_counts(topology: Topology, settings: Settings, *, mixed: bool) -> list[int]:
    """How many instances to try, the best number first; `mixed`: kit models and archives that others made."""
    usable, given, least = len(choose_cores(topology)), settings.instances, 1 + mixed
    most = min(MAX_INSTANCES, usable)
    if least > most:
        raise ConfigError(
            "kit models and archives that others made need an instance each, with a core of its own: got "
            "one usable core; serve them by two servers, each with its own RUN_DIR and PORT"
        )
    if given is not None and not least <= given <= most:
        why = "one of them for archives that others made" if given < least else "usable physical cores"
        raise ConfigError(f"INSTANCES must be {least} to {most} ({why}): got {given}")
    if given is not None:
        return [given]
    best = max(least, count_usual(topology, settings))
    # WORKERS are of each model, and kit instances have equally many.
    return [count for count in range(best, least - 1, -1) if not (settings.workers or 0) % (count - mixed)]


def count_usual(topology: Topology, settings: Settings) -> int:
    """An instance for each NUMA node, else two; for latency one, whose cores answer one request together."""
    cores = choose_cores(topology)
    nodes = len({core.node for core in cores})
    if nodes == 1 and settings.mode == "latency":
        return 1
    return nodes if 1 < nodes <= MAX_INSTANCES else min(USUAL_INSTANCES, len(cores))


def explain_count(topology: Topology, settings: Settings, count: int, too_small: str) -> str:
    """Why as many; `too_small`: why not more."""
    usual, cores = count_usual(topology, settings), choose_cores(topology)
    if settings.instances is not None:
        return "INSTANCES was given"
    if count != usual:
        fewer = (
            f"more would be too small: {too_small}"
            if too_small
            else f"WORKERS={settings.workers} are shared evenly"
        )
        return fewer if count < usual else "an instance of their own for archives that others made"
    if count == 1:
        return (
            "one usable core" if len(cores) == 1 else "more would halve the cores of a request (MODE=latency)"
        )
    nodes = len({core.node for core in cores})
    return (
        "one for each NUMA node: no memory is far" if count == nodes else "one answers while another cannot"
    )


def plan_shares(
    topology: Topology, settings: Settings, count: int, *, kit: bool, foreign: bool, generation: str
) -> list[Share]:
    """In the order of cores; beside kit models the last instance is that of archives that others made, with
    as many workers as each of the kit's."""
    runs = split_cores(choose_cores(topology), count)
    total, first = sum(map(len, runs)), GENERATIONS.index(generation) * MAX_INSTANCES + 1
    mixed = kit and foreign
    others = count - mixed
    if settings.workers and settings.workers % others:
        raise ConfigError(
            f"WORKERS must be {others} or a multiple of it, because the {others} instances have equally "
            f"many: got {settings.workers}; change it, or give INSTANCES={1 + mixed}"
        )
    own = settings.model_copy(update={"workers": settings.workers and settings.workers // others})
    shares = []
    for number, cores in enumerate(runs):
        shares.append(
            Share(
                name=f"{generation}{number + 1}",
                kit=kit and not (mixed and number == count - 1),
                port=settings.port + PORTS_OF_INSTANCE * (first + number),
                topology=_take(topology, cores, total),
                settings=own,
            )
        )
    return shares


def count_proxy_mib(topology: Topology) -> int:
    """Of the memory, what HAProxy and the supervisor have."""
    return max(LEAST_PROXY_MIB, min(topology.memory_limit_mib // PROXY_SHARE, MOST_PROXY_MIB))


def split_cores(cores: Sequence[Core], count: int) -> list[tuple[Core, ...]]:
    """As even as can be without an instance on parts of two NUMA nodes."""
    numbers = list(dict.fromkeys(core.node for core in cores))
    nodes = group_cores(cores, lambda core: (numbers.index(core.node),))
    if count <= len(nodes):
        return [tuple(core for node in run for core in node) for run in _join(nodes, count)]
    parts = [1] * len(nodes)
    while sum(parts) < count:
        parts[max(range(len(nodes)), key=lambda i: (len(nodes[i]) / parts[i], -i))] += 1
    runs = []
    for node, number in zip(nodes, parts, strict=True):
        borders = [math.ceil(len(node) * part / number) for part in range(number + 1)]
        runs += [tuple(node[first:last]) for first, last in itertools.pairwise(borders)]
    return runs


def _join(nodes: Sequence[list[Core]], count: int) -> list[Sequence[list[Core]]]:
    """Runs of whole nodes; each border is the one next to where it would be if nodes could be cut."""
    sizes = [sum(len(node) for node in nodes[:end]) for end in range(len(nodes) + 1)]
    borders = [0]
    for number in range(1, count):
        wanted = sizes[-1] * number / count
        free = range(borders[-1] + 1, len(nodes) - (count - number) + 1)
        borders.append(min(free, key=lambda border: abs(sizes[border] - wanted)))
    return [nodes[first:last] for first, last in itertools.pairwise([*borders, len(nodes)])]


def _take(topology: Topology, cores: Sequence[Core], total: int) -> Topology:
    """The machine with nothing but these cores, and their part of the memory; where CPUs are shared with all
    of them, and their part of the quota."""
    proxy_mib = count_proxy_mib(topology)
    share = replace(
        topology,
        usable_cores=len(cores),
        memory_limit_mib=max(0, topology.memory_limit_mib - proxy_mib) * len(cores) // total,
        memory_source=f"for {len(cores)} of {total} cores, of {topology.memory_limit_mib} MiB less "
        f"{proxy_mib} for HAProxy; {topology.memory_source}",
    )
    if not topology.owns_cpus:
        assert topology.quota_cpus is not None
        return replace(share, quota_cpus=math.floor(1000 * topology.quota_cpus * len(cores) / total) / 1000)
    whole = {cpu: core for core in topology.cores for cpu in core.siblings}
    return replace(
        share,
        cpus_allowed=tuple(sorted(cpu for core in cores for cpu in core.siblings)),
        cores=tuple(replace(whole[core.cpu], cpu=core.cpu) for core in cores),
        nodes=tuple(sorted({core.node for core in cores})),
        sockets=len({core.socket for core in cores}),
        quota_cpus=None,
    )
