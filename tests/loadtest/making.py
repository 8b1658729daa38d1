"""Trials, series and kept results with known figures, for whatever judges and reports."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadtest.answers.check import AnswerCheck
from loadtest.drivers.records import Records, make_records
from loadtest.results.kept import Kept, keep_block, start_result
from loadtest.results.trial import CpuUse, KeptBlock, Series, SystemFacts, Trial
from loadtest.scenarios.scenario import Arrival, Scenario

RIGHT = AnswerCheck(
    checked=100, wrong=0, source="test", labels_judged=100, labels_same=100, largest_difference=0.001
)
QUIET = CpuUse(
    seconds=10.0, cpus=64, by_role={"worker": 500.0, "load generator": 5.0}, others=1.0, stolen=0.0
)
GOOD = {"good": True, "findings": []}
ANSWER = '{"label": "good", "probabilities": {"good": 0.9, "bad": 0.1}}'
HOST = {
    "cpu": "Test CPU", "vendor": "AuthenticAMD", "flags": ["avx2", "avx512f"], "cpus": 2, "usable_cores": 2,
    "memory_gib": 8, "virtual": True, "kernel": "6.0", "python": "3.12",
    "versions": {"torch": "2.8.0", "torchserve": "0.12.0", "locust": "2.42"},
}  # fmt: skip


def make_scenario(loop: str = "closed", **changes: Any) -> Scenario:
    """Ten seconds of one level."""
    plain: dict[str, Any] = {
        "name": f"bert-{loop}", "model": "bert", "payloads": "texts", "arrival": Arrival(loop=loop),
        "steps": (20.0 if loop == "open" else 16.0,), "duration_s": 10.0,
    }  # fmt: skip
    return Scenario(**{**plain, **changes})


def make_trial(system: str = "kit", rate: float = 10.0, *, repeat: int = 0, **changes: Any) -> Trial:
    """Undisturbed, every answer right."""
    plain: dict[str, Any] = {
        "scenario": make_scenario(), "level": 16.0, "began": "2026-01-02T03:04:05+00:00", "begin_s": 0.0,
        "end_s": 10.0, "requests": round(10 * rate), "errors": 0, "rates": (rate,) * 5, "p50_ms": 50.0,
        "generator_cores": (0.1,), "cpu": QUIET, "answers": RIGHT,
    }  # fmt: skip
    return Trial(**{"system": system, "repeat": repeat, **plain, **changes})


def make_rows(rate: float = 10.0, *, seconds: float = 10.0, latency: float = 0.05) -> Records:
    """Evenly spaced requests from the begin of the window, all answered."""
    count = round(rate * seconds)
    sent = [number / rate for number in range(count)]
    return make_records([(0, float("nan"), at, at + latency, 200, 0, "") for at in sent], [ANSWER])


def make_facts(system: str = "kit", **changes: Any) -> SystemFacts:
    """The kit's, verified before and after."""
    plain: dict[str, Any] = {
        "how": "test", "models": ("bert",), "is_kit": True, "precisions": {"bert": "fp32"},
        "accuracy": {"bert": None}, "verify_before": GOOD, "verify_after": GOOD,
        "pids_before": (1, 2), "pids_after": (1, 2),
    }  # fmt: skip
    return SystemFacts(name=system, **{**plain, **changes})


def make_series(system: str = "kit", rates: Sequence[float] = (10.0, 10.0, 10.0), **changes: Any) -> Series:
    """One trial a rate; `changes` are the trials'."""
    trials = tuple(make_trial(system, rate, repeat=n, **changes) for n, rate in enumerate(rates))
    return Series(
        facts=make_facts(system),
        scenario=trials[0].scenario,
        level=trials[0].level,
        trials=trials,
        records=tuple(make_rows(rate) for rate in rates),
    )


def make_block(name: str, series: Sequence[Series], **changes: Any) -> KeptBlock:
    """Systems that took turns, repeat by repeat."""
    trials = sorted((trial for one in series for trial in one.trials), key=lambda trial: trial.repeat)
    plain: dict[str, Any] = {
        "number": 0, "began": "2026-01-02T03:04:05+00:00", "seconds": 60.0, "generated_here": True,
        "systems": {one.system: one.facts for one in series}, "trials": tuple(trials),
    }  # fmt: skip
    return KeptBlock(name=name, **{**plain, **changes})


def list_rows(block: KeptBlock, series: Sequence[Series]) -> list[Records]:
    """Of each trial of the block, in its order."""
    rows = {id(trial): one for s in series for trial, one in zip(s.trials, s.records, strict=True)}
    return [rows.get(id(trial), make_rows(trial.rate)) for trial in block.trials]


def make_kept(
    results: Path, blocks: dict[str, Sequence[Series]], *, kind: str = "measure", name: str = "test",
    asked: dict[str, Any] | None = None, refused: dict[str, dict[str, str]] | None = None,
) -> Kept:  # fmt: skip
    """A result that is really written: block name → the series that took turns in it."""
    kept = start_result(kind, name, asked or {}, results, HOST)
    for block_name, series in blocks.items():
        block = make_block(block_name, series, refused=(refused or {}).get(block_name, {}))
        kept = keep_block(kept, block, list_rows(block, series))
    return kept


def change_facts(series: Series, **changes: Any) -> Series:
    """The same of another system."""
    return dataclasses.replace(series, facts=dataclasses.replace(series.facts, **changes))
