"""The JVM of TorchServe's frontend, and the memory of a server: what workers and frontend take of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from config.definitions import ModelDefinition
from config.errors import FitError
from config.plan import Inputs, Java, Setting
from config.rules.network import MAX_REQUEST_BYTES
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


def set_mib(models: Sequence[ModelDefinition], inputs: Inputs, variants: Mapping[str, str]) -> int:
    """Memory of one worker of each model, as the variant that is served, with what its worst batch is made
    into.

    All workers may have theirs at once: nothing tells one what the others are decoding. The bodies themselves
    are not in it: all together they have a bound.
    """
    launcher = LAUNCHER_MIB if inputs.pinning else 0
    needed = [model.memory[variants[model.name]] for model in models]
    return sum(one.worker_mib + one.request_mib + launcher for one in needed)


def shared_mib(topology: Topology) -> int:
    """Memory that is needed once: TorchServe, the bodies of requests in the workers, and the reserve."""
    frontend = plan_frontend_memory(topology)
    java = frontend.heap_mib + frontend.direct_mib + JVM_BEYOND_MIB
    in_workers = int(frontend.bodies_mib * IN_WORKERS)
    return java + in_workers + int(topology.memory_limit_mib * RESERVE_SHARE)


def count_workers_in_memory(
    topology: Topology, models: Sequence[ModelDefinition], inputs: Inputs, variants: Mapping[str, str]
) -> int:
    """Workers of each model that fit; less than one is an error that says what is needed and what is
    there."""
    one_set, shared = set_mib(models, inputs, variants), shared_mib(topology)
    workers = (topology.memory_limit_mib - shared) // one_set
    if workers < 1:
        names = ", ".join(f"{model.name} {variants[model.name]}" for model in models)
        raise FitError(
            f"not enough memory for one worker of each model ({names}): needed "
            f"{one_set + shared} MiB (workers {one_set}, TorchServe and reserve {shared}), there are "
            f"{topology.memory_limit_mib} MiB ({topology.memory_source}); "
            "serve fewer models (MODELS=…) or raise the limit"
        )
    return workers


SERIAL_MAX_CORES = 8
"""Up to here one collecting thread keeps up, and a pause never wakes a thread on every worker's core."""

C1_MAX_CORES = 8
"""Up to here a few hundred requests a second are all there are. On two cores at 85 requests/s the thread of
the optimising compiler (C2) took 0.7-1.3 s of CPU in 24 s, all request threads together 0.5 (measured)."""

WEB_PHOTO_BYTES = 100_000
"""For the reason alone: what a photograph of 500×375 in good quality has."""


def plan_java(topology: Topology, inputs: Inputs) -> Java:
    """java.io.tmpdir is not here: the sockets' folder belongs to the run directory, which `server` knows."""
    frontend = plan_frontend_memory(topology)
    room = frontend.bodies_mib << 20
    return Java(
        bodies_mib=Setting(
            value=frontend.bodies_mib,
            reason="what the bodies of all requests that come, wait or are in a batch may take together; "
            f"HAProxy hands over no more at once: room for {room // MAX_REQUEST_BYTES} of the largest, or "
            f"for {room // WEB_PHOTO_BYTES} photographs of 100 kB; {BODIES_PER_CORE_MIB} MiB a core, within "
            f"a {BODIES_SHARE}th of the memory, at least {MIN_BODIES_MIB}",
        ),
        heap_mib=Setting(
            value=frontend.heap_mib,
            reason=f"{HEAP_BASE_MIB} + {COPIES} × {frontend.bodies_mib} MiB: the bodies, as many again that "
            "clients left behind in a batch, and twice a batch while it is encoded for its worker",
        ),
        direct_mib=Setting(
            value=frontend.direct_mib,
            reason=f"{DIRECT_BASE_MIB} MiB of netty's buffers and {frontend.bodies_mib} for the batches on "
            "their way to the workers; bodies that come in are not kept here",
        ),
        vmargs=Setting(value=" ".join(_flags(topology, inputs, frontend)), reason=_explain(topology)),
    )


def count_frontend_threads(topology: Topology) -> int:
    """Threads that only pass bytes on: one per 8 cores that compute, at least 2."""
    return max(2, min(topology.usable_cores // 8, 16))


def _flags(topology: Topology, inputs: Inputs, frontend: FrontendMemory) -> list[str]:
    collector = "Serial" if topology.usable_cores <= SERIAL_MAX_CORES else "G1"
    return [
        f"-Xms{frontend.heap_mib}m",
        f"-Xmx{frontend.heap_mib}m",
        f"-XX:MaxDirectMemorySize={frontend.direct_mib}m",
        f"-XX:+Use{collector}GC",
        f"-XX:ActiveProcessorCount={count_frontend_threads(topology)}",
        "-XX:+ExitOnOutOfMemoryError",
        *(["-XX:TieredStopAtLevel=1"] if topology.usable_cores <= C1_MAX_CORES else []),
    ]


def _explain(topology: Topology) -> str:
    collector = (
        "the serial collector uses one thread"
        if topology.usable_cores <= SERIAL_MAX_CORES
        else "G1 with few threads keeps pauses short on a larger heap"
    )
    parts = [
        "fixed heap and direct memory, which hold what HAProxy hands over at once",
        collector,
        "ActiveProcessorCount keeps the JVM's own thread pools off the workers' cores",
        "out of memory ends the server instead of leaving half of it",
    ]
    if topology.usable_cores <= C1_MAX_CORES:
        parts.append(
            "no optimising compiler (C2): on two cores at 85 requests/s its thread took more CPU than all "
            "request threads together, and C1's code is fast enough for a few hundred a second"
        )
    return "; ".join(parts)
