"""State and failure survive writing and reading, and damage reads as nothing."""

from __future__ import annotations

import pytest

from server.state import Failure, State, read_failure, read_state, write_state


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
