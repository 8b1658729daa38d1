"""Runs one scenario against one server: expected answers, verify, steps and repeats, verify, judgement."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loadtest.answers import AnswerCheck, Expected, check_answers
from loadtest.drivers.apache import run_apache
from loadtest.drivers.generator import ONE_PROCESS, Crew, Outcome, run_locust
from loadtest.drivers.job import make_job, write_job
from loadtest.drivers.remote import offering
from loadtest.endpoint import Endpoint
from loadtest.errors import LoadTestError
from loadtest.expected import find_expected
from loadtest.host import CpuUse, CpuWatch, find_cpu_use, read_host
from loadtest.kept import RESULTS, make_folder, write_result
from loadtest.payload_sets import Payload, make_payloads
from loadtest.records import Records
from loadtest.scenario import AUTO, Arrival, Scenario, Step, parse_share
from loadtest.stats import measure_rates
from loadtest.summary import CLOSED_LABEL, OPEN_LABEL, StepSummary, Summary, summarise_step
from loadtest.validity import judge

Report = Callable[[str], None]
PROBE_WARM_UP_S, PROBE_S = 4.0, 8.0
"""Of the short closed loop that finds what 100 % is, for rates that are given as a share."""
CACHE = ".expected"
"""In the results' folder: expected answers are computed once for an archive and its payloads."""


Run = tuple[Outcome, CpuUse | None]
"""What the generators saw, and what the machine did meanwhile."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """What stays the same while a server is measured."""

    endpoint: Endpoint
    crew: Crew = ONE_PROCESS
    results: Path = RESULTS
    report: Report = print


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A scenario with all that must be known before the first request of its load."""

    scenario: Scenario
    session: Session
    payloads: list[Payload]
    expected: Expected
    verified: dict[str, Any] | None
    """What verify found before the load."""

    def run_once(self, level: float, repeat: int, duration_s: float | None = None) -> Run:
        """One repeat of one step."""
        asked = self.scenario if duration_s is None else replace(self.scenario, duration_s=duration_s)
        return run_once(asked, level, repeat, self.session, self.payloads)


def prepare(scenario: Scenario, session: Session) -> Prepared:
    """Expected answers first: they take CPU time, which no load may have to share."""
    check_model(scenario, session.endpoint)
    payloads = make_payloads(scenario.payloads)
    cache = session.results / CACHE
    return Prepared(
        scenario=scenario,
        session=session,
        payloads=payloads,
        expected=find_expected(session.endpoint, scenario.model, payloads, cache, session.report),
        verified=session.endpoint.verify(),
    )


def run_scenario(scenario: Scenario, session: Session) -> tuple[Path, Summary]:
    """Measure, judge and keep; the result's folder and what it says."""
    prepared = prepare(scenario, session)
    levels = [find_level(step, scenario, session, prepared.payloads) for step in scenario.steps]
    runs = _run_steps(prepared, levels)
    steps = []
    for number, (step, level) in enumerate(zip(scenario.steps, levels, strict=True)):
        chosen = [runs[number, repeat] for repeat in range(scenario.repeats)]
        steps.append(summarise_runs(step, level, chosen, scenario))
    return finish(prepared, runs, steps)


def summarise_runs(step: Step, level: float, runs: Sequence[Run], scenario: Scenario) -> StepSummary:
    """One step from its repeats."""
    return summarise_step(step, level, [one for one, _ in runs], [use for _, use in runs], scenario)


def finish(
    prepared: Prepared, runs: Mapping[tuple[int, int], Run], steps: Sequence[StepSummary], **more: Any
) -> tuple[Path, Summary]:
    """Verify again, judge answers and validity, keep everything."""
    scenario, session = prepared.scenario, prepared.session
    records = {key: outcome.records for key, (outcome, _) in runs.items()}
    after = session.endpoint.verify()
    facts: dict[str, Any] = {"cpus": os.cpu_count() or 1, **more}
    summary = Summary(
        scenario=scenario,
        server=session.endpoint.name,
        precision=session.endpoint.precision(scenario.model),
        accuracy=session.endpoint.accuracy(scenario.model),
        latency_label=OPEN_LABEL if scenario.is_open else CLOSED_LABEL,
        steps=tuple(steps),
        generated_here=not session.crew.remote,
        answers=_check(list(records.values()), prepared),
        verify={"before": prepared.verified, "after": after},
        notes=tuple(dict.fromkeys(note for outcome, _ in runs.values() for note in outcome.notes)),
        **facts,
    )
    return _keep(judge(summary), prepared, records)


