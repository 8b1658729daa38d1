"""Summaries and sessions for tests: a run in virtual time, or of the fake server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.answers import AnswerCheck, Expected, Tolerance
from loadtest.endpoint import Endpoint
from loadtest.host import CpuUse
from loadtest.payload_sets import make_text
from loadtest.records import Records
from loadtest.run import Prepared, Session, finish, summarise_runs
from loadtest.scenario import Latency, Scenario, parse_scenario
from loadtest.summary import Summary
from tests.loadtest.simulated import QUIET, VirtualServer, as_outcome, noisy, simulate_closed, simulate_open

GOOD = {"good": True, "findings": []}
RIGHT = AnswerCheck(
    checked=100, wrong=0, examples=(), source="test", proof=True, fp32_agreement=1.0, pairs_told_apart=1.0
)
TRUE_ANSWER = {"label": "good", "probabilities": {"good": 0.9, "bad": 0.1}}


Kept = tuple[Path, Summary]


class QuietEndpoint(Endpoint):
    """A server that needs no plan and passes verify."""

    def verify(self) -> dict[str, Any] | None:
        return GOOD

    def precision(self, model: str) -> str:
        return "fp32"


def make_scenario(loop: str = "open", **changes: Any) -> Scenario:
    raw = {
        "model": "bert",
        "payloads": "texts",
        "arrival": {"loop": loop},
        "steps": [20 if loop == "open" else 16],
    }
    return replace(parse_scenario({**raw, "repeats": 2}, name=f"bert-{loop}", source="test"), **changes)


def make_records(scenario: Scenario, *, level: float = 20, service_s: float = 0.05, seed: int = 1) -> Records:
    """One repeat against two virtual workers."""
    random = np.random.default_rng(1000 + seed)  # not the arrivals' seed
    server = VirtualServer(service=noisy(service_s, spread=0.1, random=random), workers=2)
    span = {"begin_s": -scenario.warm_up_s, "end_s": scenario.duration_s + 2}
    if scenario.is_open:
        return simulate_open(server, rate=level, process="poisson", seed=seed, **span)
    return simulate_closed(server, users=int(level), **span)


def keep_virtual(results: Path, scenario: Scenario, *, level: float = 20, service_s: float = 0.05,
                 host: CpuUse = QUIET, cores: float = 0.1, change: Any = None) -> Kept:  # fmt: skip
    """A kept result of a run in virtual time; `change` may alter the records of a repeat."""
    tolerance = Tolerance(relative=0.01, absolute=0.001)
    expected = Expected(source="test", answers=(TRUE_ANSWER,), fp32=(TRUE_ANSWER,), tolerance=tolerance)
    session = Session(
        endpoint=QuietEndpoint(url="http://127.0.0.1:1"), results=results, report=lambda _: None
    )
    prepared = Prepared(
        scenario=scenario,
        session=session,
        payloads=[make_text("a", "a text")],
        expected=expected,
        verified=GOOD,
    )
    runs = {}
    for repeat in range(scenario.repeats):
        records = make_records(scenario, level=level, service_s=service_s, seed=repeat + 1)
        if change:
            change(records)
        runs[0, repeat] = (as_outcome(records, cores=cores), host)
    steps = [summarise_runs(scenario.steps[0], level, list(runs.values()), scenario)]
    # Many CPUs: the share that a generator takes of this machine is a test of its own.
    return finish(prepared, runs, steps, cpus=64)


def with_percentile(scenario: Scenario, percentile: float) -> Scenario:
    return replace(scenario, latency=Latency(percentile=percentile))
