"""Measures one trial: the load, the machine meanwhile, the window, the answers."""

from __future__ import annotations

import dataclasses
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.answers.check import AnswerCheck, Expected, check_answers
from loadtest.drivers import drive
from loadtest.drivers.job import Outcome, make_job, write_job
from loadtest.drivers.locust import ONE_PROCESS, Crew
from loadtest.drivers.records import Records
from loadtest.errors import LoadTestError
from loadtest.payloads import Payload
from loadtest.results.stats import count_rates, measure_rates, pick
from loadtest.results.trial import CpuUse, Trial
from loadtest.scenarios.scenario import Arrival, Scenario
from loadtest.systems.system import System
from loadtest.trials.block import Watching, watch_nothing
from loadtest.trials.machine import CpuWatch, find_cpu_use
from server.processes import read_resident_mib

LEAST_WINDOW_S = 1.0
CALM = {"driver": "locust", "arrival": Arrival(loop="closed"), "warm_up_s": 0.0, "duration_s": 0.1}


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is sent to one system in each of its trials."""

    system: System
    scenario: Scenario
    level: float
    payloads: Sequence[Payload]
    expected: Expected
    crew: Crew = ONE_PROCESS
    watch: Watching = watch_nothing


def measure_trial(
    load: Load, *, repeat: int, last_rate: float = 0.0, attempt: int = 1
) -> tuple[Trial, Records]:
    """One window. `last_rate` of the system tells how long it must be for whole rounds."""
    scenario = dataclasses.replace(load.scenario, duration_s=plan_duration(load, last_rate))
    began = datetime.now(timezone.utc)
    outcome, use, seen = _send(load, scenario, repeat)
    trial = dataclasses.replace(
        make_trial(load, outcome, repeat=repeat, duration_s=scenario.duration_s),
        attempt=attempt,
        began=began.isoformat(timespec="seconds"),
        cpu=use,
        seen=seen,
        memory_mib=read_memory(load.system),
    )
    if scenario.driver == "ab":
        trial = dataclasses.replace(trial, answers=ask_each(load))
    return trial, outcome.records


def make_trial(load: Load, outcome: Outcome, *, repeat: int, duration_s: float) -> Trial:
    """What the rows alone tell; nothing is measured here."""
    begin, end = find_window(outcome.records, load.scenario, load.level, duration_s)
    window, parts, own = outcome.records.within(begin, end), load.scenario.parts, outcome.requests_per_second
    lag = window.lag[~np.isnan(window.lag)]
    good = window.latency[window.good]
    cuts = np.linspace(begin, end, parts + 1)
    return Trial(
        system=load.system.name,
        scenario=load.scenario,
        level=load.level,
        repeat=repeat,
        began="",
        begin_s=begin,
        end_s=end,
        requests=len(window),
        errors=int((~window.good).sum()),
        error_kinds=count_errors(window),
        # By blocks of time, or the driver's own figure where its raw times are too coarse.
        rates=measure_rates(outcome.records, begin, end) if own is None else (own,),
        parts=count_rates(outcome.records, cuts) if parts > 1 else (),
        p50_ms=1000 * pick(good, 50) if len(good) else None,
        lag_p99_ms=1000 * pick(lag, 99) if len(lag) else None,
        generator_cores=outcome.cpu_shares,
        model_share=outcome.model_share,
        answers=check_answers([outcome.records], load.expected),
        notes=outcome.notes,
    )


def plan_duration(load: Load, last_rate: float) -> float:
    """As asked, or so many answers of each user behind the first round, when that is longer."""
    scenario = load.scenario
    if not last_rate or scenario.is_open:
        return scenario.duration_s
    a_round = load.level / last_rate
    first = max(0.0, a_round - scenario.warm_up_s) if scenario.leave_out_first_round else 0.0
    return round(first + max(scenario.duration_s, scenario.least_rounds * a_round), 3)


def _send(load: Load, scenario: Scenario, repeat: int) -> tuple[Outcome, CpuUse | None, Mapping[str, Any]]:
    """In a folder that is gone afterwards with the token in it."""
    system, crew = load.system, load.crew
    # A token that outlives the load.
    token = system.token(scenario.warm_up_s + scenario.duration_s + 2 * scenario.timeout_s)
    job = make_job(
        scenario, level=load.level, repeat=repeat, url=system.url, token=token, payloads=load.payloads
    )
    run_path = system.run.path if system.run else None
    with (
        tempfile.TemporaryDirectory(prefix="kit-load-") as name,
        load.watch(system) as more,
        CpuWatch(run_path) as watch,
    ):
        folder = write_job(job, load.payloads, Path(name))
        if system.reference is not None:
            outcome = system.reference.run(job, folder)
        else:
            outcome = drive(job, folder, crew, scenario.driver)
    here = 0.0 if crew.remote else sum(outcome.cpu_shares)
    end = outcome.wall_zero + scenario.duration_s
    use = find_cpu_use(watch.readings, outcome.wall_zero, end, generator_cores=here)
    return outcome, use, more.cut(outcome.wall_zero, end)


def find_window(records: Records, scenario: Scenario, level: float, duration_s: float) -> tuple[float, float]:
    """(begin, end) in the rows' time; LoadTestError when the first round leaves too little."""
    begin, end = 0.0, duration_s
    if scenario.stop_after is not None and len(records):
        return float(records.sent.min()), float(records.ended.max())
    if scenario.leave_out_first_round and len(records):
        first_round = records.sent.argsort(kind="stable")[: int(level)]
        begin = max(begin, float(records.ended[first_round].max()))
    if end - begin < min(LEAST_WINDOW_S, duration_s):
        raise LoadTestError(
            f"the first answers of {level:.0f} users took {begin:.1f} of {end:.1f} s; "
            "measure longer (DURATION=)"
        )
    return begin, end


def count_errors(window: Records) -> dict[str, int]:
    """What went wrong → how often."""
    bad = window.take(~window.good)
    texts = (
        str(text) or f"status {status}" for text, status in zip(bad.error, bad.status.tolist(), strict=True)
    )
    return dict(Counter(texts))


def ask_each(load: Load) -> AnswerCheck:
    """ab keeps no answers: each payload is asked again beside it, in a short closed loop."""
    calm = dataclasses.replace(load.scenario, **CALM)  # type: ignore[arg-type]
    asked = dataclasses.replace(load, scenario=calm, level=len(load.payloads), watch=watch_nothing)
    return check_answers([_send(asked, calm, 0)[0].records], load.expected)


def read_memory(system: System) -> dict[str, float]:
    """`model pid` → resident memory in MiB of each worker."""
    workers = [(model, pid) for model in system.models for pid in system.list_workers(model)]
    found = {f"{model} {pid}": read_resident_mib(pid) for model, pid in workers}
    if ended := [worker for worker, mib in found.items() if mib is None]:
        raise LoadTestError(f"worker {ended[0]} has ended: its memory cannot be read")
    return {worker: float(mib or 0) for worker, mib in found.items()}
