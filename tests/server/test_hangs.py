"""A worker that hangs is told from one that is busy, idle or new; what a process does is read from /proc."""

from __future__ import annotations

import os
import signal
import time

import pytest

from server.health import STILL_SECONDS, TURNS, Hangs
from server.processes import Activity, read_activity, read_age
from tests.server.fakes import wait_for

BATCH_SECONDS = 40.0
BUSY = {"waiting": 9, "answered": 0}


def at(cpu_seconds=0.0, *, stopped=False, start_ticks=1, switches=0):
    return Activity(stopped=stopped, cpu_seconds=cpu_seconds, start_ticks=start_ticks, switches=switches)


@pytest.fixture
def seen():
    return {7: at(), 8: at()}


@pytest.fixture
def hangs(seen):
    return Hangs(BATCH_SECONDS, seen.get)


def test_a_stopped_worker_hangs_at_once(hangs, seen):
    seen[8] = at(stopped=True)
    assert hangs.find([7, 8], 0, 0, 0.0) == "worker 8 is stopped"
    # It may go on at once: nobody is to end it by this look.
    assert hangs.hanging == ()


def test_one_that_computes_nothing_while_requests_wait_hangs_after_a_while(hangs, seen):
    for now in (0.0, 10.0, 20.0):
        seen[7] = at(now / 2)
        assert hangs.find([7, 8], **BUSY, now=now) == ""
    seen[7] = at(15.0)
    assert hangs.find([7, 8], **BUSY, now=STILL_SECONDS) == (
        "worker 8 has used no CPU time for 30 s while 9 requests wait"
    )
    assert hangs.hanging == (8,)


def test_an_empty_queue_in_between_is_no_reason_to_compute(hangs):
    for now in range(0, 300, 5):
        assert hangs.find([7, 8], 0 if now % 20 == 0 else 9, 0, float(now)) == ""


def test_one_that_never_takes_its_turn_hangs(hangs, seen):
    turns = TURNS * 2
    for answered in range(turns):
        seen[7] = at(switches=answered)
        assert hangs.find([7, 8], 0, answered, 15.0 * answered) == ""
    seen[7] = at(switches=turns)
    assert hangs.find([7, 8], 0, turns, 60.0) == ("worker 8 has taken none of the last 4 known requests")


def test_one_that_computes_a_long_batch_misses_its_turns_for_a_reason(hangs, seen):
    for answered in range(9):
        now = 5.0 * answered
        seen[7], seen[8] = at(switches=answered), at(cpu_seconds=now)
        assert hangs.find([7, 8], 0, answered, now) == ""
    seen[7], seen[8] = at(switches=9), at(cpu_seconds=45.0)
    assert hangs.find([7, 8], 0, 9, 45.0) == "worker 8 has taken none of the last 9 known requests"


def test_one_that_computes_for_longer_than_any_batch_while_requests_wait_hangs(hangs, seen):
    for now in (0.0, 5.0, 40.0, 45.0):  # requests wait from 5 s on
        seen[7], seen[8] = at(cpu_seconds=now, switches=int(now)), at(cpu_seconds=now)
        found = hangs.find([7, 8], 9 if now else 0, 0, now)
    assert found == "worker 8 has finished nothing for 45 s while 9 requests wait"


def test_a_worker_started_again_under_the_same_pid_begins_anew(hangs, seen):
    hangs.find([7, 8], **BUSY, now=0.0)
    seen[7], seen[8] = at(start_ticks=2), at(start_ticks=2)
    assert hangs.find([7, 8], waiting=9, answered=50, now=100.0) == ""


def test_a_worker_that_is_gone_is_torchserves_affair(hangs):
    assert hangs.find([9], **BUSY, now=0.0) == ""


def test_what_a_process_does_is_read(proc):
    folder = proc.add(7, start=500, state="T")
    stat = (folder / "stat").read_text().split()
    stat[-50 + 11], stat[-50 + 12] = "250", "50"
    (folder / "stat").write_text(" ".join(stat))
    (folder / "status").write_text("Name:\tx\nvoluntary_ctxt_switches:\t30\nnonvoluntary_ctxt_switches:\t4\n")
    (proc.path / "uptime").write_text("65.0 1.0\n")
    ticks = os.sysconf("SC_CLK_TCK")
    assert read_activity(7, proc.path) == Activity(
        stopped=True, cpu_seconds=300 / ticks, start_ticks=500, switches=30
    )
    assert read_age(7, proc.path) == 65.0 - 500 / ticks
    assert (read_activity(8, proc.path), read_age(8, proc.path)) == (None, None)


def test_a_real_process_is_seen_to_stop_to_wake_and_to_age(dummy, run):
    code = "import sys, time\nwhile True:\n    time.sleep(0.05)"
    process = dummy(run.path, code=code)
    first = read_activity(process.pid)
    assert wait_for(lambda: read_activity(process.pid).switches > first.switches)
    assert 0 <= read_age(process.pid) < 60
    process.send_signal(signal.SIGSTOP)
    assert wait_for(lambda: read_activity(process.pid).stopped)
    before = read_activity(process.pid)
    time.sleep(0.2)
    assert read_activity(process.pid) == before
