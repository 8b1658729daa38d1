"""What takes turns in a comparison: a server under ab or Locust, or the in-process reference."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from loadtest.ab import run_ab
from loadtest.cpu import GENERATOR, CpuUse, watch_cpu
from loadtest.drivers.locust_closed import ClosedLoop, run_closed_loop
from loadtest.errors import LoadTestError
from loadtest.inprocess import Reference, model_share, total_rate
from loadtest.samples import Samples
from loadtest.servers import Server
from loadtest.stats import pick

TIMEOUT_S = 120
RAMP_SECONDS = 1.0
"""Left out at the start of each Locust run: queues fill."""
FEWEST_ROUNDS = 2
"""Requests of each of ab's connections, at least."""
PERCENTS = (50, 95, 99, 99.9, 100)


@dataclass(frozen=True, kw_only=True, eq=False)
class Measurement:
    """One turn of one side."""

    rate: float
    """Requests per second."""
    requests: int
    seconds: float
    """Under load."""
    cpu: CpuUse
    latency_ms: dict[str, float] = field(default_factory=dict)
    """Percentile → response time; with one request at a time a latency, else that of a closed loop."""
    model_share: float | None = None
    """In-process only: the part of the time inside the model."""
    samples: Samples | None = None
    """Locust only: every request's row, those left out of the rate too."""
    parts: tuple[float, ...] = ()
    """Rates of equal parts of a long turn of an unsteady server."""


class Side(Protocol):
    """Something with a rate."""

    @property
    def name(self) -> str:
        """Tells the sides of a row apart."""

    @property
    def how(self) -> str:
        """How it is driven, in a few words."""

    def measure(self, seconds: float) -> Measurement:
        """One turn of about so long."""


@dataclass(kw_only=True)
class AbSide:
    """A server, one body, ApacheBench."""

    server: Server
    body: Path
    content_type: str
    concurrency: int
    last_rate: float = 0.0
    """Tells how many requests fill the next turn."""

    @property
    def name(self) -> str:
        return self.server.name

    @property
    def how(self) -> str:
        return f"ab, concurrency {self.concurrency}"

    def measure(self, seconds: float) -> Measurement:
        """Whole rounds of all connections, so that no batch is left half full at the end."""
        rounds = max(FEWEST_ROUNDS, round(self.last_rate * seconds / self.concurrency))
        with self.server.resumed(), watch_cpu(self.server.run.path) as cpu:
            result = run_ab(
                self.server.url,
                self.body,
                self.content_type,
                token=self.server.token,
                requests=rounds * self.concurrency,
                concurrency=self.concurrency,
                timeout_s=TIMEOUT_S,
            )
        if not result.clean:
            wrong = f"{result.failed} failed, {result.non_2xx} not 2xx"
            raise LoadTestError(f"{self.name}: {wrong}; no figure is given")
        self.last_rate = result.requests_per_second
        return Measurement(rate=self.last_rate, requests=result.completed, seconds=result.seconds, cpu=cpu)


@dataclass(frozen=True, kw_only=True)
class LocustSide:
    """A server, a folder of payloads, Locust."""

    server: Server
    payloads: Path
    users: int
    folder: Path
    """For Locust's own files."""
    stretch: float = 1.0
    """Measure so many times as long: the answers of a slow side come in a few whole batches."""
    shuffle: bool = True
    """False sends the payloads as they are listed."""

    @property
    def name(self) -> str:
        return self.server.name

    @property
    def how(self) -> str:
        return "Locust, one at a time" if self.users == 1 else f"Locust, {self.users} users, closed loop"

    def measure(self, seconds: float) -> Measurement:
        job = ClosedLoop(
            url=self.server.client.inference_url,
            token=self.server.token,
            payloads=str(self.payloads),
            users=self.users,
            seconds=self.stretch * seconds,
            warm_up_seconds=RAMP_SECONDS,
            timeout_s=TIMEOUT_S,
            shuffle=self.shuffle,
        )
        with self.server.resumed(), watch_cpu(self.server.run.path) as cpu:
            result = run_closed_loop(job, self.folder)
        if result.samples.errors:
            raise LoadTestError(f"{self.name}: {result.samples.errors} requests failed; no figure is given")
        cpu.by_role[GENERATOR] = result.cpu_seconds  # without Locust's start
        return Measurement(
            rate=result.requests_per_second,
            requests=len(result.measured),
            seconds=float(result.samples.end.max()),
            cpu=cpu,
            latency_ms=summarise_latency(result.measured.latency),
            samples=result.samples,
        )


@dataclass(frozen=True, kw_only=True)
class ReferenceSide:
    """The in-process reference."""

    reference: Reference

    @property
    def name(self) -> str:
        return self.reference.name

    @property
    def how(self) -> str:
        plan = self.reference.plan
        batch = next(iter(plan.models.values())).batch_size.value
        return (
            f"{len(self.reference.children)} process(es) × {plan.layout.cores_per_worker.value} core(s), "
            f"batch {batch}"
        )

    def measure(self, seconds: float) -> Measurement:
        with watch_cpu(self.reference.run.path) as cpu:
            runs = self.reference.measure(seconds)
        return Measurement(
            rate=total_rate(runs),
            requests=sum(run.requests for run in runs),
            seconds=max(run.seconds for run in runs),
            cpu=cpu,
            latency_ms=summarise_latency(np.concatenate([run.batch_seconds for run in runs])),
            model_share=model_share(runs),
        )


def summarise_latency(seconds: np.ndarray) -> dict[str, float]:
    """Percentiles in milliseconds; empty when there was no answer."""
    if not len(seconds):
        return {}
    return {f"{percent:g}": 1000 * pick(seconds, percent) for percent in PERCENTS}
