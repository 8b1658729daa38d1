"""What is bounded: who waits, for how long, in how much memory; and what is refused at once."""

from __future__ import annotations

import select
import socket
import threading
import time

from config.rules.network import find_instance_socket
from tests.config.doors import change_settings
from tests.door.backends import Backend
from tests.door.doors import (
    MODEL,
    Door,
    head_of,
    hold,
    let_go,
    open_door,
    read_answer,
    send,
    sending,
    together,
    wait_for,
)

PHOTO = b"x" * 300_000


def test_what_would_be_late_is_refused_at_once():
    """10 wait, 1 s each, and 3 s of its own."""
    with open_door(lambda plan: change_settings(plan, **{f"{MODEL}__a1__maxconn": 1})) as door:
        door.serve("a1")
        hold(door)
        door.runtime.set_prediction(MODEL, 1_000_000, 3000)
        with sending(11, lambda _: door.ask(deadline_ms=120_000)):
            wait_for(lambda: door.runtime.read_stats()[MODEL].queued == 10)
            refused = door.ask(deadline_ms=12_500)
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            assert b"13000 ms until an answer, by what waits, and 12500 ms to the deadline" in refused.body
            with sending(1, lambda _: door.ask(deadline_ms=13_500)) as accepted:
                wait_for(lambda: door.runtime.read_stats()[MODEL].queued == 11)
                let_go(door)
        assert [answer.status for answer in accepted] == [200]


def test_where_none_waits_none_is_refused(door: Door):
    """Figures that are too high would never be learnt anew."""
    door.runtime.set_prediction(MODEL, 1_000_000, 1_000_000)
    assert door.ask(deadline_ms=30_000).status == 200


def test_without_figures_nothing_is_refused_by_them():
    """One is served, one waits, and one more is let in for 50 ms."""
    with open_door(lambda plan: change_settings(plan, **{f"{MODEL}__a1__maxconn": 1})) as door:
        door.serve("a1")
        hold(door)
        with sending(2, lambda _: door.ask()) as answers:
            wait_for(lambda: door.runtime.read_stats()[MODEL].queued == 1)
            assert door.ask(deadline_ms=50).status == 504
            wait_for(lambda: door.runtime.read_stats()[MODEL].queued == 1)  # it has left the second hop, too
            let_go(door)
        assert [answer.status for answer in answers] == [200] * 2


def test_what_waits_is_handed_over_when_another_deadline_ends_in_the_same_moment():
    """HAProxy leaves such a queue asleep, where both are within 0.3 ms; what finds it does what the
    supervisor does."""
    with open_door(lambda plan: change_settings(plan, **{f"{MODEL}__a1__maxconn": 1})) as door:
        runtime = door.runtime
        door.serve("a1")
        for number in range(50):
            hold(door)
            with sending(2, lambda _: door.ask(deadline_ms=20_000)) as answers:
                wait_for(lambda: door.runtime.read_stats()[MODEL].queued == 1)
                with sending(1, lambda _: door.ask(deadline_ms=50)):
                    time.sleep(0.046 + 0.0002 * number)
                    let_go(door)
                wait_for(lambda got=answers: runtime.wake(runtime.read_stats()[MODEL]) or len(got) == 2, 10)
            assert [answer.status for answer in answers] == [200] * 2


def test_as_many_wait_as_are_planned():
    with open_door(lambda plan: change_settings(plan, places=8, large_places=2)) as door:
        door.serve()
        for count, places, body in ((12, 8, PHOTO), (5, 2, b"x" * 400_000)):
            hold(door)
            with sending(count, lambda _, body=body: door.ask(body)) as answers:
                wait_for(lambda answers=answers, refused=count - places: len(answers) >= refused)
                assert [answer.status for answer in answers] == [503] * (count - places)
                assert all(b"wait; try again" in answer.body for answer in answers)
                let_go(door)
            assert [answer.status for answer in answers[count - places :]] == [200] * places


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
    slow = [door.connect() for _ in range(30)]
    for connection in slow:
        send(connection, head_of(500_000), b"x" * 250_000)
    wait_for(lambda: door.runtime.count_unanswered() == 30)
    assert [door.ask(PHOTO).status for _ in range(20)] == [200] * 20
    for connection in slow:
        send(connection, b"", b"x" * 250_000)
        assert read_answer(connection).status == 200
        connection.close()


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
    with open_door(lambda plan: change_settings(plan, headers_s=1)) as door, door.connect() as connection:
        began = time.monotonic()
        connection.sendall(f"POST /predictions/{MODEL} HTTP/1.1\r\nhost: x\r\n".encode())
        while not select.select([connection], [], [], 0.1)[0]:
            assert time.monotonic() - began < 30
            send(connection, b"x-a: b\r\n", b"")
        # 0: what was sent to a connection that had just ended took its last words away.
        assert read_answer(connection).status in (408, 0)


def test_a_body_that_stands_still_ends():
    with open_door(lambda plan: change_settings(plan, body_s=1)) as door:
        door.serve()
        with door.connect() as connection:
            began = time.monotonic()
            send(connection, head_of(1000), b"x")
            answer = read_answer(connection)
        assert answer.status == 408
        assert b"too slowly" in answer.body
        assert time.monotonic() - began < 30


def test_an_end_lets_nothing_new_in_and_answers_what_is_in(door: Door):
    hold(door)
    with sending(10, lambda _: door.ask(PHOTO)) as answers:
        wait_for(lambda: door.runtime.count_unanswered() == 10)
        door.runtime.refuse_new()
        refused = door.ask()
        assert refused.status == 503
        assert b"the server is ending" in refused.body
        let_go(door)
        wait_for(lambda: door.runtime.count_unanswered() == 0)
    assert [answer.status for answer in answers] == [200] * 10


def test_other_instances_take_over_under_load(door: Door):
    """A reload: the others were not planned when HAProxy started, and are told their limits."""
    others = {name: Backend(name, find_instance_socket(door.plan.inputs, name)) for name in ("b1", "b2")}
    stop, answers = threading.Event(), []

    def ask_on(_: int) -> None:
        while not stop.is_set():
            answers.append(door.ask(PHOTO).status)

    for instance in (*door.instances.values(), *others.values()):
        instance.delay_s = 0.05
    with sending(20, ask_on):
        wait_for(lambda: all(instance.requests for instance in door.instances.values()))
        for name in others:
            door.runtime.set_serving(MODEL, name, 1, 1, maxconn=16, large_maxconn=2)
        for name in door.instances:
            door.runtime.set_serving(MODEL, name, 0, 1)
        wait_for(lambda: not door.runtime.count_in_hand(list(door.instances)))
        for instance in door.instances.values():
            instance.die()
        wait_for(lambda: all(len(other.requests) > 20 for other in others.values()))
        stop.set()
    for other in others.values():
        other.die()
    assert set(answers) == {200}


def _read_end(connection: socket.socket) -> bytes:
    """What is left once the other side has closed, without its last words."""
    while received := connection.recv(1 << 16):
        assert received.startswith(b"HTTP/1.1 408")
    return received
