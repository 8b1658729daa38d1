"""What an instance loses is asked of another one; and an instance is told from a dead one at once."""

from __future__ import annotations

import pytest

from tests.proxy.proxies import MODEL, Proxy, sending, wait_for

PHOTO = b"x" * 300_000


@pytest.mark.parametrize("mode", ["reset", "500", "502", "503"])
@pytest.mark.parametrize("size", [10, 300_000, 368_640])
def test_a_request_that_fails_is_asked_elsewhere(proxy: Proxy, mode: str, size: int):
    proxy.instances["a1"].mode = mode
    assert [proxy.ask(b"x" * size).status for _ in range(4)] == [200] * 4
    assert proxy.instances["a1"].requests, "nothing was tried there"
    assert {one.body_bytes for one in proxy.instances["a2"].requests} == {size}


@pytest.mark.parametrize("size", [10, 8_000_000])
def test_torchserves_507_is_a_503_that_says_when_to_come_again(proxy: Proxy, size: int):
    """Of a worker that was killed without a launcher: HAProxy cannot retry on it."""
    proxy.set_all(mode="507")
    answer = proxy.ask(b"x" * size)
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert b"the worker that had this request ended" in answer.body


@pytest.mark.parametrize(("mode", "status"), [("500", 500), ("503", 503), ("reset", 502)])
def test_a_large_one_is_not(proxy: Proxy, mode: str, status: int):
    """It has passed on; the client is told, and may ask again."""
    proxy.instances["a1"].mode = proxy.instances["a2"].mode = mode
    assert proxy.ask(b"x" * 8_000_000).status == status
    assert len(proxy.list_seen()) == 1


def test_a_request_that_breaks_what_it_touches_is_tried_four_times_at_most(proxy: Proxy):
    proxy.set_all(mode="reset")
    answer = proxy.ask(PHOTO)
    assert answer.status == 502
    assert b"ended before it responded" in answer.body
    assert len(proxy.list_seen()) == 4


@pytest.mark.parametrize("clients", [2, 12, 60])
def test_a_server_that_dies_under_load_costs_nothing(proxy: Proxy, clients: int):
    proxy.hold()
    with sending(clients, lambda _: proxy.ask(PHOTO)) as answers:
        wait_for(lambda: proxy.instances["a1"].active > 0 and proxy.instances["a2"].active > 0)
        proxy.instances["a1"].die()
        proxy.let_go()
    assert [answer.status for answer in answers] == [200] * clients
    wait_for(lambda: proxy.runtime.read_stats()[MODEL].up == 1)
    proxy.instances["a1"].live_again()
    wait_for(lambda: proxy.runtime.read_stats()[MODEL].up == 2)


def test_a_server_whose_listener_closes_last_costs_nothing(proxy: Proxy):
    """The kernel closes a killed JVM's sockets one by one. While its listener is still open and the others
    are full, a retry is queued there, and that connection is closed with the listener."""
    dying, full = proxy.instances["a1"], proxy.instances["a2"]
    room = proxy.runtime.read_limits()[f"{MODEL}/a2"]
    full.answers.clear()
    proxy.runtime.set_serving(MODEL, "a1", 0, 1)
    with sending(room, lambda _: proxy.ask(PHOTO)) as answers:
        wait_for(lambda: full.active == room)
        proxy.serve("a1")
        dying.mode, dying.resets_to_death = "reset", 2
        with sending(1, lambda _: proxy.ask(PHOTO)) as last:
            wait_for(lambda: last or proxy.runtime.read_stats()[MODEL].up == 1)
            full.answers.set()
    assert [answer.status for answer in answers + last] == [200] * (room + 1)
    assert len(dying.requests) == 2


def test_a_server_that_hangs_is_seen_and_its_end_frees_what_it_had(proxy: Proxy):
    """The supervisor ends it; what it had in hand is then asked of the other one."""
    proxy.instances["a1"].mode = "hang"
    with sending(6, lambda _: proxy.ask(PHOTO)) as answers:
        wait_for(lambda: proxy.instances["a1"].requests and proxy.runtime.read_stats()[MODEL].up == 1)
        assert proxy.ask(PHOTO).status == 200
        proxy.instances["a1"].die()
    assert [answer.status for answer in answers] == [200] * 6


def test_out_of_use_what_is_in_hand_is_answered(proxy: Proxy):
    proxy.hold()
    with sending(8, lambda _: proxy.ask(PHOTO)) as answers:
        wait_for(lambda: [one.active for one in proxy.instances.values()] == [4, 4])
        proxy.runtime.set_serving(MODEL, "a1", 0, 1)
        proxy.instances["a2"].answers.set()
        assert proxy.ask().status == 200
        proxy.let_go()
    assert [answer.status for answer in answers] == [200] * 8
    assert len(proxy.instances["a1"].requests) == 4
    proxy.serve("a1")
    assert proxy.runtime.read_stats()[MODEL].up == 2


def test_part_of_the_workers_gets_part_of_the_requests(proxy: Proxy):
    proxy.runtime.set_serving(MODEL, "a1", 1, 4, maxconn=16, large_maxconn=2)
    limits = proxy.runtime.read_limits()
    assert (limits[f"{MODEL}/a1"], limits[f"{MODEL}/a2"]) == (4, 16)
    assert limits[f"{MODEL}.large/a1"] == 1


def test_nobody_serves(proxy: Proxy):
    for name in proxy.instances:
        proxy.runtime.set_serving(MODEL, name, 0, 1)
    answer = proxy.ask()
    assert answer.status == 503
    assert answer.headers["retry-after"] == "1"
    assert b"no instance of this model is available now" in answer.body
