"""What is bounded: who waits, for how long, in how much memory; and what is refused at once."""

from __future__ import annotations

import socket
import threading
import time

from tests.config.doors import change_settings
from tests.door.doors import (
    MODEL,
    TOKEN,
    Answer,
    Door,
    open_door,
    read_answer,
    together,
    wait_for,
)

PHOTO = b"x" * 300_000


def test_what_would_be_late_is_refused_at_once():
    """10 wait, 100 ms each, and 300 ms of its own."""
    with open_door(lambda plan: change_settings(plan, **{f"{MODEL}__a1__maxconn": 1})) as door:
        door.serve("a1")
        door.instances["a1"].delay_s = 0.2
        door.runtime.set_prediction(MODEL, 100_000, 300)
        load = threading.Thread(target=together, args=(11, lambda _: door.ask(deadline_ms=10_000)))
        load.start()
        wait_for(lambda: door.runtime.read_stats()[MODEL].queued == 10)
        refused = door.ask(deadline_ms=1200)
        accepted = door.ask(deadline_ms=1400)
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert refused.seconds < 0.1
        assert b"1300 ms until an answer, by what waits, and 1200 ms to the deadline" in refused.body
        assert accepted.status == 200
        load.join()


def test_where_none_waits_none_is_refused(door: Door):
    """Figures that are too high would never be learnt anew."""
    door.runtime.set_prediction(MODEL, 1_000_000, 1_000_000)
    assert door.ask(deadline_ms=500).status == 200


def test_without_figures_nothing_is_refused_by_them(quiet: Door):
    assert quiet.ask(deadline_ms=50).status == 200


def test_as_many_wait_as_are_planned():
    with open_door(lambda plan: change_settings(plan, places=8, large_places=2)) as door:
        door.serve()
        for instance in door.instances.values():
            instance.mode = "hang"
        small = together(12, lambda _: door.ask(PHOTO, deadline_ms=700))
        large = together(5, lambda _: door.ask(b"x" * 400_000, deadline_ms=700))
        assert sorted(answer.status for answer in small) == [503] * 4 + [504] * 8
        assert sorted(answer.status for answer in large) == [503] * 3 + [504] * 2
        assert all(b"wait; try again" in answer.body for answer in (*small, *large) if answer.status == 503)


def test_large_bodies_wait_in_the_kernel_and_go_on_few_at_a_time():
    def change(plan):
        return change_settings(plan, **{f"{MODEL}__{name}__large_maxconn": 2 for name in plan.instances})

    with open_door(change) as door:
        door.serve()
        for instance in door.instances.values():
            instance.delay_s = 0.01
        answers = together(80, lambda _: door.ask(b"x" * 4_000_000))
        assert [answer.status for answer in answers] == [200] * 80
        assert max(instance.peak for instance in door.instances.values()) <= 2
        planned = 80 * 5 * door.plan.door["buffer_bytes"].value >> 20
        assert door.read_rss_mib() < planned + 50 < 80 * 4_000_000 >> 20


def test_a_large_body_leaves_small_ones_their_slots(door: Door):
    """And a slow one costs nobody anything."""
    slow = threading.Thread(
        target=together, args=(30, lambda _: door.ask(b"x" * 500_000, bytes_per_s=400_000))
    )
    slow.start()
    time.sleep(0.3)
    answers = [door.ask(PHOTO) for _ in range(20)]
    assert [answer.status for answer in answers] == [200] * 20
    assert max(answer.seconds for answer in answers) < 0.3
    slow.join()


def test_idle_connections_keep_nobody_out():
    with open_door(lambda plan: change_settings(plan, headers_s=1)) as door:
        door.serve()
        before = door.read_rss_mib("VmRSS")
        idle = [door.connect() for _ in range(1000)]
        assert [door.ask(PHOTO).status for _ in range(5)] == [200] * 5
        assert door.read_rss_mib() - before < 50
        assert _read_end(idle[0]) == b""
        for connection in idle:
            connection.close()


def test_slow_headers_end():
    with open_door(lambda plan: change_settings(plan, headers_s=1)) as door:
        with door.connect() as connection:
            began = time.monotonic()
            connection.sendall(f"POST /predictions/{MODEL} HTTP/1.1\r\nhost: x\r\n".encode())
            for _ in range(5):
                time.sleep(0.1)
                connection.sendall(b"x-a: b\r\n")
            assert read_answer(connection).status == 408
        assert time.monotonic() - began < 1.5


def test_a_body_that_stands_still_ends():
    with open_door(lambda plan: change_settings(plan, body_s=1)) as door:
        door.serve()
        with door.connect() as connection:
            began = time.monotonic()
            connection.sendall(
                f"POST /predictions/{MODEL} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n"
                "content-length: 1000\r\n\r\nx".encode()
            )
            answer = read_answer(connection)
        assert answer.status == 408
        assert b"too slowly" in answer.body
        assert time.monotonic() - began < 1.5


def test_an_end_lets_nothing_new_in_and_answers_what_is_in(door: Door):
    for instance in door.instances.values():
        instance.delay_s = 0.4
    answers: list[Answer] = []
    load = threading.Thread(target=lambda: answers.extend(together(10, lambda _: door.ask(PHOTO))))
    load.start()
    wait_for(lambda: door.runtime.count_unanswered() == 10)
    door.runtime.refuse_new()
    refused = door.ask()
    assert refused.status == 503
    assert b"the server is ending" in refused.body
    wait_for(lambda: door.runtime.count_unanswered() == 0)
    load.join()
    assert [answer.status for answer in answers] == [200] * 10


def test_other_instances_take_over_under_load(door: Door):
    """A reload: the others were not planned when HAProxy started, and are told their limits."""
    from tests.door.backends import Backend

    others = {
        name: Backend(name, door.plan.inputs.port + offset) for name, offset in (("b1", 50), ("b2", 60))
    }
    stop, answers = threading.Event(), []

    def ask_on(_: int) -> None:
        while not stop.is_set():
            answers.append(door.ask(PHOTO).status)

    load = threading.Thread(target=together, args=(20, ask_on))
    for instance in (*door.instances.values(), *others.values()):
        instance.delay_s = 0.05
    load.start()
    time.sleep(0.3)
    for name in others:
        door.runtime.set_serving(MODEL, name, 1, 1, maxconn=16, large_maxconn=2)
    for name in door.instances:
        door.runtime.set_serving(MODEL, name, 0, 1)
    wait_for(lambda: not door.runtime.count_in_hand(list(door.instances)))
    for instance in door.instances.values():
        instance.die()
    time.sleep(0.3)
    stop.set()
    load.join()
    for other in others.values():
        assert other.requests
        other.die()
    assert set(answers) == {200}


def _read_end(connection: socket.socket) -> bytes:
    """What is left once the other side has closed, without its last words."""
    while received := connection.recv(1 << 16):
        assert received.startswith(b"HTTP/1.1 408")
    return received
