"""State and failure survive writing and reading, and damage reads as nothing."""

from __future__ import annotations

import pytest

from server.state import Failure, State, read_failure, read_state, write_state
from server.supervisor.record import Cause, Part, Phase, Record, read_record, write_record

AT = "2026-01-01T00:00:00+00:00"


def test_state_and_failure_come_back(run):
    state = State(
        phase="ready",
        plan_sha256="a",
        started_at="now",
        throttled_when_ready={"cpu.stat": {"nr_throttled": 1.0}},
    )
    failure = Failure(cause="c", model="bert", step="freeze", fix="f", lines=("one", "two"))
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


def test_the_supervisors_record_comes_back_and_is_nobody_elses_to_read(tmp_path):
    part = Part(phase=Phase.READY, pid=8, restarts=1, causes=(Cause(at=AT, cause="killed"),), since=AT)
    instances = {"a1": Part(phase=Phase.BACKING_OFF, health="no worker", models={"bert": 1})}
    record, file = (
        Record(pid=7, phase=Phase.READY, since=AT, proxy=part, instances=instances),
        tmp_path / "record",
    )
    write_record(file, record)
    assert read_record(file) == record
    assert file.stat().st_mode & 0o777 == 0o600
    for text in ("", "[]", "{}", '{"schema": 1}', '{"schema": 2, "instances": 3}'):
        file.write_text(text)
        assert read_record(file) is None
