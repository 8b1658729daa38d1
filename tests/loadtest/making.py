"""Windows, series and kept results with known figures, for whatever judges and reports."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from loadtest.answers import AnswerCheck
from loadtest.bench import Bench
from loadtest.load import Load
from loadtest.machine import CpuUse
from loadtest.results import Block, Facts, Kept, Series, Window, plain, start_result, write_json
from loadtest.rows import make_rows, write_rows

RIGHT = AnswerCheck(
    checked=100, wrong=0, source="test", labels_compared=100, labels_same=100, largest_difference=0.001,
    distinguishable_pairs=1.0,
)  # fmt: skip
QUIET = CpuUse(
    seconds=10.0, cpus=64, by_role={"worker": 500.0, "load generator": 5.0}, others=1.0, stolen=0.0
)
GOOD = {"good": True, "findings": []}
ANSWER = '{"label": "good", "probabilities": {"good": 0.9, "bad": 0.1}}'
BEGAN = "2026-01-02T03:04:05+00:00"


def make_load(rate: float | None = None, **changes: Any) -> Load:
    """Ten seconds of 16 users, or of a rate in requests/s."""
    plain_load = {"name": "bert-open" if rate else "bert-closed", "models": ("bert",), "payloads": "texts"}
    return Load(**{**plain_load, "rate": rate, "users": None if rate else 16, "duration_s": 10.0, **changes})


def make_window(rate: float = 10.0, repeat: int = 0, **changes: Any) -> Window:
    """Undisturbed, every answer right; `rate` in requests/s."""
    known: dict[str, Any] = {
        "began": BEGAN, "begin_s": 0.0, "end_s": 10.0, "requests": round(10 * rate), "errors": 0,
        "rates": (rate,) * 5, "p50_ms": 50.0, "generator_cores": (0.1,), "cpu": QUIET, "answers": RIGHT,
    }  # fmt: skip
    return Window(**{**known, "repeat": repeat, **changes})


def list_rows(rate: float = 10.0, *, seconds: float = 10.0, latency: float = 0.05) -> pd.DataFrame:
    """Evenly spaced requests from the begin of the window, all answered."""
    sent = [number / rate for number in range(round(rate * seconds))]
    return make_rows([(0, math.nan, at, at + latency, 200, 0, "") for at in sent])


def make_facts(server: str = "kit", **changes: Any) -> Facts:
    """The kit's, verified before and after."""
    known: dict[str, Any] = {
        "how": "test", "models": ("bert",), "is_kit": True, "precisions": {"bert": "fp32"},
        "accuracy": {"bert": None}, "verify_before": GOOD, "verify_after": GOOD,
        "pids_before": (1, 2), "pids_after": (1, 2),
    }  # fmt: skip
    return Facts(name=server, **{**known, **changes})


def make_series(
    server: str = "kit",
    rates: Sequence[float] = (10.0, 10.0, 10.0),
    *,
    load: Load | None = None,
    latency: float = 0.05,
    facts: dict[str, Any] | None = None,
    **changes: Any,
) -> Series:
    """A window for each rate; `changes` are the windows'."""
    return Series(
        facts=make_facts(server, **(facts or {})),
        load=load or make_load(),
        windows=tuple(make_window(rate, number, **changes) for number, rate in enumerate(rates)),
        rows=tuple(list_rows(rate, latency=latency) for rate in rates),
    )


def make_block(name: str, series: Sequence[Series], **changes: Any) -> Block:
    return Block(**{"name": name, "began": BEGAN, "seconds": 60.0, "series": tuple(series), **changes})


def keep(
    results: Path,
    blocks: dict[str, Sequence[Series]],
    *,
    kind: str = "loadtest",
    name: str = "test",
    asked: dict[str, Any] | None = None,
    rejected: dict[str, dict[str, str]] | None = None,
) -> Kept:
    """A result that is really written: block name → its series."""
    kept = start_result(kind, name, asked or {}, results)
    for block_name, series in blocks.items():
        block = make_block(block_name, series, rejected=(rejected or {}).get(block_name, {}))
        stem = kept.next_stem(block_name)
        write_rows(stem.with_name(f"{stem.name}.requests.csv.gz"),
                   [(rows, [ANSWER]) for one in series for rows in one.rows])  # fmt: skip
        write_json(stem.with_name(f"{stem.name}.json"), plain(block))
    return kept


def reading(results: Path, blocks: dict[str, Sequence[Series]], **more: Any) -> Bench:
    """A bench on such a result, which cannot measure."""
    return Bench(keep(results, blocks, **more))


def change_facts(series: Series, **changes: Any) -> Series:
    """The same of another server."""
    return replace(series, facts=replace(series.facts, **changes))
