"""What a run directory says of its server survives writing and reading, and damage reads as nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from server.state import (
    Cause,
    Failure,
    Part,
    Phase,
    Record,
    State,
    identify_archives,
    read_failure,
    read_record,
    read_state,
    write_state,
)
from tests.plans import make_instance, make_model

AT = "2026-01-01T00:00:00+00:00"
PART = Part(phase=Phase.READY, pid=8, restarts=1, causes=(Cause(at=AT, cause="killed"),), since=AT)
BACK = Part(phase=Phase.BACKING_OFF, health="no worker", models={"bert": 1})
WRITTEN = {
    read_state: State(
        phase="ready", plan_sha256="a", started_at="now", throttled_when_ready={"cpu.stat": {"nr": 1.0}}
    ),
    read_failure: Failure(cause="c", model="bert", step="freeze", fix="f", lines=("one", "two")),
    read_record: Record(pid=7, phase=Phase.READY, since=AT, proxy=PART, instances={"a1": BACK}),
}


@pytest.mark.parametrize("read", WRITTEN)
def test_what_is_written_comes_back_for_this_user_alone_and_damage_reads_as_nothing(run, read):
    file = run.path / "file"
    assert read(file) is None
    write_state(file, WRITTEN[read])
    assert read(file) == WRITTEN[read]
    assert file.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in run.path.iterdir()] == ["file"]
    for text in ("", "{", "[]", "3", '{"phase": "ready"}', '{"schema": 2}', "\ufffd"):
        file.write_text(text)
        assert read(file) is None


def test_a_record_of_another_kit_is_none(run):
    write_state(run.record, WRITTEN[read_record])
    run.record.write_text(run.record.read_text().replace('"schema": 2', '"schema": 1'))
    assert read_record(run.record) is None


def test_another_archive_that_others_made_is_told_by_its_size_and_time(plan, tmp_path):
    file = tmp_path / "old.mar"
    file.write_text("1")
    model = make_model("old", kit=False, archives={"1.0": str(file)})
    plan = replace(plan, instances={"a1": make_instance(1, {"old": model}, kit=False)})
    before = identify_archives(plan, {})
    assert before == identify_archives(plan, {})
    file.write_text("12")
    assert before != identify_archives(plan, {})
