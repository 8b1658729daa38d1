"""What is wrong with a system, told by its figures alone: each fault by the one figure that must show it.

The limits lie well above what healthy workers were seen with; of the faults only glibc's malloc was met live.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from loadtest.experiments.profile.evidence import Evidence
from loadtest.experiments.profile.figures import count_faults, count_reorders
from loadtest.experiments.profile.threads import WorkerUse

MIGRATIONS = 2.0
"""A second, of one busy thread: one that is held on its CPUs moves at its start and no more."""
FAULTS_A_REQUEST = 100.0
"""Pages of 4 KiB: a batch whose buffers are kept faults none; one image of ResNet50 in FP32 is 147 pages."""
REMOTE = 0.1
"""Of a worker's own memory; libraries' pages, which others have touched first, are no part of it."""
THROTTLED_MS = 1.0
"""Of each period of 100 ms, as verify has it."""
REORDERS = 0.5
"""Of activations, for each convolution: with channels_last only the first layer has one."""
WORKS = 0.2
"""Of a core: a thread that computes; what only waits for the network uses less."""
UNFOLDED = ("aten::batch_norm", "aten::native_batch_norm", "aten::_batch_norm_impl_index")
"""What freezing folds into the convolutions before them."""


@dataclass(frozen=True, kw_only=True)
class Symptom:
    """One fault, seen."""

    fault: str
    figure: str
    """The table that shows it."""
    evidence: str


Found = Iterator[str]


def find_unpinned(one: Evidence) -> Found:
    """Busy threads of two workers on the same CPUs, or threads that wander."""
    for worker in one.workers:
        moved = [use for use in worker.busy if use.cores > WORKS and (use.migrations or 0) > MIGRATIONS]
        for use in moved[:1]:
            seen = ", ".join(map(str, sorted(use.cpus)))
            yield f"{use.name} of worker {worker.pid}: {use.migrations:.1f} migrations/s, CPU {seen}"


def find_two_runtimes(one: Evidence) -> Found:
    """PyTorch's parallel regions go to GNU's library while Intel's is mapped for others."""
    mapped = [name for name in one.libraries if "iomp" in name]
    used = {str(told.get("openmp", {}).get("name")) for told in one.described}
    if mapped and used == {"gnu"}:
        yield f"PyTorch computes with GNU's, and {mapped[0]} is in the process too"


def find_not_frozen(one: Evidence) -> Found:
    """Batch normalisation of its own, which a frozen graph has folded away."""
    left = [row for row in one.operators if row.name in UNFOLDED]
    if left and one.runs:
        yield f"{left[0].calls / one.runs:.0f} × {left[0].name} in each run"


def find_channels_first(one: Evidence) -> Found:
    """Activations that are put in another order before and behind convolutions."""
    moved = count_reorders(one)
    if moved and moved > REORDERS:
        yield f"{moved:.1f} reorders of activations for each convolution"


def find_glibc(one: Evidence) -> Found:
    """Memory that is given back after each batch and faulted in again for the next."""
    faults = count_faults(one)
    if faults and faults > FAULTS_A_REQUEST:
        yield f"{faults:.0f} minor faults for each request"


def find_remote(one: Evidence) -> Found:
    yield from (
        f"{worker.remote:.0%} of worker {worker.pid}'s own memory is on another NUMA node"
        for worker in one.workers
        if (worker.remote or 0.0) > REMOTE
    )


def find_throttled(one: Evidence) -> Found:
    yield from (
        f"worker {worker.pid}: {worker.throttled_ms:.1f} ms of each period"
        for worker in one.workers
        if (worker.throttled_ms or 0.0) > THROTTLED_MS
    )


def find_extra_threads(one: Evidence) -> Found:
    """More threads that compute than the worker was seen on CPUs: they wait for each other."""
    for worker in one.workers:
        if (count := count_working(worker)) > len(worker.cpus):
            yield f"{count} threads compute on {len(worker.cpus)} CPUs in worker {worker.pid}"


def count_working(worker: WorkerUse) -> int:
    """Threads that use, or wait for, a good part of a core; who waits would compute if it could."""
    wanted = (use.cores / max(1e-9, 1 - (use.waiting or 0.0)) for use in worker.busy)
    return sum(cores > WORKS for cores in wanted)


FAULTS: Mapping[str, tuple[str, Callable[[Evidence], Found]]] = {
    "not pinned": ("Threads: migrations", find_unpinned),
    "two OpenMP runtimes": ("Threads: OpenMP runtimes", find_two_runtimes),
    "not frozen": ("Operators: batch normalisation", find_not_frozen),
    "channels_last off": ("oneDNN: reorders of activations", find_channels_first),
    "memory given back (glibc's malloc)": ("Memory: minor faults", find_glibc),
    "memory on another node": ("Memory: remote", find_remote),
    "throttled": ("Threads: throttled", find_throttled),
    "too many threads": ("Threads: computing threads", find_extra_threads),
}
"""Fault → the figure that shows it, and who looks; one entry each."""


def find_symptoms(one: Evidence) -> list[Symptom]:
    """Of one system, in the order of FAULTS."""
    return [
        Symptom(fault=fault, figure=figure, evidence=evidence)
        for fault, (figure, look) in FAULTS.items()
        for evidence in look(one)
    ]
