"""An answer or 504 by the deadline, whatever happens behind the door; and the earliest deadline first."""

from __future__ import annotations

import random

import pytest

from tests.config.doors import change_settings
from tests.door.doors import MODEL, Answer, Door, head_of, open_door, send, sending, wait_for

SIZES = pytest.mark.parametrize("size", [1000, 300_000, 8_000_000])
LATE_S = 2.0
"""On a busy machine; without X-Deadline-Ms it would be 30 s."""


def one_slot(plan):
    """One request at a time in each instance, so that others wait."""
    slots = {f"{MODEL}__{name}__{what}": 1 for name in ("a1", "a2") for what in ("maxconn", "large_maxconn")}
    return change_settings(plan, **slots)


def assert_in_time(answer: Answer, deadline_s: float) -> None:
    assert answer.status == 504
    assert b"no answer by the deadline" in answer.body
    assert deadline_s - 0.02 <= answer.seconds <= deadline_s + LATE_S


def hang(door: Door) -> None:
    for instance in door.instances.values():
        instance.mode = "hang"


@SIZES
def test_a_server_that_hangs(door: Door, size: int):
    hang(door)
    assert_in_time(door.ask(b"x" * size, deadline_ms=400), 0.4)


@SIZES
def test_a_server_that_reads_no_bodies(door: Door, size: int):
    """As a stopped JVM: the kernel takes the connection, and what fits into its buffers."""
    for instance in door.instances.values():
        instance.reads_bodies.clear()
    assert_in_time(door.ask(b"x" * size, deadline_ms=400), 0.4)


@SIZES
def test_in_the_queue(size: int):
    with open_door(one_slot) as door:
        door.serve()
        hang(door)
        body = b"x" * size
        held = [door.connect() for _ in range(2)]
        for connection in held:
            send(connection, head_of(len(body)), body)
        wait_for(lambda: door.runtime.read_stats()[MODEL].in_hand == 2)
        assert_in_time(door.ask(body, deadline_ms=400), 0.4)
        assert door.runtime.read_stats()[MODEL].in_hand == 2
        for connection in held:
            connection.close()
        wait_for(lambda: door.runtime.read_stats()[MODEL].queued == 0)


def test_a_body_that_comes_slowly(door: Door):
    answer = door.ask(b"x" * 100_000, deadline_ms=500, bytes_per_s=80_000)
    assert answer.status == 504
    wait_for(lambda: "POST /predictions/resnet50" in door.log.read_text())
    assert not door.instances["a1"].requests  # it took nobody's slot


def test_a_client_that_leaves_leaves_the_queue():
    with open_door(one_slot) as door:
        door.serve()
        hang(door)
        waiting = [door.connect() for _ in range(4)]
        for connection in waiting:
            send(connection, head_of(1), b"x")
        wait_for(lambda: door.runtime.read_stats()[MODEL].queued == 2)
        assert door.runtime.count_unanswered() == 4
        for connection in waiting:
            connection.close()
        wait_for(lambda: door.runtime.count_unanswered() == 0)
        assert door.runtime.read_stats()[MODEL].queued == 0


def test_the_earliest_deadline_is_first():
    """One instance with one slot, held until all others wait: with two, neighbours may swap on their way."""
    deadlines = random.Random(13).choices((15, 30, 60, 120), k=40)

    def ask(number: int) -> int:
        return door.ask(b"x", f"x-number: {number}", deadline_ms=deadlines[number] * 1000).status

    with open_door(one_slot) as door:
        door.serve("a1")
        instance = door.instances["a1"]
        instance.reads_bodies.clear()
        with sending(1, lambda _: door.ask(deadline_ms=60_000)):
            wait_for(lambda: door.runtime.read_stats()[MODEL].in_hand == 1)
            with sending(40, ask) as statuses:
                wait_for(lambda: door.runtime.read_stats()[MODEL].queued == 40)
                instance.reads_bodies.set()
        assert statuses == [200] * 40
        served = [
            deadlines[int(one.header("x-number") or 0)] for one in door.list_seen() if one.header("x-number")
        ]
        assert served == sorted(deadlines) != deadlines


def test_the_longest_deadline_is_not_cut_by_another_limit():
    """timeout client is for a body that stands still, not for a client that waits for its answer."""
    with open_door(lambda plan: change_settings(plan, body_s=1, idle_s=1, headers_s=1)) as door:
        door.serve()
        for instance in door.instances.values():
            instance.delay_s = 1.6
        assert door.ask(deadline_ms=60_000).status == 200
