"""A ladder's folder: what it was started with, and each block once it is finished; never overwritten."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.errors import LoadTestError
from loadtest.kept import RESULTS, make_folder
from loadtest.ladder.blocks import Block
from loadtest.ladder.rungs import Rung
from loadtest.ladder.settings import Settings

SCHEMA = 1
HEADER_FILE = "ladder.json"
TARGETS_FILE = "targets.json"
LATEST = "latest"


@dataclass(frozen=True, kw_only=True)
class Header:
    """What was decided before anything was measured."""

    model: str
    time: str
    inputs: Mapping[str, Any]
    """Everything that the figures depend on; a run is only resumed where all of it is the same."""
    facts: Mapping[str, Any]
    """For the report: host, weights, notes, the top's plan."""
    rungs: tuple[Rung, ...]
    left_out: tuple[Rung, ...]
    blocks: tuple[Block, ...]

    @property
    def all_rungs(self) -> tuple[Rung, ...]:
        return (*self.rungs, *self.left_out)


def start_folder(header: Header, results: Path = RESULTS) -> Path:
    """A new folder with the header."""
    folder = make_folder(f"ladder-{header.model}", results)
    _write(folder / HEADER_FILE, {"schema": SCHEMA, **dataclasses.asdict(header)})
    return folder


def keep_block(folder: Path, number: int, block: Mapping[str, Any]) -> None:
    """Written whole under a new name, so that a block that is there is finished; an earlier try stays."""
    file = folder / name_block(number, count_tries(folder, number) + 1)
    scratch = file.with_suffix(".part")
    scratch.write_text(json.dumps(block, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    scratch.rename(file)


def name_block(number: int, attempt: int = 1) -> str:
    """A block that was measured again, because the machine was disturbed, has the number of the try."""
    return f"block-{number:02d}.json" if attempt == 1 else f"block-{number:02d}-try-{attempt}.json"


def count_tries(folder: Path, number: int) -> int:
    """Finished ones."""
    return len(list(folder.glob(f"block-{number:02d}*.json")))


def keep_targets(folder: Path, comparison: Mapping[str, Any]) -> None:
    """Nothing that was measured here: renewed when more of the ladder is finished."""
    (folder / TARGETS_FILE).write_text(json.dumps(comparison, indent=1, ensure_ascii=False), encoding="utf-8")


def _write(file: Path, value: Any) -> None:
    with file.open("x", encoding="utf-8") as opened:
        json.dump(value, opened, indent=1, ensure_ascii=False)


def read_header(folder: Path) -> Header:
    """LoadTestError when the folder holds no ladder."""
    file = folder / HEADER_FILE
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        known = ", ".join(one.name for one in list_ladders(folder.parent)[-3:]) or "none"
        raise LoadTestError(f"no ladder in {folder}: {problem}; the latest there: {known}") from problem
    if raw.pop("schema", None) != SCHEMA:
        raise LoadTestError(f"{file}: schema must be {SCHEMA}; measure again")
    lists = {name: tuple(map(_parse_rung, raw[name])) for name in ("rungs", "left_out")}
    return Header(**{**raw, **lists, "blocks": tuple(map(_parse_block, raw["blocks"]))})


def _parse_rung(raw: dict[str, Any]) -> Rung:
    return Rung(**{**raw, "own": tuple(raw["own"]), "settings": Settings(**raw["settings"])})


def _parse_block(raw: dict[str, Any]) -> Block:
    return Block(members=tuple(raw["members"]), new=tuple(raw["new"]))


def read_blocks(folder: Path, header: Header) -> dict[int, dict[str, Any]]:
    """The last try of each that is finished, by number from 1."""
    tries = {number: count_tries(folder, number) for number in range(1, len(header.blocks) + 1)}
    files = {number: folder / name_block(number, count) for number, count in tries.items() if count}
    return {number: json.loads(file.read_text(encoding="utf-8")) for number, file in files.items()}


def read_targets(folder: Path) -> dict[str, Any]:
    """Empty when no targets were measured."""
    file = folder / TARGETS_FILE
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}


def list_ladders(results: Path = RESULTS, model: str = "") -> list[Path]:
    """Folders that hold a ladder, finished or not, the oldest first."""
    return sorted(file.parent for file in results.glob(f"*-ladder-{model}*/{HEADER_FILE}"))


def find_folder(asked: str, model: str, results: Path = RESULTS) -> Path:
    """`latest`, a folder's name among the results, or its path; LoadTestError where no ladder is."""
    if asked == LATEST:
        known = list_ladders(results, model)
        if not known:
            raise LoadTestError(
                f"no ladder{f' of {model}' if model else ''} in {results}; run `make ladder` first"
            )
        return known[-1]
    folder = results / asked if (results / asked).is_dir() else Path(asked)
    if not (folder / HEADER_FILE).is_file():
        ladders = [one.name for one in list_ladders(results, model)]
        raise LoadTestError(f"{asked} holds no ladder; there are: {', '.join(ladders) or 'none'}")
    return folder


def check_same(header: Header, inputs: Mapping[str, Any], folder: Path) -> None:
    """LoadTestError names all that differs from what the ladder was started with."""
    now = json.loads(json.dumps(inputs))
    differences = list(_find_differences(header.inputs, now))
    if differences:
        listed = "\n  ".join(differences)
        raise LoadTestError(
            f"{folder.name} can only be resumed where everything is as it was:\n  {listed}\n"
            "start a new one: make ladder without RESUME"
        )


def _find_differences(then: Any, now: Any, where: str = "") -> Iterator[str]:
    if isinstance(then, dict) and isinstance(now, dict):
        for name in dict.fromkeys([*then, *now]):
            yield from _find_differences(then.get(name), now.get(name), f"{where}.{name}" if where else name)
    elif then != now:
        yield f"{where}: was {_show(then)}, is {_show(now)}"


def _show(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 100 else f"{text[:100]}…"
