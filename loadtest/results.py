"""What a measurement leaves: a folder with `experiment.json` and, for each block, its windows and raw rows.

Files are written once, whole, and never again. A block that is there is finished.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

import cattrs
import pandas as pd
from cattrs.gen import make_dict_unstructure_fn, override

from config.folders import write_text_atomically
from loadtest.answers import AnswerCheck
from loadtest.drivers import ROOT, AbReport
from loadtest.errors import LoadTestError
from loadtest.load import Level, Load
from loadtest.machine import CpuUse, read_commit, read_host
from loadtest.rows import read_rows
from loadtest.stats import Interval, find_ratio

SCHEMA = 3
RESULTS = ROOT / "run" / "results"
EXPERIMENT_FILE = "experiment.json"
LATEST = "latest"
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of one server of a block."""

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
    start_s: float | None = None
    own_mib: tuple[int, ...] = ()
    """Of each worker: memory that is no file's, which others share."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """One measured stretch of one server under one load; its raw rows are kept beside it."""

    repeat: int
    """From 0; windows of one repeat were measured seconds apart."""
    began: str
    """UTC, ISO 8601."""
    begin_s: float
    end_s: float
    """In the time of the rows."""
    requests: int
    """That began in it; of ab, that it completed."""
    errors: int
    rates: tuple[float, ...]
    """Requests a second in each block of time of the window, each request by the share of its time in it."""
    answers: AnswerCheck
    error_kinds: Mapping[str, int] = field(default_factory=dict)
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
    ab: AbReport | None = None
    attempt: int = 1
    """Above 1: measured again at once, because the machine had disturbed the one before."""
    watched: Mapping[str, Any] = field(default_factory=dict)
    """What an experiment itself looked at meanwhile."""

    @property
    def rate(self) -> float:
        """Requests a second over the window."""
        return sum(self.rates) / len(self.rates)

    @property
    def duration_s(self) -> float:
        return self.end_s - self.begin_s


@dataclass(frozen=True, kw_only=True)
class Series:
    """The windows of one server under one load in one block: what a figure is made of."""

    facts: Facts
    load: Load
    windows: tuple[Window, ...]
    """One of each repeat, in order; of several attempts the last."""
    generated_here: bool = True
    """False when other machines generated the load, and took nothing from the server."""
    rows: tuple[pd.DataFrame, ...] = ()
    """Of the same windows."""

    @property
    def server(self) -> str:
        return self.facts.name

    @property
    def rates(self) -> list[float]:
        """Requests a second of each repeat."""
        return [one.rate for one in self.windows]

    @property
    def requests(self) -> int:
        return sum(one.requests for one in self.windows)

    @property
    def errors(self) -> int:
        return sum(one.errors for one in self.windows)


@dataclass(frozen=True, kw_only=True)
class Block:
    """Servers that took turns."""

    name: str
    began: str
    seconds: float
    series: tuple[Series, ...]
    """In the order in which they were asked for; without what was rejected."""
    rejected: Mapping[str, str] = field(default_factory=dict)
    """Server → the kit's own reason why it cannot be served so."""
    payloads: Mapping[str, Any] = field(default_factory=dict)
    """Set → name, size, type and digest of each payload."""

    def find(self, server: str) -> Series | None:
        """The first series of a server."""
        return next((one for one in self.series if one.server == server), None)

    def ratio(self, over: str, under: str) -> Interval:
        """Of two servers' rates, by the repeats; LoadTestError where one was not measured."""
        pair = [self.find(name) for name in (over, under)]
        if missing := [name for name, one in zip((over, under), pair, strict=True) if one is None]:
            raise LoadTestError(f"{missing[0]} is not in block {self.name}")
        return find_ratio(*(one.rates for one in pair if one))


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A result's folder, with what it was asked."""

    folder: Path
    kind: str
    """Which experiment."""
    name: str
    asked: Mapping[str, Any]
    """Plain values: all that decides what is measured."""
    host: Mapping[str, Any]
    began: str
    commit: str = ""
    """Of the kit."""

    def find_block(self, name: str) -> Block | None:
        """A finished one, with its rows."""
        file = next(self.folder.glob(f"[0-9][0-9][0-9]-{name}.json"), None)
        if file is None:
            return None
        block = _CONVERTER.structure(_read_json(file), Block)
        counts = [len(one.windows) for one in block.series]
        rows = iter(read_rows(file.with_suffix(".requests.csv.gz"), sum(counts)))
        series = tuple(
            _replace_rows(one, tuple(next(rows) for _ in range(count)))
            for one, count in zip(block.series, counts, strict=True)
        )
        return Block(**{**vars(block), "series": series})

    def list_blocks(self) -> list[str]:
        """Names of the finished ones, in their order."""
        return [file.stem[4:] for file in sorted(self.folder.glob("[0-9][0-9][0-9]-*.json"))]

    def next_stem(self, name: str) -> Path:
        """Of the files of the next block, without a suffix."""
        return self.folder / f"{len(self.list_blocks()) + 1:03d}-{name}"


