"""How many workers the memory holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from config.definitions import ModelDefinition
from config.errors import FitError
from config.plan import Inputs, Settings
from config.topology import Topology

LAUNCHER_MIB = 260
"""The launcher imports torch and stays the parent of its worker: 259 MiB of anonymous memory measured
(torch 2.8)."""

JVM_BEYOND_MIB = 192
"""Classes, compiled code and thread stacks of TorchServe, and netty's buffers in use: 140 were seen beside a
heap that an overload had filled."""

RESERVE_SHARE = 0.05
"""Left to the page cache and the rest of the system."""

BODIES_PER_CORE_MIB = 128
BODIES_SHARE = 48
"""The bodies may be a 48th of the memory: all their copies together are then about an eighth."""
MIN_BODIES_MIB = 64
"""Four of the largest requests."""
MAX_BODIES_MIB = 1024

COPIES = 4
"""The bodies; as many that clients left behind in the queue or a batch; and a
batch while it is encoded, when its buffer grows into a larger one (TorchServe's ModelRequestEncoder)."""
HEAP_BASE_MIB = 128
"""TorchServe itself, and a form's fields in each of two threads."""
IN_WORKERS = 1.25
"""Memory of the workers for each byte of the bodies in their batches: 320 MiB for 256 (BERT, measured)."""
DIRECT_BASE_MIB = 128
"""netty's arenas of 16 MiB for what is being read and written, and forms: its decoder copies one once more,
in each of two threads."""


@dataclass(frozen=True, kw_only=True)
class FrontendMemory:
    """What TorchServe's JVM may take for requests, in MiB."""

    bodies_mib: int
    """All bodies that come, wait or are in a batch."""

    @property
    def heap_mib(self) -> int:
        """-Xmx."""
        return HEAP_BASE_MIB + COPIES * self.bodies_mib

    @property
    def direct_mib(self) -> int:
        """-XX:MaxDirectMemorySize; each batch is copied there on its way to its worker."""
        return DIRECT_BASE_MIB + self.bodies_mib


def plan_frontend_memory(topology: Topology) -> FrontendMemory:
    """Room for waiting requests grows with what the machine answers, within a share of the memory."""
    wanted = min(BODIES_PER_CORE_MIB * topology.usable_cores, MAX_BODIES_MIB)
    fitting = topology.memory_limit_mib // BODIES_SHARE
    return FrontendMemory(bodies_mib=max(MIN_BODIES_MIB, min(wanted, fitting)))


def set_mib(models: Sequence[ModelDefinition], inputs: Inputs, precisions: Settings) -> int:
    """Memory of one worker of each model, in the precision it is served in, with what its worst batch is made
    into.

    All workers may have theirs at once: nothing tells one what the others are decoding. The bodies themselves
    are not in it: all together they have a bound.
    """
    launcher = LAUNCHER_MIB if inputs.pinning else 0
    return sum(
        model.worker_memory_mib[precisions[model.name].value] + model.request_memory_mib + launcher
        for model in models
    )


def shared_mib(topology: Topology) -> int:
    """Memory that is needed once: TorchServe, the bodies of requests in the workers, and the reserve."""
    frontend = plan_frontend_memory(topology)
    java = frontend.heap_mib + frontend.direct_mib + JVM_BEYOND_MIB
    in_workers = int(frontend.bodies_mib * IN_WORKERS)
    return java + in_workers + int(topology.memory_limit_mib * RESERVE_SHARE)


def count_workers_in_memory(
    topology: Topology, models: Sequence[ModelDefinition], inputs: Inputs, precisions: Settings
) -> int:
    """Workers of each model that fit; less than one is an error that says what is needed and what is
    there."""
    one_set, shared = set_mib(models, inputs, precisions), shared_mib(topology)
    workers = (topology.memory_limit_mib - shared) // one_set
    if workers < 1:
        names = ", ".join(f"{model.name} {precisions[model.name].value}" for model in models)
        raise FitError(
            f"not enough memory for one worker of each model ({names}): needed "
            f"{one_set + shared} MiB (workers {one_set}, TorchServe and reserve {shared}), there are "
            f"{topology.memory_limit_mib} MiB ({topology.memory_source}); "
            "serve fewer models (MODELS=…) or raise the limit"
        )
    return workers
