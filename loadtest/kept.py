"""A run's folder: raw records, plan, host, verify, scenario and summary; written once, never overwritten."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from loadtest.answers import AnswerCheck, Expected
from loadtest.errors import LoadTestError
from loadtest.host import CpuUse
from loadtest.payload_sets import Payload
from loadtest.records import Records, write_records
from loadtest.scenario import Arrival, Latency, Scenario
from loadtest.stats import Interval
from loadtest.summary import SCHEMA, Finding, Repeat, StepSummary, Summary

RESULTS = Path(__file__).parent / "results"
SUMMARY_FILE = "summary.json"
RECORDS_FILE = "requests.csv.gz"


def make_folder(name: str, results: Path = RESULTS) -> Path:
    """A new folder named by time and scenario; a second one of the same second gets a number."""
    results.mkdir(parents=True, exist_ok=True)
    stamp = time.strftime("%Y-%m-%dT%H-%M-%S")
    for number in range(1, 100):
        folder = results / (f"{stamp}-{name}" if number == 1 else f"{stamp}-{name}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise LoadTestError(f"no free name for a result in {results}")


def write_result(
    folder: Path,
    summary: Summary,
    *,
    records: Mapping[tuple[int, int], Records],
    expected: Expected,
    payloads: list[Payload],
    host: Mapping[str, Any],
    plan: str | None,
) -> None:
    """Everything that is known of the run; the summary last, so that a half-written result has none."""
    if (folder / SUMMARY_FILE).exists():
        raise LoadTestError(f"{folder} holds a result already; results are never overwritten")
    write_records(folder / RECORDS_FILE, dict(records))
    _write_json(folder / "host.json", host)
    _write_json(folder / "scenario.json", asdict(summary.scenario))
    _write_json(folder / "verify.json", summary.verify)
    _write_json(folder / "expected.json", asdict(expected))
    _write_json(folder / "payloads.json", [_describe(one) for one in payloads])
    if plan is not None:
        (folder / "plan.json").write_text(plan, encoding="utf-8")
    _write_json(folder / SUMMARY_FILE, summary.to_dict())


def _describe(payload: Payload) -> dict[str, Any]:
    size = len(payload.body)
    return {
        "name": payload.name,
        "bytes": size,
        "content_type": payload.content_type,
        "sha256": payload.digest,
    }


def _write_json(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_summary(folder: Path) -> Summary:
    """A run's summary; LoadTestError when the folder holds none."""
    file = folder / SUMMARY_FILE
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        known = ", ".join(one.name for one in list_results(folder.parent)[-3:]) or "none"
        raise LoadTestError(f"no result in {folder}: {problem}; the latest there: {known}") from problem
    if raw.get("schema") != SCHEMA:
        raise LoadTestError(f"{file}: schema must be {SCHEMA}: got {raw.get('schema')}; measure again")
    return parse_summary(raw)


def parse_summary(raw: dict[str, Any]) -> Summary:
    """Back from JSON."""
    scenario = raw["scenario"]
    arrival, latency = Arrival(**scenario["arrival"]), Latency(**scenario["latency"])
    steps = tuple(scenario["steps"])
    answers = {**raw["answers"], "examples": tuple(raw["answers"]["examples"])}
    parsed = {
        "scenario": Scenario(**{**scenario, "arrival": arrival, "latency": latency, "steps": steps}),
        "steps": tuple(_parse_step(step) for step in raw["steps"]),
        "answers": AnswerCheck(**answers),
        "notes": tuple(raw["notes"]),
        "findings": tuple(Finding(**one) for one in raw["findings"]),
    }
    return Summary(**{**raw, **parsed})


def _parse_step(raw: dict[str, Any]) -> StepSummary:
    percentiles = {p: None if one is None else Interval(**one) for p, one in raw["percentiles_ms"].items()}
    parsed = {
        "rate": Interval(**raw["rate"]),
        "percentiles_ms": percentiles,
        "curve_ms": tuple(raw["curve_ms"]),
        "repeats": tuple(_parse_repeat(one) for one in raw["repeats"]),
    }
    return StepSummary(**{**raw, **parsed})


def _parse_repeat(raw: dict[str, Any]) -> Repeat:
    host = None if raw["host"] is None else CpuUse(**raw["host"])
    tuples = {key: tuple(raw[key]) for key in ("rates", "generator_cores")}
    return Repeat(**{**raw, **tuples, "host": host})


def list_results(results: Path = RESULTS) -> list[Path]:
    """Folders that hold a whole result, the oldest first."""
    return sorted(file.parent for file in results.glob(f"*/{SUMMARY_FILE}"))


def read_host_of(folder: Path) -> dict[str, Any]:
    """The host of a result; empty when it was not kept."""
    file = folder / "host.json"
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}
