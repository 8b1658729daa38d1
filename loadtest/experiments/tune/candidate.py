"""A plan that may be raced: its numbers, its name, its arguments, and how it is simulated."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from config.plan import Plan
from config.rules.door import IN_FLIGHT_BATCHES
from loadtest.simulation.server import ServerPlan

DEFAULT = "default"
"""The plan that `make serve` makes when nothing was tuned."""
Layout = tuple[int, int]
"""(workers, cores of each)."""
NAME = re.compile(r"w(\d+)x(\d+)-b(\d+)-d(\d+)(?:-(jemalloc|tcmalloc|system))?(?:-(intel|gnu))?")


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """What is chosen; everything else of the plan is the default's."""

    workers: int
    cores_per_worker: int
    batch: int
    delay_ms: int
    allocator: str = ""
    """Empty: the default's."""
    openmp: str = ""

    @property
    def layout(self) -> Layout:
        return self.workers, self.cores_per_worker

    @property
    def name(self) -> str:
        """`w2x1-b4-d1`: two workers of one core, batch 4, delay 1 ms."""
        numbers = f"w{self.workers}x{self.cores_per_worker}-b{self.batch}-d{self.delay_ms}"
        return "-".join(part for part in (numbers, self.allocator, self.openmp) if part)

    @property
    def arguments(self) -> list[str]:
        """Of `python -m config`."""
        libraries = (("--allocator", self.allocator), ("--openmp", self.openmp))
        return [
            *("--workers", str(self.workers), "--cores-per-worker", str(self.cores_per_worker)),
            *("--batch", str(self.batch), "--delay-ms", str(self.delay_ms)),
            *(part for option, value in libraries if value for part in (option, value)),
        ]

    def simulate_as(self, queue: int, instances: int = 0) -> ServerPlan:
        """Behind a door with so many instances; 0 is no door."""
        each = min(instances, self.workers) or 1
        own = int(IN_FLIGHT_BATCHES * (self.workers // each) * self.batch)
        return ServerPlan(
            workers=self.workers,
            batch=self.batch,
            delay_s=self.delay_ms / 1000,
            queue=queue,
            instances=each,
            in_flight=own if instances else 0,
        )

    @staticmethod
    def parse(name: str) -> Candidate:
        """Back from its name."""
        found = NAME.fullmatch(name)
        assert found, name
        numbers = [int(one) for one in found.groups()[:4]]
        return Candidate(
            workers=numbers[0],
            cores_per_worker=numbers[1],
            batch=numbers[2],
            delay_ms=numbers[3],
            allocator=found[5] or "",
            openmp=found[6] or "",
        )


def read_candidate(plan: Plan, model: str) -> Candidate:
    """The numbers of a plan."""
    one = plan.models[model]
    return Candidate(
        workers=int(one.workers.value),
        cores_per_worker=int(plan.layout.cores_per_worker.value),
        batch=int(one.batch_size.value),
        delay_ms=int(one.max_batch_delay_ms.value),
    )


def list_layouts(default: Candidate, *, free: bool) -> list[Layout]:
    """The default's, and half as many workers of twice the cores: MLPerf's servers use two for a limit."""
    other = (default.workers // 2, 2 * default.cores_per_worker)
    return [default.layout, other] if free and default.workers % 2 == 0 else [default.layout]


def list_candidates(
    layouts: Sequence[tuple[int, int]], batches: Sequence[int], delays_ms: Sequence[int]
) -> list[Candidate]:
    """All of them; `layouts` are (workers, cores of each)."""
    return [
        Candidate(workers=workers, cores_per_worker=cores, batch=batch, delay_ms=delay)
        for workers, cores in layouts
        for batch in batches
        for delay in (delays_ms if batch > 1 else delays_ms[:1])
    ]
