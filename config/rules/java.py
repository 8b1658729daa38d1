"""The JVM of TorchServe's frontend: enough to route requests, small enough to leave the cores to the
workers."""

from __future__ import annotations

from config.plan import Inputs, Java, Setting
from config.rules.memory import (
    BODIES_PER_CORE_MIB,
    BODIES_SHARE,
    COPIES,
    HEAP_BASE_MIB,
    MIN_BODIES_MIB,
    FrontendMemory,
    plan_frontend_memory,
)
from config.rules.network import MAX_REQUEST_BYTES
from config.topology import Topology

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
    return Java(
        bodies_mib=Setting(value=frontend.bodies_mib, reason=_explain_bodies(frontend)),
        heap_mib=Setting(value=frontend.heap_mib, reason=_explain_heap(frontend)),
        direct_mib=Setting(value=frontend.direct_mib, reason=_explain_direct(frontend)),
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


def _explain_bodies(frontend: FrontendMemory) -> str:
    room = frontend.bodies_mib << 20
    return (
        "what the bodies of all requests that come, wait or are in a batch may take together; the next one "
        f"is answered 503: room for {room // MAX_REQUEST_BYTES} of the largest, or for "
        f"{room // WEB_PHOTO_BYTES} photographs of 100 kB; {BODIES_PER_CORE_MIB} MiB a core, within a "
        f"{BODIES_SHARE}th of the memory, at least {MIN_BODIES_MIB}"
    )


def _explain_heap(frontend: FrontendMemory) -> str:
    return (
        f"{HEAP_BASE_MIB} + {COPIES} × {frontend.bodies_mib} MiB: the bodies, as many again that clients "
        "left behind in a batch, and twice a batch while it is encoded for its worker"
    )


def _explain_direct(frontend: FrontendMemory) -> str:
    return (
        f"{frontend.direct_mib - frontend.bodies_mib} MiB of netty's buffers and {frontend.bodies_mib} for "
        "the batches on their way to the workers; bodies that come in are not kept here"
    )


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
