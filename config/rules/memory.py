"""How many workers the memory holds."""

from __future__ import annotations

from collections.abc import Sequence

from config.definitions import ModelDefinition
from config.errors import ConfigError
from config.plan import Inputs, Settings
from config.topology import Topology

LAUNCHER_MIB = 260
"""The launcher imports torch and stays the parent of its worker: 259 MiB of anonymous memory measured
(torch 2.8)."""

JVM_BEYOND_HEAP_MIB = 512
"""Netty's buffers outside the heap, classes, compiled code and thread stacks of TorchServe."""

RESERVE_SHARE = 0.05
"""Left to the page cache and the rest of the system."""

MIN_HEAP_MIB = 256
HEAP_BASE_MIB = 512
HEAP_PER_CORE_MIB = 32
MAX_HEAP_MIB = 4096


def plan_heap_mib(topology: Topology) -> int:
    """Room for waiting requests grows with what the machine answers; never more than an eighth of the
    memory."""
    wanted = min(HEAP_BASE_MIB + HEAP_PER_CORE_MIB * topology.usable_cores, MAX_HEAP_MIB)
    return max(MIN_HEAP_MIB, min(wanted, topology.memory_limit_mib // 8))


def set_mib(models: Sequence[ModelDefinition], inputs: Inputs, precisions: Settings) -> int:
    """Memory of one worker of each model, in the precision it is served in, with its worst batch of requests.

    All workers may have theirs at once: nothing tells one what the others are decoding.
    """
    launcher = LAUNCHER_MIB if inputs.pinning else 0
    return sum(
        model.worker_memory_mib[precisions[model.name].value] + model.request_memory_mib + launcher
        for model in models
    )


def shared_mib(topology: Topology) -> int:
    """Memory that is needed once: TorchServe and the reserve."""
    return plan_heap_mib(topology) + JVM_BEYOND_HEAP_MIB + int(topology.memory_limit_mib * RESERVE_SHARE)


def count_workers_in_memory(
    topology: Topology, models: Sequence[ModelDefinition], inputs: Inputs, precisions: Settings
) -> int:
    """Workers of each model that fit; less than one is an error that says what is needed and what is
    there."""
    one_set, shared = set_mib(models, inputs, precisions), shared_mib(topology)
    workers = (topology.memory_limit_mib - shared) // one_set
    if workers < 1:
        names = ", ".join(f"{model.name} {precisions[model.name].value}" for model in models)
        raise ConfigError(
            f"not enough memory for one worker of each model ({names}): needed "
            f"{one_set + shared} MiB (workers {one_set}, TorchServe and reserve {shared}), there are "
            f"{topology.memory_limit_mib} MiB ({topology.memory_source}); "
            "serve fewer models (MODELS=…) or raise the limit"
        )
    return workers
