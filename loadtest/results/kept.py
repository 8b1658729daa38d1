"""What an experiment keeps: a folder with `experiment.json` and, for each block, its trials and raw rows.

Files are written once, whole, and never again. A block that is there is finished; one that is measured again
gets the next number, and the last one of a name counts.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import cattrs

from config.folders import write_text_atomically
from loadtest.drivers.records import Records, read_records, write_records
from loadtest.errors import LoadTestError
from loadtest.results.host import read_host
from loadtest.results.trial import KeptBlock, Series, Trial
from loadtest.scenarios.scenario import Step

SCHEMA = 2
RESULTS = Path(__file__).resolve().parents[2] / "run" / "results"
EXPERIMENT_FILE = "experiment.json"
LATEST = "latest"
PROBE = "-probe"
"""End of the names of blocks that only found a level for another one."""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """An experiment's folder, read."""

    folder: Path
    kind: str
    """Which experiment: it names the judge and the section of the report."""
    name: str
    asked: Mapping[str, Any]
    """Plain values; all that decides what is measured."""
    host: Mapping[str, Any]
    began: str
    blocks: tuple[KeptBlock, ...] = ()

    def find(self, name: str) -> KeptBlock | None:
        """The last finished block of a name."""
        return next((one for one in reversed(self.blocks) if one.name == name), None)

    def list_blocks(self) -> list[KeptBlock]:
        """The last of each name, in the order of their first ones."""
        return list({one.name: one for one in self.blocks}.values())

    def read_records(self, block: KeptBlock) -> list[Records]:
        """Of each trial of a block, warm-ups too."""
        return _read_records(self.folder / f"{_stem(block)}.requests.csv.gz", len(block.trials))

    def list_series(self, block: KeptBlock) -> list[Series]:
        """In the order in which systems and levels first came."""
        found: dict[tuple[str, str, float], dict[int, tuple[Trial, Records]]] = {}
        for trial, records in zip(block.trials, self.read_records(block), strict=True):
            if not trial.warm_up:
                key = (trial.system, trial.scenario.name, trial.level)
                found.setdefault(key, {})[trial.repeat] = (trial, records)
        return [_make_series(block, list(repeats.values())) for repeats in found.values()]

    def list_loads(self) -> list[Series]:
        """Of all blocks but probes."""
        blocks = [block for block in self.list_blocks() if not block.name.endswith(PROBE)]
        return [series for block in blocks for series in self.list_series(block)]


def _make_series(block: KeptBlock, measured: Sequence[tuple[Trial, Records]]) -> Series:
    first = measured[0][0]
    return Series(
        facts=block.systems[first.system],
        scenario=first.scenario,
        level=first.level,
        trials=tuple(trial for trial, _ in measured),
        records=tuple(records for _, records in measured),
        generated_here=block.generated_here,
    )


def _stem(block: KeptBlock) -> str:
    return f"{block.number:03d}-{block.name}"


def start_result(
    kind: str,
    name: str,
    asked: Mapping[str, Any],
    results: Path = RESULTS,
    host: Mapping[str, Any] | None = None,
) -> Kept:
    """A new folder with what was asked."""
    folder = make_folder(name, results)
    began = datetime.now(timezone.utc).isoformat(timespec="seconds")
    kept = Kept(
        folder=folder, kind=kind, name=name, asked=plain(asked), host=host or read_host(), began=began
    )
    raw = {key: getattr(kept, key) for key in ("kind", "name", "asked", "host", "began")}
    write_json(folder / EXPERIMENT_FILE, {"schema": SCHEMA, **raw})
    return kept


def make_folder(name: str, results: Path) -> Path:
    """A new one, named by the time in UTC; a second one of the same second gets a number."""
    results.mkdir(parents=True, exist_ok=True)
    stem = f"{datetime.now(timezone.utc):%Y-%m-%dT%H-%M-%SZ}-{name}"
    for number in range(1, 100):
        folder = results / (stem if number == 1 else f"{stem}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise LoadTestError(f"no free name for a result in {results}")


def keep_block(kept: Kept, block: KeptBlock, records: Sequence[Records]) -> Kept:
    """Write a finished block with the records of its trials; the JSON last, so that it is whole."""
    block = dataclasses.replace(block, number=len(kept.blocks) + 1)
    write_records(kept.folder / f"{_stem(block)}.requests.csv.gz", records)
    write_json(kept.folder / f"{_stem(block)}.json", _CONVERTER.unstructure(block))
    return dataclasses.replace(kept, blocks=(*kept.blocks, block))


def write_json(file: Path, value: Any) -> None:
    """Whole; LoadTestError when it is there already."""
    if file.exists():
        raise LoadTestError(f"{file} is there already; results are never overwritten")
    write_text_atomically(file, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def read_kept(folder: Path) -> Kept:
    """An experiment with its finished blocks; LoadTestError when the folder holds none of this schema."""
    raw = _read_json(folder / EXPERIMENT_FILE, folder)
    if raw.pop("schema", None) != SCHEMA:
        raise LoadTestError(f"{folder / EXPERIMENT_FILE}: schema must be {SCHEMA}; measure again")
    files = sorted(file for file in folder.glob("[0-9][0-9][0-9]-*.json"))
    blocks = [_CONVERTER.structure(_read_json(file, folder), KeptBlock) for file in files]
    return Kept(folder=folder, blocks=tuple(blocks), **raw)


def _read_json(file: Path, folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError) as problem:
        known = ", ".join(one.name for one in list_results(folder.parent)[-3:]) or "none"
        raise LoadTestError(f"no result in {folder}: {problem}; the latest there: {known}") from problem


@functools.lru_cache(maxsize=16)
def _read_records(file: Path, count: int) -> list[Records]:
    return read_records(file, count)


def list_results(results: Path = RESULTS, kind: str = "", name: str = "") -> list[Path]:
    """Folders that hold a result, finished or not, the oldest first."""
    return sorted(
        file.parent
        for file in results.glob(f"*/{EXPERIMENT_FILE}")
        if not (kind or name) or _is_of(file, kind, name)
    )


def _is_of(file: Path, kind: str, name: str) -> bool:
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return raw.get("schema") == SCHEMA and kind in ("", raw["kind"]) and name in ("", raw["name"])


def find_result(asked: str, results: Path = RESULTS, *, kind: str = "", name: str = "") -> Path:
    """`latest`, a folder's name among the results, or its path; LoadTestError where none is."""
    known = list_results(results, kind, name)
    if asked == LATEST:
        if not known:
            raise LoadTestError(f"no result of {name or kind or 'anything'} in {results}; measure first")
        return known[-1]
    folder = results / asked if (results / asked).is_dir() else Path(asked)
    if not (folder / EXPERIMENT_FILE).is_file():
        names = ", ".join(one.name for one in known[-5:]) or "none"
        raise LoadTestError(f"{asked} holds no result; the latest there are: {names}")
    return folder


def plain(value: Any) -> Any:
    """As JSON gives it back, so that what was asked can be compared with what is asked now."""
    return json.loads(json.dumps(_CONVERTER.unstructure(value)))


_CONVERTER = cattrs.Converter()
# A step is a number, "auto" or a share in percent; JSON keeps all of them as they are.
_CONVERTER.register_structure_hook(Step, lambda value, _: value)
