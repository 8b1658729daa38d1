"""What is bounded: who waits, for how long, in how much memory; and what is refused at once."""

from __future__ import annotations

import select
import socket
import threading
import time

from tests.proxy.backends import Backend
from tests.proxy.proxies import (
    MODEL,
    Proxy,
    head_of,
    open_proxy,
    read_answer,
    send,
    sending,
    together,
    wait_for,
)

PHOTO = b"x" * 300_000


def test_what_would_be_late_is_refused_at_once():
    """10 wait, 1 s each, and 3 s of its own."""
    with open_proxy("a1", model={"maxconn": 1}) as proxy:
        proxy.hold()
        proxy.runtime.set_prediction(MODEL, 1_000_000, 3000)
        with sending(11, lambda _: proxy.ask(deadline_ms=120_000)):
            wait_for(lambda: proxy.count_queued() == 10)
            refused = proxy.ask(deadline_ms=12_500)
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            assert b"expected in 13000 ms, and the deadline is in 12500 ms" in refused.body
            with sending(1, lambda _: proxy.ask(deadline_ms=13_500)) as accepted:
                wait_for(lambda: proxy.count_queued() == 11)
                proxy.let_go()
        assert [answer.status for answer in accepted] == [200]


def test_where_none_waits_none_is_refused(proxy: Proxy):
    """Figures that are too high would never be learnt anew."""
    proxy.runtime.set_prediction(MODEL, 1_000_000, 1_000_000)
    assert proxy.ask(deadline_ms=30_000).status == 200


def test_without_figures_nothing_is_refused_by_them():
    """One is served, one waits, and one more is let in for 50 ms."""
    with open_proxy("a1", model={"maxconn": 1}) as proxy:
        proxy.hold()
        with sending(2, lambda _: proxy.ask()) as answers:
            wait_for(lambda: proxy.count_queued() == 1)
            assert proxy.ask(deadline_ms=50).status == 504
            wait_for(lambda: proxy.count_queued() == 1)  # it has left the second hop, too
            proxy.let_go()
        assert [answer.status for answer in answers] == [200] * 2


def test_what_waits_is_handed_over_when_another_deadline_ends_in_the_same_moment():
    """HAProxy leaves such a queue asleep, where both are within 0.3 ms; what finds it does what the
    supervisor does."""
    with open_proxy("a1", model={"maxconn": 1}) as proxy:
        runtime = proxy.runtime
        for number in range(50):
            proxy.hold()
            with sending(2, lambda _: proxy.ask(deadline_ms=20_000)) as answers:
                wait_for(lambda: proxy.count_queued() == 1)
                with sending(1, lambda _: proxy.ask(deadline_ms=50)):
                    time.sleep(0.046 + 0.0002 * number)
                    proxy.let_go()
                wait_for(lambda got=answers: runtime.wake(runtime.read_stats()[MODEL]) or len(got) == 2, 10)
            assert [answer.status for answer in answers] == [200] * 2


def test_as_many_wait_as_are_planned():
    with open_proxy(places=8, large_places=2) as proxy:
        for count, places, body in ((12, 8, PHOTO), (5, 2, b"x" * 400_000)):
            proxy.hold()
            with sending(count, lambda _, body=body: proxy.ask(body)) as answers:
                wait_for(lambda answers=answers, refused=count - places: len(answers) >= refused)
                assert [answer.status for answer in answers] == [503] * (count - places)
                assert all(b"wait; try again" in answer.body for answer in answers)
                proxy.let_go()
            assert [answer.status for answer in answers[count - places :]] == [200] * places


def test_large_bodies_wait_in_the_kernel_and_go_on_few_at_a_time():
    with open_proxy(model={"large_maxconn": 2}) as proxy:
        proxy.set_all(delay_s=0.01)
        answers = together(80, lambda _: proxy.ask(b"x" * 4_000_000))
        assert [answer.status for answer in answers] == [200] * 80
        assert max(instance.peak for instance in proxy.instances.values()) <= 2
        planned = 80 * 5 * proxy.plan.proxy.buffer_bytes >> 20
        assert proxy.read_rss_mib() < planned + 50 < 80 * 4_000_000 >> 20


def test_a_large_body_leaves_small_ones_their_slots(proxy: Proxy):
    """And a slow one costs nobody anything."""
    slow = [proxy.connect() for _ in range(30)]
    for connection in slow:
        send(connection, head_of(500_000), b"x" * 250_000)
    wait_for(lambda: proxy.runtime.count_unanswered() == 30)
    assert [proxy.ask(PHOTO).status for _ in range(20)] == [200] * 20
    for connection in slow:
        send(connection, b"", b"x" * 250_000)
        assert read_answer(connection).status == 200
        connection.close()


def test_idle_connections_keep_nobody_out():
    with open_proxy(headers_s=1) as proxy:
        before = proxy.read_rss_mib("VmRSS")
        idle = [proxy.connect() for _ in range(1000)]
        assert [proxy.ask(PHOTO).status for _ in range(5)] == [200] * 5
        assert proxy.read_rss_mib() - before < 50
        assert _read_end(idle[0]) == b""
        for connection in idle:
            connection.close()


def test_slow_headers_end():
    with open_proxy(headers_s=1) as proxy, proxy.connect() as connection:
        began = time.monotonic()
        connection.sendall(f"POST /predictions/{MODEL} HTTP/1.1\r\nhost: x\r\n".encode())
        while not select.select([connection], [], [], 0.1)[0]:
            assert time.monotonic() - began < 30
            send(connection, b"x-a: b\r\n", b"")
        # 0: what was sent to a connection that had just ended took its last words away.
        assert read_answer(connection).status in (408, 0)


def test_a_body_that_stands_still_ends():
    with open_proxy(body_s=1) as proxy:
        with proxy.connect() as connection:
            began = time.monotonic()
            send(connection, head_of(1000), b"x")
            answer = read_answer(connection)
        assert answer.status == 408
        assert b"too slowly" in answer.body
        assert time.monotonic() - began < 30


def test_an_end_lets_nothing_new_in_and_answers_what_is_in(proxy: Proxy):
    proxy.hold()
    with sending(10, lambda _: proxy.ask(PHOTO)) as answers:
        wait_for(lambda: proxy.runtime.count_unanswered() == 10)
        proxy.runtime.reject_new()
        refused = proxy.ask()
        assert refused.status == 503
        assert b"the server is stopping" in refused.body
        proxy.let_go()
        wait_for(lambda: proxy.runtime.count_unanswered() == 0)
    assert [answer.status for answer in answers] == [200] * 10


def test_other_instances_take_over_under_load(proxy: Proxy):
    """A reload: the others were not planned when HAProxy started, and are told their limits."""
    others = {name: Backend(name, proxy.find_socket(name)) for name in ("b1", "b2")}
    stop, answers = threading.Event(), []

    def ask_on(_: int) -> None:
        while not stop.is_set():
            answers.append(proxy.ask(PHOTO).status)

    for instance in (*proxy.instances.values(), *others.values()):
        instance.delay_s = 0.05
    with sending(20, ask_on):
        wait_for(lambda: all(instance.requests for instance in proxy.instances.values()))
        for name in others:
            proxy.runtime.set_serving(MODEL, name, 1, 1, maxconn=16, large_maxconn=2)
        for name in proxy.instances:
            proxy.runtime.set_serving(MODEL, name, 0, 1)
        wait_for(lambda: not proxy.runtime.count_in_hand(list(proxy.instances)))
        for instance in proxy.instances.values():
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
