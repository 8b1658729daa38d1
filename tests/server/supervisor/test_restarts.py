"""A part is started again, with longer and longer pauses."""

from __future__ import annotations

import pytest

from server.state import Phase
from server.supervisor.restarts import CAUSES_KEPT, LONGEST_PAUSE_S, WELL_S, Restarts
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
            assert one.describe(None, None).phase == Phase.BACKING_OFF
            clock.now += 0.5
        assert one.describe(None, None).phase == Phase.STARTING
        pauses.append(clock.now - ended)
    assert pauses == [0, 1, 2, 4, 8, 16, 32, LONGEST_PAUSE_S, LONGEST_PAUSE_S]
    assert len(lines) == 9
    one.note_start()
    clock.now += WELL_S  # it ran for long
    one.note_end("it ended")
    assert one.due


def test_the_last_causes_stay_and_all_restarts_are_counted(stage) -> None:
    one, _, _ = stage
    for number in range(7):
        one.note_end(f"cause {number}")
    part = one.describe(7, Phase.READY, "ready", {"bert": 1})
    assert (part.restarts, part.phase, part.pid) == (7, Phase.READY, 7)
    assert [cause.cause for cause in part.causes] == [f"cause {n}" for n in range(7 - CAUSES_KEPT, 7)]
