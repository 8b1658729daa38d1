"""What is bounded: who waits, for how long, in how much memory; and what is rejected at once."""

from __future__ import annotations

import contextlib
import select
import threading
import time

from tests.proxy.proxies import MODEL, PHOTO, Proxy, head_of, planned, read_answer, sending, wait_for

one_slot = planned("a1", model={"maxconn": 1})


@one_slot
def test_what_would_be_late_is_rejected_at_once(proxy: Proxy):
    proxy.set_all(answers=False)
    with proxy.asking(2) as statuses:  # without figures none is: one waits, and one more is let in for 50 ms
        wait_for(lambda: proxy.stat.queued == 1)
        assert proxy.ask(deadline_ms=50).status == 504
        wait_for(lambda: proxy.stat.queued == 1)  # it has left the second hop, too
        proxy.set_all(answers=True)
    assert statuses == [200] * 2
    # Where none waits none is: figures that are too high would never be learnt anew.
    proxy.runtime.set_prediction(MODEL, 1_000_000, 1_000_000)
    assert proxy.ask(deadline_ms=30_000).status == 200
    proxy.set_all(answers=False)
    proxy.runtime.set_prediction(MODEL, 1_000_000, 3000)
    with proxy.asking(11, deadline_ms=120_000):  # 10 wait, 1 s each, and 3 s of its own
        wait_for(lambda: proxy.stat.queued == 10)
        rejected = proxy.ask(deadline_ms=12_500)
        assert (rejected.status, rejected.headers["retry-after"]) == (503, "1")
        assert b"expected in 13000 ms, and the deadline is in 12500 ms" in rejected.body
        with proxy.asking(1, deadline_ms=13_500) as accepted:
            wait_for(lambda: proxy.stat.queued == 11)
            proxy.set_all(answers=True)
    assert accepted == [200]
    assert (503, "would_be_late") in proxy.list_reasons(16)


@one_slot
def test_what_waits_is_handed_over_when_another_deadline_ends_in_the_same_moment(proxy: Proxy):
    """HAProxy leaves such a queue asleep, where both are within 0.3 ms; what finds it does what the
    supervisor does."""
    for number in range(50):
        proxy.set_all(answers=False)
        with proxy.asking(2, deadline_ms=20_000) as statuses:
            wait_for(lambda: proxy.stat.queued == 1)
            with proxy.asking(1, deadline_ms=50):
                time.sleep(0.046 + 0.0002 * number)
                proxy.set_all(answers=True)
            wait_for(lambda got=statuses: proxy.runtime.wake(proxy.stat) or len(got) == 2, 10)
        assert statuses == [200] * 2


@planned(places=8, large_places=2)
def test_as_many_wait_as_are_planned(proxy: Proxy):
    for count, places, body in ((12, 8, PHOTO), (5, 2, b"x" * 400_000)):
        proxy.set_all(answers=False)
        with sending(count, lambda _, body=body: proxy.ask(body)) as answers:
            wait_for(lambda answers=answers, rejected=count - places: len(answers) >= rejected)
            assert [answer.status for answer in answers] == [503] * (count - places)
            assert all(b"wait; try again" in answer.body for answer in answers)
            proxy.set_all(answers=True)
        assert [answer.status for answer in answers[count - places :]] == [200] * places
    assert proxy.list_reasons(17).count((503, "queue_full")) == 7


@planned(model={"large_maxconn": 2})
def test_large_bodies_wait_in_the_kernel_and_go_on_few_at_a_time(proxy: Proxy):
    proxy.set_all(delay_s=0.01)
    with proxy.asking(80, b"x" * 4_000_000) as statuses:
        pass
    assert statuses == [200] * 80
    assert max(instance.peak for instance in proxy.instances.values()) <= 2
    planned_mib = 80 * 5 * proxy.plan.proxy.buffer_bytes >> 20
    assert proxy.read_rss_mib() < planned_mib + 50 < 80 * 4_000_000 >> 20


def test_a_large_body_leaves_small_ones_their_slots(proxy: Proxy):
    """And a slow one costs nobody anything."""
    with contextlib.ExitStack() as opened:
        slow = [opened.enter_context(proxy.connect()) for _ in range(30)]
        for connection in slow:
            connection.sendall(head_of(500_000) + b"x" * 250_000)
        wait_for(lambda: proxy.runtime.count_without_response() == 30)
        assert [proxy.ask(PHOTO).status for _ in range(20)] == [200] * 20
        for connection in slow:
            connection.sendall(b"x" * 250_000)
        assert [read_answer(connection).status for connection in slow] == [200] * 30


@planned(headers_s=1, body_s=1)
def test_what_is_idle_or_slow_ends_and_keeps_nobody_out(proxy: Proxy):
    before, began = proxy.read_rss_mib("VmRSS"), time.monotonic()
    with contextlib.ExitStack() as opened:
        idle = [opened.enter_context(proxy.connect()) for _ in range(1000)]
        assert [proxy.ask(PHOTO).status for _ in range(5)] == [200] * 5
        assert proxy.read_rss_mib() - before < 50
        while received := idle[0].recv(1 << 16):  # until the other side has closed
            assert received.startswith(b"HTTP/1.1 408")
    with proxy.connect() as connection:
        connection.sendall(f"POST /predictions/{MODEL} HTTP/1.1\r\nhost: x\r\n".encode())
        while not select.select([connection], [], [], 0.1)[0]:
            assert time.monotonic() - began < 60
            with contextlib.suppress(OSError):
                connection.sendall(b"x-a: b\r\n")
        # 0: what was sent to a connection that had just ended took its last words away.
        assert read_answer(connection).status in (408, 0)
    stands_still = proxy.exchange(head_of(1000), b"x")
    assert stands_still.status == 408
    assert b"too slowly" in stands_still.body
    assert time.monotonic() - began < 90


def test_an_end_lets_nothing_new_in_and_answers_what_is_in(proxy: Proxy):
    proxy.set_all(answers=False)
    with proxy.asking(10, PHOTO) as statuses:
        wait_for(lambda: proxy.runtime.count_without_response() == 10)
        proxy.runtime.reject_new()
        rejected = proxy.ask()
        assert rejected.status == 503
        assert b"the server is stopping" in rejected.body
        proxy.set_all(answers=True)
        wait_for(lambda: proxy.runtime.count_without_response() == 0)
    assert statuses == [200] * 10
    assert proxy.list_reasons(11)[-1] == (503, "stopping")


def test_other_instances_take_over_under_load(proxy: Proxy):
    """A reload: the others were not planned when HAProxy started, and are told their limits."""
    first, others = [*proxy.instances.values()], [proxy.open_instance(name) for name in ("b1", "b2")]
    stop = threading.Event()

    def ask_on(_: int) -> set[int]:
        statuses = set()
        while not stop.is_set():
            statuses.add(proxy.ask(PHOTO).status)
        return statuses

    proxy.instances |= {other.name: other for other in others}
    proxy.set_all(delay_s=0.05)
    with sending(20, ask_on) as statuses:
        wait_for(lambda: all(one.requests for one in first))
        for other in others:
            proxy.runtime.set_serving(MODEL, other.name, 1, 1, maxconn=16, large_maxconn=2)
        for one in first:
            proxy.runtime.set_serving(MODEL, one.name, 0, 1)
        wait_for(lambda: not proxy.runtime.count_in_hand([one.name for one in first]))
        for one in first:
            one.die()
        wait_for(lambda: all(len(other.requests) > 20 for other in others))
        stop.set()
    assert statuses == [{200}] * 20
