"""A part is started again, with longer and longer pauses."""

from __future__ import annotations

import pytest

from server.supervisor.record import CAUSES_KEPT, Phase, Record, read_record, write_record
from server.supervisor.restarts import LONGEST_PAUSE_S, WELL_S, Restarts
from tests.server.fakes import Clock


@pytest.fixture
def stage() -> tuple[Restarts, Clock, list[str]]:
    clock, lines = Clock(), list[str]()
    return Restarts("a1", lines.append, clock), clock, lines


def test_the_first_restart_is_at_once_and_the_next_ones_wait_longer_and_longer(stage) -> None:
    one, clock, lines = stage
    pauses = []
    for _ in range(9):
        one.note_start()
        one.note_end("it ended")
        ended = clock.now
        while not one.due:
            assert one.describe(None, starts=False).phase == Phase.BACKING_OFF
            clock.now += 0.5
        assert one.describe(None, starts=False).phase == Phase.STARTING
        pauses.append(clock.now - ended)
    assert pauses[:4] == [0, 1, 2, 4]
    assert max(pauses) == LONGEST_PAUSE_S
    assert len(lines) == 9


def test_what_ran_for_long_is_started_again_at_once(stage) -> None:
    one, clock, _ = stage
    for seconds in (0.0, 0.0, WELL_S):
        clock.now += LONGEST_PAUSE_S
        one.note_start()
        clock.now += seconds
        one.note_end("it ended")
    assert one.due


def test_the_last_causes_stay_and_all_restarts_are_counted(stage, tmp_path) -> None:
    one, _, _ = stage
    for number in range(7):
        one.note_end(f"cause {number}")
    part = one.describe(7, starts=True, phase=Phase.READY, health="ready", models={"bert": 1})
    assert (part.restarts, part.phase, part.pid) == (7, Phase.READY, 7)
    assert [cause.cause for cause in part.causes] == [
        f"cause {number}" for number in range(7 - CAUSES_KEPT, 7)
    ]
    record = Record(pid=1, phase=Phase.READY, since="now", instances={"a1": part})
    write_record(tmp_path / "record", record)
    assert read_record(tmp_path / "record") == record
    for text in ("", "{}", (tmp_path / "record").read_text().replace('"schema": 2', '"schema": 1')):
        (tmp_path / "record").write_text(text)
        assert read_record(tmp_path / "record") is None
