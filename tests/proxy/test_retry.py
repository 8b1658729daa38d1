"""What an instance loses is asked of another one; and an instance is told from a dead one at once."""

from __future__ import annotations

import pytest

from tests.proxy.proxies import FOREIGN, MODEL, PHOTO, Proxy, planned, wait_for


@pytest.mark.parametrize("size", [10, 300_000, 368_640])
def test_a_request_that_fails_is_asked_elsewhere(proxy: Proxy, size: int):
    for mode in ("500", "502", "503", "reset"):
        proxy.instances["a1"].set(mode=mode, requests=[])
        assert [proxy.ask(b"x" * size).status for _ in range(4)] == [200] * 4
        assert proxy.instances["a1"].requests, f"nothing was tried there: {mode}"
    assert {one.body_bytes for one in proxy.instances["a2"].requests} == {size}


@pytest.mark.parametrize(
    ("model", "size", "mode", "status", "tries"),
    [
        (MODEL, 300_000, "reset", 502, 4), (FOREIGN, 1, "reset", 502, 4), (FOREIGN, 1, "500", 500, 4),
        (FOREIGN, 1, "hang", 504, 1), (MODEL, 8_000_000, "reset", 502, 1), (MODEL, 8_000_000, "500", 500, 1),
        (MODEL, 8_000_000, "503", 503, 1), (MODEL, 8_000_000, "507", 503, 1), (MODEL, 10, "507", 503, 1),
    ],
)  # fmt: skip
@planned(foreign=True)
def test_what_breaks_what_it_touches_is_tried_four_times_at_most(
    proxy: Proxy, model, size, mode, status, tries
):
    """A large one once: it has passed on. The client is told, and may ask again. TorchServe's 507 is of a
    worker that was killed without a launcher: HAProxy cannot retry on it."""
    proxy.set_all(mode=mode)
    deadline_ms = 2000 if mode == "hang" else 60_000
    answer = proxy.ask(b"x" * size, path=f"/predictions/{model}", deadline_ms=deadline_ms)
    assert (answer.status, answer.headers.get("retry-after")) == (status, "1" if status == 503 else None)
    assert (b"ended before it responded" in answer.body) == (mode in ("reset", "507"))
    assert len(proxy.list_seen()) == tries


@pytest.mark.parametrize("clients", [2, 12, 60])
def test_a_server_that_dies_under_load_costs_nothing(proxy: Proxy, clients: int):
    proxy.set_all(answers=False)
    with proxy.asking(clients, PHOTO) as statuses:
        wait_for(lambda: all(instance.active for instance in proxy.instances.values()))
        proxy.instances["a1"].die()
        proxy.set_all(answers=True)
    assert statuses == [200] * clients
    wait_for(lambda: proxy.stat.up == 1)
    proxy.instances["a1"].live_again()
    wait_for(lambda: proxy.stat.up == 2)


def test_a_server_whose_listener_closes_last_costs_nothing(proxy: Proxy):
    """The kernel closes a killed JVM's sockets one by one. While its listener is still open and the others
    are full, a retry is queued there, and that connection is closed with the listener."""
    dying, full = proxy.instances["a1"], proxy.instances["a2"]
    room = proxy.runtime.read_limits()[f"{MODEL}/a2"]
    full.set(answers=False)
    proxy.runtime.set_serving(MODEL, "a1", 0, 1)
    with proxy.asking(room, PHOTO) as statuses:
        wait_for(lambda: full.active == room)
        proxy.serve("a1")
        dying.set(mode="reset", resets_to_death=2)
        with proxy.asking(1, PHOTO) as last:
            wait_for(lambda: last or proxy.stat.up == 1)
            full.set(answers=True)
    assert statuses + last == [200] * (room + 1)
    assert len(dying.requests) == 2


def test_a_server_that_hangs_is_seen_and_its_end_frees_what_it_had(proxy: Proxy):
    """The supervisor ends it; what it had in hand is then asked of the other one."""
    proxy.instances["a1"].set(mode="hang")
    with proxy.asking(6, PHOTO) as statuses:
        wait_for(lambda: proxy.instances["a1"].requests and proxy.stat.up == 1)
        assert proxy.ask(PHOTO).status == 200
        proxy.instances["a1"].die()
    assert statuses == [200] * 6


def test_out_of_use_what_is_in_hand_is_answered_and_part_of_the_workers_get_part(proxy: Proxy):
    proxy.set_all(answers=False)
    with proxy.asking(8, PHOTO) as statuses:
        wait_for(lambda: [one.active for one in proxy.instances.values()] == [4, 4])
        proxy.runtime.set_serving(MODEL, "a1", 0, 1)
        proxy.instances["a2"].set(answers=True)
        assert proxy.ask().status == 200
        proxy.set_all(answers=True)
    assert statuses == [200] * 8
    assert len(proxy.instances["a1"].requests) == 4
    proxy.serve("a1")
    assert proxy.stat.up == 2
    proxy.runtime.set_serving(MODEL, "a1", 1, 4, maxconn=16, large_maxconn=2)
    limits = proxy.runtime.read_limits()
    assert [limits[place] for place in (f"{MODEL}/a1", f"{MODEL}/a2", f"{MODEL}.large/a1")] == [4, 16, 1]
