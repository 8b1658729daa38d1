"""Which part of the machine each instance of TorchServe behind the door has: cores, memory, models, ports.

Why there are several: the door sees servers, not workers, so that only between two of them can a request be
tried again, and only one of two can be drained or replaced while the other answers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from config.errors import ConfigError
from config.files import render_id_list
from config.plan import Inputs
from config.rules.layout import choose_cores
from config.topology import Core, Topology

MAX_INSTANCES = 4
"""Each is a JVM of its own, with its heap beside the workers'; and the ports of two generations are planned
for as many."""

USUAL_INSTANCES = 2
"""The fewest of which one can answer while the other one cannot."""

GENERATIONS = ("a", "b")
"""A reload starts the other one beside the one that serves."""

PORTS_OF_INSTANCE = 10
"""From one instance's first port to the next one's; each takes five."""

DOOR_SHARE = 16
LEAST_DOOR_MIB, MOST_DOOR_MIB = 192, 4096
"""A 16th of the memory is for the door, which keeps what waits in its buffers, and the supervisor: on a
machine of 24 GiB with two models, 200 clients of each with pictures of 8 MB have a place."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """One instance's part of what is planned."""

    name: str
    """a1, a2 …; b1, b2 … in the other generation."""
    port: int
    """Its first port."""
    models: tuple[str, ...]
    """What it serves."""
    workers: int | None
    """Of each of its models; None = as many as are good for its cores."""
    topology: Topology
    """The machine as if there were nothing but its part."""

    def describe_cpus(self) -> str:
        """As the kernel writes lists."""
        return render_id_list(self.topology.cpus_allowed)


def list_counts(topology: Topology, inputs: Inputs) -> tuple[int, ...]:
    """How many instances to try, the best number first."""
    usable = choose_cores(topology)
    if inputs.instances is not None and inputs.instances > len(usable):
        raise ConfigError(
            f"INSTANCES must be 1 to {len(usable)} (usable physical cores): got {inputs.instances}"
        )
    if inputs.instances is not None:
        return (inputs.instances,)
    best, workers = _count_usual(usable, inputs), inputs.workers or 0
    return tuple(count for count in range(best, 0, -1) if workers % count == 0)


def explain_count(topology: Topology, inputs: Inputs, count: int) -> str:
    """Why as many."""
    usual = _count_usual(choose_cores(topology), inputs)
    if inputs.instances is not None:
        return f"INSTANCES={count} was given"
    if count < usual and inputs.workers and inputs.workers % usual:
        return f"{count} instance{'s' * (count > 1)}, which WORKERS={inputs.workers} are shared out to evenly"
    if count < usual:
        return f"{count} instance{'s' * (count > 1)}: {usual} would be too small for what is asked for"
    if count == 1 and len(choose_cores(topology)) == 1:
        return "one instance: there is one usable core"
    if count == 1:
        return "one instance: two would halve the cores that answer one request (PROFILE=latency)"
    if count == _count_nodes(choose_cores(topology)):
        return "an instance for each NUMA node, so that no memory is far"
    return "two instances: one answers while the other one cannot"


def plan_shares(topology: Topology, inputs: Inputs, models: Sequence[str], count: int) -> tuple[Share, ...]:
    """By name, in the order of cores."""
    runs = split_cores(choose_cores(topology), count)
    total = sum(map(len, runs))
    return tuple(
        Share(
            name=f"{inputs.generation}{number}",
            port=find_port(inputs, number),
            models=tuple(models),
            workers=_divide_workers(inputs, count),
            topology=_take(topology, cores, total),
        )
        for number, cores in enumerate(runs, start=1)
    )


