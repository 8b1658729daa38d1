"""Keeps what a row has found as JSON, never overwritten, with the raw samples beside it."""

from __future__ import annotations

import dataclasses
import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from loadtest.bench import Bench
from loadtest.cpu import count_cpus
from loadtest.rows import Row
from loadtest.rows.outcome import Outcome
from loadtest.sides import Measurement
from loadtest.turns import Turns

SCHEMA = 1


def make_results_folder(parent: Path) -> Path:
    """A new folder named by the time, in UTC."""
    folder = parent / datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    folder.mkdir(parents=True)
    return folder


def keep_result(folder: Path, row: Row, outcome: Outcome, bench: Bench) -> dict[str, Any]:
    """Write `<row>.json` and the samples; what was written."""
    result = {
        "schema": SCHEMA,
        "row": row.name,
        "title": row.title,
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cpus": count_cpus(),
        "timing": dataclasses.asdict(bench.timing),
        "judged": outcome.judged,
        "sides": [pack_turns(folder, row.name, turns) for turns in outcome.turns.values()],
        "goals": [{**dataclasses.asdict(goal), "met": goal.met} for goal in outcome.goals],
        "notes": outcome.notes,
        "servers": bench.facts,
    }
    with (folder / f"{row.name}.json").open("x", encoding="utf-8") as file:
        json.dump(result, file, indent=1, ensure_ascii=False)
    return result


def pack_turns(folder: Path, row: str, turns: Turns) -> dict[str, Any]:
    """What is known of one side as JSON; its samples go to files named by row and side."""
    prefix = f"{row}-{turns.side.name}".replace(" ", "-").replace(",", "")
    return {
        "name": turns.side.name,
        "how": turns.side.how,
        "requests_per_second": dataclasses.asdict(turns.rate),
        "warm_up": [
            _pack(folder, f"{prefix}-warm-up-{number}", one) for number, one in enumerate(turns.warm_up)
        ],
        "repeats": [
            _pack(folder, f"{prefix}-{number}", one) for number, one in enumerate(turns.repeats, start=1)
        ],
    }


def _pack(folder: Path, name: str, measured: Measurement) -> dict[str, Any]:
    packed = dataclasses.asdict(dataclasses.replace(measured, samples=None))
    del packed["samples"]
    if measured.samples is not None:
        packed["samples"] = f"{name}.npz"
        measured.samples.save(folder / packed["samples"])
    return packed
