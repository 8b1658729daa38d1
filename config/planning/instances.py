"""The instances of TorchServe: how many, which part of the machine each has, and what it makes of it.

There are several because HAProxy sees servers, not workers: only between two of them can a request be tried
again, and only one of two can be drained or replaced while the other answers. An archive that others made
gets an instance of its own, with TorchServe's own defaults.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from config.archives import ModelDefinition
from config.errors import ConfigError
from config.plan import INSTANCES_FOLDER, STORE_FOLDER, InstancePlan, Libraries
from config.planning import models, resources
from config.planning.environment import PRIMITIVES_PER_SHAPE, plan_environment, plan_properties
from config.planning.facts import Facts
from config.planning.launcher import choose_launch
from config.planning.layout import choose_cores, choose_layout, group_cores
from config.proxy import MAX_INSTANCES
from config.settings import Settings
from config.topology import Core, Topology
from handlers.backends.catalogue import DEFAULT_SET

USUAL_INSTANCES = 2
"""The fewest of which one can answer while the other one cannot."""

PROXY_SHARE = 16
LEAST_PROXY_MIB, MOST_PROXY_MIB = 192, 4096
"""A 16th of the memory is for HAProxy, which keeps what waits in its buffers, and the supervisor: on a
machine of 24 GiB with two models, 200 clients of each with images of 8 MB have a place."""


def list_counts(topology: Topology, settings: Settings, *, mixed: bool) -> dict[int, str]:
    """How many instances to try, the best number first, and why: one for each NUMA node, else two; for
    latency one, whose cores answer one request together. `mixed`: both kit models and archives that others
    made."""
    cores, given, workers = choose_cores(topology), settings.instances, settings.workers or 0
    nodes, least, most = len({core.node for core in cores}), 1 + mixed, min(MAX_INSTANCES, len(cores))
    if least > most:
        raise ConfigError(
            "kit models and archives that others made need an instance each, with a core of its own: got "
            "one usable core; serve them by two servers, each with its own RUN_DIR and PORT"
        )
    if given is not None:
        if not least <= given <= most:
            why = "one of them for archives that others made" if given < least else "usable physical cores"
            raise ConfigError(f"INSTANCES must be {least} to {most} ({why}): got {given}")
        if workers % (others := given - mixed):
            raise ConfigError(
                f"WORKERS must be {others} or a multiple of it, because the {others} instances have equally "
                f"many: got {workers}; change it, or give INSTANCES={least}"
            )
        return {given: "INSTANCES was given"}
    if len(cores) == 1:
        usual, why = 1, "one usable core"
    elif nodes == 1 and settings.mode == "latency":
        usual, why = 1, "more would halve the cores of a request (MODE=latency)"
    elif 1 < nodes <= MAX_INSTANCES:
        usual, why = nodes, "one for each NUMA node: no memory is far"
    else:
        usual, why = USUAL_INSTANCES, "one answers while another cannot"
    shared = f"WORKERS={workers} are shared evenly"
    foreign = "an instance of their own for archives that others made"
    # WORKERS are of each model, and kit instances have equally many.
    counts = [one for one in range(max(least, usual), least - 1, -1) if workers % (one - mixed) == 0]
    return {count: why if count == usual else foreign if count > usual else shared for count in counts}


def count_proxy_mib(topology: Topology) -> int:
    """Of the memory, what HAProxy and the supervisor have."""
    return max(LEAST_PROXY_MIB, min(topology.memory_limit_mib // PROXY_SHARE, MOST_PROXY_MIB))


def split_machine(topology: Topology, count: int) -> list[Topology]:
    """The machine as if there were nothing but an instance's cores, and their part of the memory; where CPUs
    are shared, with all of them."""
    runs, proxy_mib = split_cores(choose_cores(topology), count), count_proxy_mib(topology)
    total, memory_mib = sum(map(len, runs)), topology.memory_limit_mib
    shares = []
    for cores in runs:
        share = replace(
            topology,
            usable_cores=len(cores),
            memory_limit_mib=max(0, memory_mib - proxy_mib) * len(cores) // total,
            memory_source=f"for {len(cores)} of {total} cores, of {memory_mib} MiB less {proxy_mib} for "
            f"HAProxy; {topology.memory_source}",
        )
        if topology.owns_cpus:
            cpus = tuple(sorted(cpu for core in cores for cpu in core.siblings))
            share = replace(share, cpus_allowed=cpus, cores=tuple(cores), quota_cpus=None)
        shares.append(share)
    return shares


def split_cores(cores: Sequence[Core], count: int) -> list[list[Core]]:
    """As even as can be without an instance on parts of two NUMA nodes."""
    numbers = list(dict.fromkeys(core.node for core in cores))
    nodes = group_cores(cores, lambda core: (numbers.index(core.node),))
    if count <= len(nodes):
        # Each border is the one between nodes next to where it would be if nodes could be cut.
        sizes, borders = [0, *itertools.accumulate(map(len, nodes))], [0]
        for number in range(1, count):
            free = range(borders[-1] + 1, len(nodes) - (count - number) + 1)
            wanted = sizes[-1] * number / count
            borders.append(min(free, key=lambda border: abs(sizes[border] - wanted)))
        runs = itertools.pairwise([*borders, len(nodes)])
        return [[*itertools.chain(*nodes[first:last])] for first, last in runs]
    parts = [1] * len(nodes)
    while sum(parts) < count:
        parts[max(range(len(nodes)), key=lambda i: (len(nodes[i]) / parts[i], -i))] += 1
    cuts = []
    for node, number in zip(nodes, parts, strict=True):
        borders = [math.ceil(len(node) * part / number) for part in range(number + 1)]
        cuts += [node[first:last] for first, last in itertools.pairwise(borders)]
    return cuts


def draft_instance(
    facts: Facts,
    topology: Topology,
    given: Settings,
    variants: Mapping[str, str],
    libraries: Libraries,
    *,
    name: str,
    kit: bool,
    port: int,
    why: dict[str, str],
) -> InstancePlan:
    """Without models. `topology`: its share of the machine; `given`: settings with its workers. FitError
    where these do not fit."""
    folder, store, settings = Path(facts.run_dir, INSTANCES_FOLDER, name), facts.model_store, given
    if kit:
        # With what the worst batch is made into; the bodies have a bound of their own.
        memory = {f"{one.name} {variants[one.name]}": one.memory[variants[one.name]] for one in facts.kit}
        needed = {what: one.worker_mib + one.request_mib for what, one in memory.items()}
        backends = {variant.split()[0] for variant in variants.values()}
        largest = max(facts.kit, key=ModelDefinition.count_shapes)
        why["environment.ONEDNN_PRIMITIVE_CACHE_CAPACITY"] = (
            f"{largest.count_shapes()} shapes that {largest.name} may warm × {PRIMITIVES_PER_SHAPE} kernels"
        )
        why["properties.ipex_enable"] = f"its models are computed by {', '.join(sorted(backends))}"
    else:
        base_mib, copies = resources.FOREIGN_MIB, resources.FOREIGN_COPIES
        needed = {
            model: sum(base_mib + copies * one.size_mib for one in versions)
            for model, versions in facts.foreign.items()
        }
        backends = {facts.find_backend(model) for model in facts.foreign}
        store, settings = str(folder / STORE_FOLDER), models.obey_workers(facts.foreign, given)
        why["memory_mib"] = (
            f"of a worker's memory only an estimate is known: {base_mib} MiB + {copies} × the archive"
        )
        why["properties.ipex_enable"] = (
            "by this environment's backend; TorchServe's BaseHandler applies ipex.optimize to eager models "
            "only, and it does nothing for TorchScript"
        )
    java = resources.plan_java(topology, why)
    fitting = resources.count_workers_in_memory(topology, java, needed, settings)
    layout = choose_layout(topology, settings, fitting, why)
    if settings != given:
        why["worker_cpus"] = "minWorkers of the archives' YAML: it beats config.properties"
    counted, owned = facts.package_set != DEFAULT_SET, topology.owns_cpus
    args, memory_nodes = choose_launch(
        topology, layout.chunks, why, counted=counted, pinning=settings.pinning
    )
    launched = args is not None
    if confined := owned and not launched:
        why["server_cpus"] = "confined to this instance's share, as nothing pins its workers"
    everywhere = (topology.cpus_allowed,) * len(layout.chunks)
    instance = InstancePlan(
        port=port, kit=kit, models={}, cpus=topology.cpus_allowed, memory_mib=topology.memory_limit_mib,
        cores_per_worker=layout.cores, worker_cpus=layout.chunks if launched and owned else everywhere,
        memory_nodes=memory_nodes, server_cpus=topology.cpus_allowed if confined else None,
        launched=launched, pinned=launched and owned, queue_size=0, java=java, environment={},
        worker_environment={}, properties={},
    )  # fmt: skip
    inherited, seen = plan_environment(instance, facts.kit, libraries, backends)
    threads = resources.count_frontend_threads(topology)
    properties = plan_properties(
        instance, libraries, args, backends, threads=threads, store=store, folder=folder
    )
    return replace(instance, environment=inherited, worker_environment=seen, properties=properties)
