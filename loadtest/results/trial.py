"""What is kept of a measurement: trials with their evidence, the systems they were of, and their block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loadtest.answers.check import AnswerCheck
from loadtest.drivers.records import Records
from loadtest.scenarios.scenario import Scenario


@dataclass(frozen=True, kw_only=True)
class CpuUse:
    """CPU seconds that were used in a window."""

    seconds: float
    """How long it was."""
    cpus: int
    """That we may use."""
    by_role: Mapping[str, float] = field(default_factory=dict)
    """TorchServe, worker, launcher, helper of the system, and the load generator."""
    others: float = 0.0
    """Everything else on these CPUs: other programs, and the kernel's own work."""
    stolen: float = 0.0
    """What the host of a virtual machine gave to others."""

    def share(self, cpu_seconds: float) -> float:
        """Of all CPUs' time (0 to 1)."""
        return cpu_seconds / (self.cpus * self.seconds) if self.seconds else 0.0


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One window of one system, with its evidence; its raw rows are kept beside it."""

    system: str
    scenario: Scenario
    level: float
    """Users, or requests a second."""
    repeat: int
    """From 0; trials of one repeat were measured seconds apart."""
    began: str
    """UTC, ISO 8601."""
    begin_s: float
    """The window, in the time of the rows."""
    end_s: float
    requests: int
    """That began in the window."""
    errors: int
    rates: tuple[float, ...]
    """Requests a second in each block of time of the window, each request by the share of its time in it."""
    answers: AnswerCheck
    error_kinds: Mapping[str, int] = field(default_factory=dict)
    parts: tuple[float, ...] = ()
    """The same in equal parts of the window, where the scenario asks for several."""
    p50_ms: float | None = None
    lag_p99_ms: float | None = None
    """How late the generator was; None in a closed loop."""
    generator_cores: tuple[float, ...] = ()
    """CPU use of each generating process, in cores."""
    cpu: CpuUse | None = None
    memory_mib: Mapping[str, float] = field(default_factory=dict)
    """`model pid` → resident memory of each worker when it ended."""
    model_share: float | None = None
    """Without a server: the part of the time inside the model."""
    warm_up: bool = False
    """Kept, and never quoted."""
    attempt: int = 1
    """Above 1: measured again at once, because the machine had disturbed the one before."""
    notes: tuple[str, ...] = ()
    seen: Mapping[str, Any] = field(default_factory=dict)
    """What the experiment itself watched in its window."""

    @property
    def rate(self) -> float:
        """Requests a second over the window."""
        return sum(self.rates) / len(self.rates)

    @property
    def arrived(self) -> float:
        """Requests a second that began in it, answered or not."""
        return self.requests / self.duration_s

    @property
    def duration_s(self) -> float:
        return self.end_s - self.begin_s


@dataclass(frozen=True, kw_only=True)
class SystemFacts:
    """What is known of one system of a block."""

    name: str
    how: str = ""
    models: tuple[str, ...] = ()
    is_kit: bool = False
    precisions: Mapping[str, str] = field(default_factory=dict)
    """Model → what is served; `unknown` where nobody tells."""
    accuracy: Mapping[str, Any] = field(default_factory=dict)
    """Model → what the gate saw of this precision at build; None for FP32, its reference."""
    least_agreement: float = 0.95
    plan: Mapping[str, Any] | None = None
    described: tuple[Mapping[str, Any], ...] = ()
    """Its workers' own accounts when it was up."""
    verify_before: Mapping[str, Any] | None = None
    verify_after: Mapping[str, Any] | None = None
    """None where there is no plan to compare with."""
    pids_before: tuple[int, ...] = ()
    pids_after: tuple[int, ...] = ()
    """Of its workers: TorchServe starts a dead one again in silence."""
    causes: tuple[str, ...] = ()
    """Why its supervisor started parts again."""
    start: Mapping[str, Any] | None = None
    """How long its start took; None where it was up before."""
    seen: Mapping[str, Any] = field(default_factory=dict)
    """What the experiment itself looked at before and after the trials."""


@dataclass(frozen=True, kw_only=True)
class KeptBlock:
    """Systems that took turns."""

    number: int
    name: str
    began: str
    seconds: float
    generated_here: bool
    """False when other machines generated the load, and took nothing from the server."""
    systems: Mapping[str, SystemFacts]
    trials: tuple[Trial, ...]
    refused: Mapping[str, str] = field(default_factory=dict)
    """System → the kit's own reason why it cannot be served so."""
    payloads: Mapping[str, Any] = field(default_factory=dict)
    """Set → name, size, type and digest of each payload."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """The trials of one system under one load in one block: what a figure is made of."""

    facts: SystemFacts
    scenario: Scenario
    level: float
    trials: tuple[Trial, ...]
    """One of each repeat, in order; of several attempts the last. Warm-ups are left out."""
    records: tuple[Records, ...]
    """Of the same trials."""
    generated_here: bool = True

    @property
    def system(self) -> str:
        return self.facts.name

    @property
    def turn_rates(self) -> list[float]:
        """Requests a second of each repeat."""
        return [one.rate for one in self.trials]