def _keep(
    summary: Summary, prepared: Prepared, records: Mapping[tuple[int, int], Records]
) -> tuple[Path, Summary]:
    folder = make_folder(summary.scenario.name, prepared.session.results)
    plan = prepared.session.endpoint.plan
    write_result(
        folder,
        summary,
        records=records,
        expected=prepared.expected,
        payloads=prepared.payloads,
        host=read_host(),
        plan=plan.to_json() if plan else None,
    )
    return folder, summary


def check_model(scenario: Scenario, endpoint: Endpoint) -> None:
    if endpoint.models and scenario.model not in endpoint.models:
        served = ", ".join(endpoint.models)
        raise LoadTestError(
            f"the model must be one that is served, {served}: got {scenario.model} ({scenario.name})"
        )


def find_level(step: Step, scenario: Scenario, session: Session, payloads: Sequence[Payload]) -> float:
    """Users or rate in numbers; a share needs to know first what the whole is."""
    if step == AUTO:
        return float(session.endpoint.auto_users(scenario.model))
    share = parse_share(step)
    if share is None:
        return float(step)
    return round(share * probe_capacity(scenario, session, payloads), 2)


def probe_capacity(scenario: Scenario, session: Session, payloads: Sequence[Payload]) -> float:
    """Requests a second of a short closed loop."""
    users = session.endpoint.auto_users(scenario.model)
    probe = replace(
        scenario,
        arrival=Arrival(loop="closed"),
        driver="locust",
        warm_up_s=PROBE_WARM_UP_S,
        duration_s=PROBE_S,
    )
    outcome = run_once(probe, users, 0, session, payloads)[0]
    rates = measure_rates(outcome.records, PROBE_S)
    capacity = sum(rates) / len(rates)
    session.report(f"  probe: {capacity:.1f} requests/s with {users} users in a closed loop")
    if not capacity > 0:
        raise LoadTestError(
            f"the probe of {scenario.name} got no good answer; is {session.endpoint.url} right?"
        )
    return capacity


def _run_steps(prepared: Prepared, levels: Sequence[float]) -> dict[tuple[int, int], Run]:
    """(step, repeat) → what was seen; steps take turns in each repeat, so that drift hits all alike."""
    runs = {}
    for repeat in range(prepared.scenario.repeats):
        for number, level in enumerate(levels):
            run = prepared.run_once(level, repeat)
            runs[number, repeat] = run
            told = (
                f"{_describe(prepared.scenario, level)}, repeat {repeat + 1}: {tell(run, prepared.scenario)}"
            )
            prepared.session.report(f"  {told}")
    return runs


def run_once(
    scenario: Scenario, level: float, repeat: int, session: Session, payloads: Sequence[Payload]
) -> Run:
    """One repeat of one step, in a folder that is gone afterwards with the token in it."""
    longest = scenario.warm_up_s + scenario.duration_s + 2 * scenario.timeout_s
    token = session.endpoint.token(longest)
    job = make_job(
        scenario, level=level, repeat=repeat, url=session.endpoint.url, token=token, payloads=payloads
    )
    with tempfile.TemporaryDirectory(prefix="kit-load-") as name, CpuWatch() as watch:
        folder = write_job(job, payloads, Path(name))
        if scenario.driver == "ab":
            outcome = run_apache(job, folder)
        else:
            with offering(folder, session.crew):
                outcome = run_locust(job, folder, session.crew)
    end = outcome.wall_zero + scenario.duration_s
    return outcome, find_cpu_use(watch.readings, outcome.wall_zero, end)


def _check(records: Sequence[Records], prepared: Prepared) -> AnswerCheck:
    """ab keeps no answers: each payload is asked again beside it."""
    scenario, session = prepared.scenario, prepared.session
    if scenario.driver == "ab":
        records = [ask_each(scenario, session, prepared.payloads)]
    return check_answers(records, prepared.expected)


def ask_each(scenario: Scenario, session: Session, payloads: Sequence[Payload]) -> Records:
    """A short closed loop that sends each payload at least once."""
    calm = replace(scenario, driver="locust", arrival=Arrival(loop="closed"), warm_up_s=0.0, duration_s=0.1)
    return run_once(calm, len(payloads), 0, session, payloads)[0].records


def _describe(scenario: Scenario, level: float) -> str:
    return f"{level:.4g} requests/s" if scenario.is_open else f"{level:.0f} users"


def tell(run: Run, scenario: Scenario) -> str:
    """A sign of life; figures are quoted by the report alone, after the rules have judged them."""
    window = run[0].records.within(0, scenario.duration_s)
    bad = int((~window.good).sum())
    return f"{len(window)} requests" + (f", {bad} failed" if bad else "")
