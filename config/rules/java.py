"""The JVM of TorchServe's frontend: enough to route requests, small enough to leave the cores to the
workers."""

from __future__ import annotations

from config.plan import Java, Setting
from config.rules.memory import plan_heap_mib
from config.topology import Topology

SERIAL_MAX_CORES = 8
"""Up to here one collecting thread keeps up, and a pause never wakes a thread on every worker's core."""

C1_MAX_CORES = 8
"""Up to here a few hundred requests a second are all there are. On two cores at 85 requests/s the thread of
the optimising compiler (C2) took 0.7-1.3 s of CPU in 24 s, all request threads together 0.5 (measured)."""


def plan_java(topology: Topology) -> Java:
    """java.io.tmpdir is not here: the sockets' folder belongs to the run directory, which `server` knows."""
    heap = plan_heap_mib(topology)
    return Java(
        heap_mib=Setting(
            value=heap, reason="512 MiB and 32 per core for waiting requests; at most an eighth of the memory"
        ),
        vmargs=Setting(value=" ".join(_flags(topology, heap)), reason=_explain(topology)),
    )


def count_frontend_threads(topology: Topology) -> int:
    """Threads that only pass bytes on: one per 8 cores that compute, at least 2."""
    return max(2, min(topology.usable_cores // 8, 16))


def _flags(topology: Topology, heap_mib: int) -> list[str]:
    collector = "Serial" if topology.usable_cores <= SERIAL_MAX_CORES else "G1"
    return [
        f"-Xms{heap_mib}m",
        f"-Xmx{heap_mib}m",
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
        "fixed heap",
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
