"""A process that is kept up: started again, with longer and longer pauses."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field

from server.supervisor.kept import LONGEST_PAUSE_S, WELL_S, Kept
from server.supervisor.record import BACKING_OFF, CAUSES_KEPT
from tests.server.fakes import Clock


@dataclass
class Started:
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __call__(self) -> subprocess.Popen[bytes]:
        self.processes.append(subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]))
        return self.processes[-1]


def keep(clock: Clock) -> tuple[Kept, Started, list[str]]:
    started, said = Started(), list[str]()
    return Kept("a1", started, said.append, clock), started, said


def end(kept: Kept, started: Started) -> None:
    started.processes[-1].wait()
    assert kept.find_end() == 3
    kept.note_end("it ended")


def test_the_first_restart_is_at_once_and_the_next_ones_wait_longer_and_longer() -> None:
    clock = Clock()
    kept, started, said = keep(clock)
    pauses = []
    for _ in range(9):
        assert kept.start_if_due()
        end(kept, started)
        before = clock.now
        while not kept.start_if_due():
            assert kept.phase == BACKING_OFF
            clock.now += 0.5
        pauses.append(clock.now - before)
        kept.process = None
        started.processes[-1].wait()
    assert pauses[:4] == [0, 1, 2, 4]
    assert max(pauses) == LONGEST_PAUSE_S
    assert said[0] == "a1: it ended; again at once"
    assert said[1] == "a1: it ended; again in 1 s"


def test_who_ran_for_long_is_started_again_at_once() -> None:
    clock = Clock()
    kept, started, _ = keep(clock)
    for _ in range(3):
        clock.now += LONGEST_PAUSE_S
        assert kept.start_if_due()
        end(kept, started)
    clock.now += LONGEST_PAUSE_S
    assert kept.start_if_due()
    clock.now += WELL_S
    end(kept, started)
    assert kept.start_if_due()


def test_the_last_causes_are_kept_and_all_restarts_counted() -> None:
    clock = Clock()
    kept, started, _ = keep(clock)
    for number in range(7):
        clock.now += LONGEST_PAUSE_S
        kept.start_if_due()
        started.processes[-1].wait()
        kept.note_end(f"cause {number}")
    assert kept.restarts == 7
    assert [one.cause for one in kept.causes] == [f"cause {number}" for number in range(7 - CAUSES_KEPT, 7)]
