"""Memory of an instance, and its JVM."""

from __future__ import annotations

from collections.abc import Mapping

from config.errors import FitError
from config.plan import JavaPlan
from config.settings import Settings
from config.topology import Topology

LAUNCHER_MIB = 260
"""The launcher imports torch and stays the parent of its worker: 259 MiB of anonymous memory (torch 2.8,
seen)."""
FOREIGN_MIB, FOREIGN_COPIES = 600, 3
"""An estimate of a worker whose memory nobody measured: Python and torch, and the archive as it is unpacked,
read and held."""
RESERVE_SHARE = 0.05
"""Left to the page cache and the rest of the system."""
IN_WORKERS = 1.25
"""Memory of the workers for each byte of the bodies in their batches: 320 MiB for 256 (BERT, measured)."""

BODIES_PER_CORE_MIB, MAX_BODIES_MIB = 128, 1024
BODIES_SHARE = 48
"""The bodies may be a 48th of the memory: all their copies together are then about an eighth."""
MIN_BODIES_MIB = 64
"""Four of the largest requests."""
COPIES, HEAP_BASE_MIB = 4, 128
"""The bodies; as many that clients left behind in the queue or a batch; and a batch while it is encoded, when
its buffer grows into a larger one (TorchServe's ModelRequestEncoder); TorchServe itself, and a form's
fields."""
DIRECT_BASE_MIB = 128
"""netty's arenas of 16 MiB for what is being read and written, and forms: its decoder copies one once more,
in each of two threads. The bodies of batches are copied there on their way to a worker."""
JVM_BEYOND_MIB = 192
"""Classes, compiled code and thread stacks of TorchServe, and netty's buffers in use: 140 were seen beside a
heap that an overload had filled."""
FEW_CORES = 8
"""Up to here one collecting thread keeps up and a pause never wakes a thread on every worker's core, and a
few hundred requests a second are all there are: on two cores at 85/s the thread of the optimising compiler
(C2) took 0.7-1.3 s of CPU in 24 s, all request threads together 0.5 (measured)."""


def count_frontend_threads(topology: Topology) -> int:
    """Threads that only pass bytes on: one per 8 cores that compute, at least 2."""
    return max(2, min(topology.usable_cores // 8, 16))


def plan_java(topology: Topology, why: dict[str, str]) -> JavaPlan:
    """Without java.io.tmpdir: the sockets' folder belongs to the run directory, which `server` knows."""
    wanted = min(BODIES_PER_CORE_MIB * topology.usable_cores, MAX_BODIES_MIB)
    bodies = max(MIN_BODIES_MIB, min(wanted, topology.memory_limit_mib // BODIES_SHARE))
    heap, direct = HEAP_BASE_MIB + COPIES * bodies, DIRECT_BASE_MIB + bodies
    few = topology.usable_cores <= FEW_CORES
    why["java.bodies_mib"] = (
        f"bodies of all requests in the instance: {BODIES_PER_CORE_MIB} MiB a core, within a "
        f"{BODIES_SHARE}th of the memory, at least {MIN_BODIES_MIB}; heap and direct memory hold them and "
        "their copies"
    )
    flags = (
        f"-Xms{heap}m", f"-Xmx{heap}m", f"-XX:MaxDirectMemorySize={direct}m",
        f"-XX:+Use{'Serial' if few else 'G1'}GC",
        f"-XX:ActiveProcessorCount={count_frontend_threads(topology)}", "-XX:+ExitOnOutOfMemoryError",
        *(["-XX:TieredStopAtLevel=1"] if few else []),
    )  # fmt: skip
    return JavaPlan(bodies_mib=bodies, heap_mib=heap, direct_mib=direct, flags=flags)


def count_workers_in_memory(
    topology: Topology, java: JavaPlan, needed_mib: Mapping[str, int], settings: Settings
) -> int:
    """Workers of each model that fit; FitError where it is less than one. `needed_mib`: one of each, by what
    it is.

    All workers may have their worst batch at once: nothing tells one what the others are decoding. Needed
    once are TorchServe, the bodies of requests in the workers, and the reserve.
    """
    launcher_mib, limit_mib = LAUNCHER_MIB if settings.pinning else 0, topology.memory_limit_mib
    each = sum(mib + launcher_mib for mib in needed_mib.values())
    jvm = java.heap_mib + java.direct_mib + JVM_BEYOND_MIB
    shared = jvm + int(java.bodies_mib * IN_WORKERS) + int(limit_mib * RESERVE_SHARE)
    workers = (limit_mib - shared) // each
    if workers < 1:
        raise FitError(
            f"not enough memory for one worker of each model ({', '.join(needed_mib)}): needed "
            f"{each + shared} MiB (workers {each}, TorchServe and reserve {shared}), there are "
            f"{limit_mib} MiB ({topology.memory_source}); serve fewer models (MODELS=…) or raise the limit"
        )
    return workers