def count_door_mib(topology: Topology) -> int:
    """Of the memory, what the door and the supervisor have."""
    return max(LEAST_DOOR_MIB, min(topology.memory_limit_mib // DOOR_SHARE, MOST_DOOR_MIB))


def find_port(inputs: Inputs, number: int) -> int:
    """The first port of instance 1, 2 … of the generation."""
    before = GENERATIONS.index(inputs.generation) * MAX_INSTANCES
    return inputs.port + PORTS_OF_INSTANCE * (before + number)


def split_cores(cores: Sequence[Core], count: int) -> list[tuple[Core, ...]]:
    """As even as can be without an instance on parts of two NUMA nodes."""
    nodes = _group(cores)
    if count <= len(nodes):
        return [tuple(core for node in run for core in node) for run in _join(nodes, count)]
    parts = [1] * len(nodes)
    while sum(parts) < count:
        largest = max(range(len(nodes)), key=lambda i: (len(nodes[i]) / parts[i], -i))
        parts[largest] += 1
    return [run for node, number in zip(nodes, parts, strict=True) for run in _cut(node, number)]


def _divide_workers(inputs: Inputs, count: int) -> int | None:
    """WORKERS is of each model, in the whole."""
    if inputs.workers is None or inputs.workers % count == 0:
        return inputs.workers and inputs.workers // count
    raise ConfigError(
        f"WORKERS must be {count} or a multiple of it, because the {count} instances have equally many: "
        f"got {inputs.workers}; change it, or give INSTANCES=1"
    )


def _take(topology: Topology, cores: Sequence[Core], total: int) -> Topology:
    """The machine with nothing but these cores, and their part of the memory; where CPUs are shared with all
    of them, and their part of the quota."""
    door_mib = count_door_mib(topology)
    memory_mib = max(0, topology.memory_limit_mib - door_mib) * len(cores) // total
    quota = None if topology.owns_cpus else topology.quota_cpus
    return replace(
        _keep_cores(topology, cores) if topology.owns_cpus else topology,
        quota_cpus=None if quota is None else math.floor(1000 * quota * len(cores) / total) / 1000,
        usable_cores=len(cores),
        memory_limit_mib=memory_mib,
        memory_source=f"for {len(cores)} of {total} cores, of {topology.memory_limit_mib} MiB less "
        f"{door_mib} for the door; {topology.memory_source}",
    )


def _keep_cores(topology: Topology, cores: Sequence[Core]) -> Topology:
    whole = {cpu: core for core in topology.cores for cpu in core.siblings}
    return replace(
        topology,
        cpus_allowed=tuple(sorted(cpu for core in cores for cpu in core.siblings)),
        cores=tuple(replace(whole[core.cpu], cpu=core.cpu) for core in cores),
        nodes=tuple(sorted({core.node for core in cores})),
        sockets=len({core.socket for core in cores}),
    )


def _count_usual(cores: Sequence[Core], inputs: Inputs) -> int:
    nodes = _count_nodes(cores)
    if nodes == 1 and inputs.profile == "latency":
        return 1
    return nodes if 1 < nodes <= MAX_INSTANCES else min(USUAL_INSTANCES, len(cores))


def _count_nodes(cores: Iterable[Core]) -> int:
    return len({core.node for core in cores})


def _group(cores: Sequence[Core]) -> list[list[Core]]:
    """By NUMA node, in the order they come."""
    nodes: dict[int, list[Core]] = {}
    for core in cores:
        nodes.setdefault(core.node, []).append(core)
    return list(nodes.values())


def _join(nodes: Sequence[list[Core]], count: int) -> list[Sequence[list[Core]]]:
    """Runs of whole nodes; each border is the one next to where it would be if nodes could be cut."""
    sizes = [sum(len(node) for node in nodes[:end]) for end in range(len(nodes) + 1)]
    borders = [0]
    for number in range(1, count):
        wanted = sizes[-1] * number / count
        free = range(borders[-1] + 1, len(nodes) - (count - number) + 1)
        borders.append(min(free, key=lambda border: abs(sizes[border] - wanted)))
    borders.append(len(nodes))
    return [nodes[first:last] for first, last in itertools.pairwise(borders)]


def _cut(cores: Sequence[Core], count: int) -> list[tuple[Core, ...]]:
    """Runs whose lengths differ by one at most, the longer ones first."""
    borders = [math.ceil(len(cores) * number / count) for number in range(count + 1)]
    return [tuple(cores[first:last]) for first, last in itertools.pairwise(borders)]
