"""Keeps what was seen of each fault, with its raw requests, and makes the rows from that alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import cattrs

from loadtest.drivers.records import Records, make_records, read_records, write_records
from loadtest.errors import LoadTestError
from loadtest.experiments.chaos.row import Evidence, Row, make_row
from loadtest.results.kept import Kept, write_json

EMPTY = make_records((), ())
_CONVERTER = cattrs.Converter()


def keep_evidence(folder: Path, number: int, evidence: Evidence, records: Records) -> None:
    """Raw requests first: where the JSON is, the fault is whole."""
    stem = f"fault-{number:02d}-{evidence.fault}-{evidence.front}"
    write_records(folder / f"{stem}.requests.csv.gz", [records])
    write_json(folder / f"{stem}.json", _CONVERTER.unstructure(evidence))


def read_evidence(folder: Path) -> list[tuple[Evidence, Records]]:
    """In the order in which it was done."""
    return [_read(file) for file in sorted(folder.glob("fault-[0-9][0-9]-*.json"))]


def _read(file: Path) -> tuple[Evidence, Records]:
    try:
        evidence = _CONVERTER.structure(json.loads(file.read_text(encoding="utf-8")), Evidence)
        (records,) = read_records(file.with_name(f"{file.stem}.requests.csv.gz"), 1)
    except (OSError, ValueError, KeyError, cattrs.BaseValidationError) as problem:
        raise LoadTestError(f"{file}: not what chaos keeps: {problem}; measure again") from problem
    return evidence, records


def make_rows(kept: Kept) -> list[Row]:
    """Of all faults that were done, or named as not done."""
    return [make_row(evidence, records) for evidence, records in read_evidence(kept.folder)]


def list_missing(kept: Kept, rows: Sequence[Row]) -> list[str]:
    """Faults that were asked for and have no row."""
    done = {f"{row.fault} ({row.front})" for row in rows}
    return [name for name in kept.asked["faults"] if name not in done]
