"""What one run amounts to: figures of each step, made from its records; everything the reports need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from loadtest.answers import AnswerCheck
from loadtest.drivers.generator import Outcome
from loadtest.host import CpuUse
from loadtest.records import Records
from loadtest.scenario import Scenario, Step
from loadtest.stats import (
    Interval,
    find_mean_interval,
    find_percentile_interval,
    least_requests,
    measure_rates,
    pick,
    split_by_time,
)

SCHEMA = 1
QUOTED = (50.0, 90.0, 95.0, 99.0, 99.9)
CURVE = tuple(round(p, 1) for p in [*np.arange(0.0, 99.0, 1.0), *np.arange(99.0, 99.91, 0.1), 100.0])
"""Percentiles of the distribution's plot; the far ends of few requests are drawn, not quoted."""
CLOSED_LABEL = "closed-loop response time (no latency under load)"
OPEN_LABEL = "latency, counted from when each request was due"
MOST_ERRORS = 8
ENDS_OF_A_SEARCH = ("errors", "too few requests")
"""Rules that a rate beyond the peak may break: that is how a search finds it."""


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """One repeat of one step."""

    requests: int
    """That began within the window."""
    errors: int
    rate: float
    """Requests a second."""
    rates: tuple[float, ...]
    """The same for each block of the window, for intervals."""
    p50_ms: float | None
    lag_p99_ms: float | None
    """How late the generator was; None in a closed loop."""
    generator_cores: tuple[float, ...]
    """CPU use of each generating process, in cores."""
    host: CpuUse | None


@dataclass(frozen=True, kw_only=True)
class StepSummary:
    """One step: all its repeats together."""

    asked: Step
    """As the scenario says it."""
    level: float
    """Users, or requests a second."""
    duration_s: float
    """Of one repeat."""
    requests: int
    errors: int
    error_kinds: dict[str, int]
    rate: Interval
    """Requests a second; the interval is over blocks of time of all repeats."""
    percentiles_ms: dict[str, Interval | None]
    """By percentile; None where there are too few requests for it."""
    curve_ms: tuple[float, ...]
    """Milliseconds at each percentile of CURVE."""
    repeats: tuple[Repeat, ...]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A doubt: what is wrong, how that is known, what to do."""

    rule: str
    step: int | None
    """None for the whole run."""
    state: str
    """What is wrong, in a sentence."""
    evidence: str
    next_step: str
    invalid: bool = True
    """False for a remark that leaves the figures standing."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One run of one scenario."""

    scenario: Scenario
    server: str
    precision: str
    latency_label: str
    steps: tuple[StepSummary, ...]
    cpus: int
    """Of this machine."""
    generated_here: bool
    """False when other machines generated the load, and took nothing from the server."""
    answers: AnswerCheck
    verify: Mapping[str, dict[str, Any] | None]
    """Of before and after; None where the server has no plan."""
    accuracy: Mapping[str, Any] | None = None
    """What the gate saw of this precision when the archive was built; None for FP32, its reference."""
    notes: tuple[str, ...] = ()
    searched: bool = False
    """The steps are a search's: those beyond the peak may fail."""
    peak: float | None = None
    """Of a search: the highest rate that kept the limit; None when none did."""
    findings: tuple[Finding, ...] = ()
    schema: int = SCHEMA

    def is_valid(self, step: int | None = None) -> bool:
        """Whether figures of a step (or of the run as a whole) may be quoted."""
        concerned = [one for one in self.findings if one.invalid]
        if step is not None:
            return not [one for one in concerned if one.step in (None, step)]
        return not [one for one in concerned if not (self.searched and one.rule in ENDS_OF_A_SEARCH)]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def summarise_step(asked: Step, level: float, outcomes: Sequence[Outcome], uses: Sequence[CpuUse | None],
                   scenario: Scenario) -> StepSummary:  # fmt: skip
    """Figures of one step's repeats."""
    windows = [one.records.within(0, scenario.duration_s) for one in outcomes]
    repeats = tuple(
        _summarise_repeat(outcome, window, use, scenario)
        for outcome, window, use in zip(outcomes, windows, uses, strict=True)
    )
    latencies = [1000 * block for window in windows for block in split_by_time(window, scenario.duration_s)]
    every = np.concatenate(latencies) if latencies else np.empty(0)
    kinds = Counter(str(text) for window in windows for text in _error_texts(window))
    return StepSummary(
        asked=asked,
        level=level,
        duration_s=scenario.duration_s,
        requests=sum(len(window) for window in windows),
        errors=sum(one.errors for one in repeats),
        error_kinds=dict(kinds.most_common(MOST_ERRORS)),
        rate=find_mean_interval([rate for one in repeats for rate in one.rates]),
        percentiles_ms={f"{p:g}": _quote(latencies, len(every), p) for p in QUOTED},
        curve_ms=tuple(round(pick(every, p), 3) for p in CURVE) if len(every) else (),
        repeats=repeats,
    )


def _summarise_repeat(outcome: Outcome, window: Records, use: CpuUse | None, scenario: Scenario) -> Repeat:
    own = outcome.requests_per_second
    rates = measure_rates(outcome.records, scenario.duration_s) if own is None else [own]
    good = window.latency[window.good]
    lag = window.lag[~np.isnan(window.lag)]
    return Repeat(
        requests=len(window),
        errors=int((~window.good).sum()),
        rate=float(np.mean(rates)),
        rates=tuple(rates),
        p50_ms=1000 * pick(good, 50) if len(good) else None,
        lag_p99_ms=1000 * pick(lag, 99) if len(lag) else None,
        generator_cores=outcome.cpu_shares,
        host=use,
    )


def _error_texts(window: Records) -> list[str]:
    bad = window.take(~window.good)
    return [text or f"status {status}" for text, status in zip(bad.error, bad.status, strict=True)]


def _quote(latencies: Sequence[np.ndarray], count: int, percentile: float) -> Interval | None:
    return find_percentile_interval(latencies, percentile) if count >= least_requests(percentile) else None
