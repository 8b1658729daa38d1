"""What an instance loses is asked of another one; and an instance is told from a dead one at once."""

from __future__ import annotations

import pytest

from tests.door.doors import MODEL, Door, hold, let_go, sending, wait_for

PHOTO = b"x" * 300_000


@pytest.mark.parametrize("mode", ["reset", "500", "502", "503"])
@pytest.mark.parametrize("size", [10, 300_000, 368_640])
def test_a_request_that_fails_is_asked_elsewhere(door: Door, mode: str, size: int):
    door.instances["a1"].mode = mode
    assert [door.ask(b"x" * size).status for _ in range(4)] == [200] * 4
    assert door.instances["a1"].requests, "nothing was tried there"
    assert {one.body_bytes for one in door.instances["a2"].requests} == {size}


@pytest.mark.parametrize("size", [10, 8_000_000])
def test_torchserves_507_is_a_503_that_says_when_to_come_again(door: Door, size: int):
    """Of a worker that was killed without a launcher: HAProxy cannot retry on it."""
    for instance in door.instances.values():
        instance.mode = "507"
    answer = door.ask(b"x" * size)
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert b"the worker that had this request ended" in answer.body


@pytest.mark.parametrize(("mode", "status"), [("500", 500), ("503", 503), ("reset", 502)])
def test_a_large_one_is_not(door: Door, mode: str, status: int):
    """It has passed on; the client is told, and may ask again."""
    door.instances["a1"].mode = door.instances["a2"].mode = mode
    assert door.ask(b"x" * 8_000_000).status == status
    assert len(door.list_seen()) == 1


def test_a_request_that_breaks_what_it_touches_is_tried_four_times_at_most(door: Door):
    for instance in door.instances.values():
        instance.mode = "reset"
    answer = door.ask(PHOTO)
    assert answer.status == 502
    assert b"ended before it had answered" in answer.body
    assert len(door.list_seen()) == 4


@pytest.mark.parametrize("clients", [2, 12, 60])
def test_a_server_that_dies_under_load_costs_nothing(door: Door, clients: int):
    hold(door)
    with sending(clients, lambda _: door.ask(PHOTO)) as answers:
        wait_for(lambda: door.instances["a1"].active > 0 and door.instances["a2"].active > 0)
        door.instances["a1"].die()
        let_go(door)
    assert [answer.status for answer in answers] == [200] * clients
    wait_for(lambda: door.runtime.read_stats()[MODEL].up == 1)
    door.instances["a1"].live_again()
    wait_for(lambda: door.runtime.read_stats()[MODEL].up == 2)


def test_a_server_whose_listener_closes_last_costs_nothing(door: Door):
    """The kernel closes a killed JVM's sockets one by one. While its listener is still open and the others
    are full, a retry is queued there, and that connection is closed with the listener."""
    dying, full = door.instances["a1"], door.instances["a2"]
    room = door.runtime.read_limits()[f"{MODEL}/a2"]
    full.answers.clear()
    door.runtime.set_serving(MODEL, "a1", 0, 1)
    with sending(room, lambda _: door.ask(PHOTO)) as answers:
        wait_for(lambda: full.active == room)
        door.serve("a1")
        dying.mode, dying.resets_to_death = "reset", 2
        with sending(1, lambda _: door.ask(PHOTO)) as last:
            wait_for(lambda: last or door.runtime.read_stats()[MODEL].up == 1)
            full.answers.set()
    assert [answer.status for answer in answers + last] == [200] * (room + 1)
    assert len(dying.requests) == 2


def test_a_server_that_hangs_is_seen_and_its_end_frees_what_it_had(door: Door):
    """The supervisor ends it; what it had in hand is then asked of the other one."""
    door.instances["a1"].mode = "hang"
    with sending(6, lambda _: door.ask(PHOTO)) as answers:
        wait_for(lambda: door.instances["a1"].requests and door.runtime.read_stats()[MODEL].up == 1)
        assert door.ask(PHOTO).status == 200
        door.instances["a1"].die()
    assert [answer.status for answer in answers] == [200] * 6


def test_out_of_use_what_is_in_hand_is_answered(door: Door):
    hold(door)
    with sending(8, lambda _: door.ask(PHOTO)) as answers:
        wait_for(lambda: [one.active for one in door.instances.values()] == [4, 4])
        door.runtime.set_serving(MODEL, "a1", 0, 1)
        door.instances["a2"].answers.set()
        assert door.ask().status == 200
        let_go(door)
    assert [answer.status for answer in answers] == [200] * 8
    assert len(door.instances["a1"].requests) == 4
    door.serve("a1")
    assert door.runtime.read_stats()[MODEL].up == 2


def test_part_of_the_workers_gets_part_of_the_requests(door: Door):
    door.runtime.set_serving(MODEL, "a1", 1, 4, maxconn=16, large_maxconn=2)
    limits = door.runtime.read_limits()
    assert (limits[f"{MODEL}/a1"], limits[f"{MODEL}/a2"]) == (4, 16)
    assert limits[f"{MODEL}.large/a1"] == 1


def test_nobody_serves(door: Door):
    for name in door.instances:
        door.runtime.set_serving(MODEL, name, 0, 1)
    answer = door.ask()
    assert answer.status == 503
    assert answer.headers["retry-after"] == "1"
    assert b"no instance of this model can be asked now" in answer.body
