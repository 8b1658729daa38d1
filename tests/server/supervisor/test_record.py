"""supervisor.json is read with mistrust."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.supervisor.record import READY, Cause, Part, Record, read_record, write_record

RECORD = Record(
    pid=7,
    phase=READY,
    since="2026-01-01T00:00:00+00:00",
    door=Part(
        phase=READY, pid=8, restarts=1, causes=(Cause(at="2026-01-01T00:00:00+00:00", cause="killed"),)
    ),
    instances={"a1": Part(phase=READY, pid=9, health="ready")},
)


def test_it_comes_back_as_it_was_written_and_is_nobody_elses_to_read(tmp_path: Path) -> None:
    file = tmp_path / "supervisor.json"
    write_record(file, RECORD)
    assert read_record(file) == RECORD
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 2}', '{"schema": 1, "instances": 3}'])
def test_what_is_no_record_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "supervisor.json").write_text(text)
    assert read_record(tmp_path / "supervisor.json") is None