def _replace_rows(series: Series, rows: tuple[pd.DataFrame, ...]) -> Series:
    return Series(**{**vars(series), "rows": rows})


def start_result(kind: str, name: str, asked: Mapping[str, Any], results: Path = RESULTS) -> Kept:
    """A new folder, named by the time in UTC, with what was asked; a second one of a second gets a number."""
    now = datetime.now(timezone.utc)
    results.mkdir(parents=True, exist_ok=True)
    for number in range(1, 100):
        folder = results / f"{now:%Y-%m-%dT%H-%M-%SZ}-{name}{f'-{number}' * (number > 1)}"
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        began = now.isoformat(timespec="seconds")
        raw = {"kind": kind, "name": name, "asked": plain(asked), "host": read_host(), "began": began}
        raw["commit"] = read_commit()
        write_json(folder / EXPERIMENT_FILE, {"schema": SCHEMA, **raw})
        return Kept(folder=folder, **raw)
    raise LoadTestError(f"no free name for a result in {results}")


def read_result(folder: Path) -> Kept:
    """LoadTestError when the folder holds no result of this schema."""
    raw = _read_json(folder / EXPERIMENT_FILE)
    if raw.pop("schema", None) != SCHEMA:
        raise LoadTestError(f"{folder / EXPERIMENT_FILE}: schema must be {SCHEMA}; measure again")
    return Kept(folder=folder, **raw)


def _read_json(file: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError) as problem:
        raise LoadTestError(f"{file} must hold a result: {problem}") from problem


def write_json(file: Path, value: Any) -> None:
    """Whole; LoadTestError when it is there already."""
    if file.exists():
        raise LoadTestError(f"{file} is there already; results are never overwritten")
    write_text_atomically(file, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def list_results(results: Path = RESULTS, name: str = "") -> list[Path]:
    """Folders that hold a result of this schema, finished or not, the oldest first."""
    found = []
    for file in sorted(results.glob(f"*/{EXPERIMENT_FILE}")):
        try:
            raw = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if raw.get("schema") == SCHEMA and name in ("", raw["name"]):
            found.append(file.parent)
    return found


def find_result(asked: str, results: Path = RESULTS, *, name: str = "") -> Path:
    """`latest`, a folder's name among the results, or its path; LoadTestError where none is."""
    known = list_results(results, name)
    if asked == LATEST:
        if not known:
            raise LoadTestError(f"no result of {name or 'anything'} in {results}; measure first")
        return known[-1]
    folder = results / asked if (results / asked).is_dir() else Path(asked)
    if not (folder / EXPERIMENT_FILE).is_file():
        names = ", ".join(one.name for one in known[-5:]) or "none"
        raise LoadTestError(f"{asked} holds no result; the latest there are: {names}")
    return folder


def plain(value: Any) -> Any:
    """As JSON gives it back, so that what was asked can be compared with what is asked now."""
    return json.loads(json.dumps(_CONVERTER.unstructure(value)))


def structure(raw: Any, kind: type[T]) -> T:
    """A dataclass from plain values; what `plain` made of it."""
    return _CONVERTER.structure(raw, kind)


_CONVERTER = cattrs.Converter()
# A level is a number, "auto" or a share in percent; JSON keeps all of them as they are.
_CONVERTER.register_structure_hook(Level, lambda raw, _: raw)
_CONVERTER.register_unstructure_hook(
    Series, make_dict_unstructure_fn(Series, _CONVERTER, rows=override(omit=True))
)
_CONVERTER.register_structure_hook(
    Series,
    lambda raw, _: Series(
        facts=_CONVERTER.structure(raw["facts"], Facts),
        load=_CONVERTER.structure(raw["load"], Load),
        windows=tuple(_CONVERTER.structure(one, Window) for one in raw["windows"]),
        generated_here=raw["generated_here"],
    ),
)
