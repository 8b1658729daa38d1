"""Searches the highest open-loop rate that keeps a latency limit: doubling, then bisection."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from loadtest.errors import LoadTestError
from loadtest.run import Prepared, Run, Session, finish, prepare, probe_capacity, summarise_runs
from loadtest.scenario import Latency, Scenario
from loadtest.stats import least_requests
from loadtest.summary import StepSummary
from loadtest.validity import judge_generator_cpu, judge_lag, judge_steal

START_SHARE = 0.25
"""Of what a closed loop reaches: low enough to keep nearly any limit, high enough to need two doublings."""
BISECTIONS = 4
"""The interval left is a sixteenth of the last doubling: 6 % of the rate, about what repeats differ by."""
MOST_DOUBLINGS = 8
LEAST_DONE = 0.95
"""Of what arrived: less means that a backlog grows, and that a longer run would break any limit."""
ATTEMPTS = 2
"""At a rate: a machine that was busy for a moment must not end a search of minutes."""
MARGIN = 1.3
"""More requests than the percentile needs, as Poisson arrivals and errors take some."""


class SearchEnded(Exception):  # noqa: N818 - an outcome, with what was measured so far
    """Something else than the server is the limit."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One rate and whether it kept the limit."""

    rate: float
    kept: bool
    why: str


def search(try_rate: Callable[[float], Tried], start: float) -> list[Tried]:
    """All rates that were tried, in order; the highest kept one is the peak."""
    tried = [try_rate(start)]
    while tried[-1].kept and len(tried) <= MOST_DOUBLINGS:
        tried.append(try_rate(round(2 * tried[-1].rate, 2)))
    while not tried[-1].kept and not any(one.kept for one in tried) and len(tried) <= MOST_DOUBLINGS:
        tried.append(try_rate(round(tried[-1].rate / 2, 2)))
    kept = [one.rate for one in tried if one.kept]
    broken = [one.rate for one in tried if not one.kept]
    if not kept or not broken:
        return tried
    low, high = max(kept), min(broken)
    for _ in range(BISECTIONS):
        tried.append(try_rate(round((low + high) / 2, 2)))
        low, high = (tried[-1].rate, high) if tried[-1].kept else (low, tried[-1].rate)
    return tried


def find_peak(tried: Sequence[Tried]) -> float | None:
    """The highest rate that kept the limit below every one that did not; None when none did."""
    broken = min((one.rate for one in tried if not one.kept), default=float("inf"))
    return max((one.rate for one in tried if one.kept and one.rate < broken), default=None)


def judge_rate(step: StepSummary, scenario: Scenario) -> Tried:
    """Whether one rate kept the scenario's limit, and why not."""
    percentile, limit_ms = scenario.latency.percentile, scenario.latency.limit_ms or 0.0
    quoted = step.percentiles_ms[f"{percentile:g}"]
    if step.errors > scenario.allowed_error_share * step.requests:
        return Tried(rate=step.level, kept=False, why=f"{step.errors} of {step.requests} requests failed")
    # Against what did arrive: Poisson arrivals of a short run differ from the rate that was asked for.
    arrived = step.requests / (step.duration_s * len(step.repeats))
    if step.rate.value < LEAST_DONE * arrived:
        why = f"{step.rate.value:.1f} of {arrived:.1f}/s done: a backlog grows"
        return Tried(rate=step.level, kept=False, why=why)
    if quoted is None:
        raise LoadTestError(
            f"p{percentile:g} cannot be told from {step.requests} requests; run longer (DURATION=)"
        )
    return Tried(rate=step.level, kept=quoted.value <= limit_ms, why=f"p{percentile:g} {quoted.value:.0f} ms")


def plan_duration(rate: float, percentile: float, at_least_s: float) -> float:
    """Long enough for the percentile."""
    return max(at_least_s, round(MARGIN * least_requests(percentile) / rate, 1))


def run_peak(scenario: Scenario, session: Session, *, limit_ms: float, percentile: float = 99.0) -> Path:
    """Search against the session's server; the result's folder, with every rate as a step."""
    latency = Latency(percentile=percentile, limit_ms=limit_ms)
    asked = replace(scenario, name=f"{scenario.model}-peak", latency=latency, repeats=1)
    session.report(f"{asked.name}: p{percentile:g} ≤ {limit_ms:g} ms")
    prepared = prepare(asked, session)
    steps: list[StepSummary] = []
    runs: dict[tuple[int, int], Run] = {}

    def try_rate(rate: float) -> Tried:
        one = replace(asked, duration_s=plan_duration(rate, percentile, asked.duration_s))
        session.report(f"  {rate:8.2f} requests/s for {one.duration_s:.0f} s …")
        run, step, doubtful = measure_well(prepared, rate, one)
        runs[len(steps), 0] = run
        steps.append(step)
        if doubtful:
            raise SearchEnded
        tried = judge_rate(step, asked)
        session.report(f"           {'kept' if tried.kept else 'broken'}, {tried.why}")
        return tried

    tried: list[Tried] = []
    start = round(START_SHARE * probe_capacity(asked, session, prepared.payloads), 2)
    with contextlib.suppress(SearchEnded):  # kept as INVALID, with the doubt as its reason
        tried = search(try_rate, start)
    final = replace(prepared, scenario=replace(asked, steps=tuple(one.level for one in steps)))
    return finish(final, runs, steps, searched=True, peak=find_peak(tried))[0]


def measure_well(prepared: Prepared, rate: float, scenario: Scenario) -> tuple[Run, StepSummary, bool]:
    """One rate, once more when something else than the server was the limit; whether that was so again."""
    for _ in range(ATTEMPTS):
        run = prepared.run_once(rate, 0, scenario.duration_s)
        step = summarise_runs(rate, rate, [run], scenario)
        cpus = None if prepared.session.crew.remote else os.cpu_count()
        doubts = [*judge_lag(0, step), *judge_generator_cpu(0, step, cpus), *judge_steal(0, step)]
        if not doubts:
            return run, step, False
        prepared.session.report(f"           doubtful: {doubts[0].state}: {doubts[0].evidence}")
    return run, step, True
