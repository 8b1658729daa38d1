"""State and failure survive writing and reading, and damage reads as nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.state import Failure, State, read_failure, read_state, write_state
from server.supervisor.record import READY, Cause, Part, Record, read_record, write_record


def test_state_and_failure_come_back(run):
    state = State(
        phase="ready",
        plan_sha256="a",
        started_at="now",
        throttled_when_ready={"cpu.stat": {"nr_throttled": 1.0}},
    )
    failure = Failure(cause="c", model="bert", step="freeze", lines=("one", "two"))
    write_state(run.state, state)
    write_state(run.failure, failure)
    assert read_state(run.state) == state
    assert read_failure(run.failure) == failure
    assert [file.name for file in run.path.glob(".*")] == []


@pytest.mark.parametrize("text", [None, "", "{", "[]", "3", '{"phase": "ready"}', '{"other": 1}', "\ufffd"])
def test_damage_reads_as_nothing(run, text):
    if text is not None:
        run.state.write_text(text)
        run.failure.write_text(text)
    assert read_state(run.state) is None
    assert read_failure(run.failure) is None


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
