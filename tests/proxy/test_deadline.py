"""An answer or 504 by the deadline, whatever instances do; and the earliest deadline first."""

from __future__ import annotations

import random

import pytest

from tests.proxy.proxies import MODEL, Answer, Proxy, head_of, open_proxy, send, sending, wait_for

SIZES = pytest.mark.parametrize("size", [1000, 300_000, 8_000_000])
ONE_SLOT = {"model": {"maxconn": 1, "large_maxconn": 1}}
"""One request at a time in each instance, so that others wait."""
LATE_S = 2.0
"""On a busy machine; without X-Deadline-Ms it would be 60 s."""


def assert_in_time(answer: Answer, deadline_s: float) -> None:
    assert answer.status == 504
    assert b"no response by the deadline" in answer.body
    assert deadline_s - 0.02 <= answer.seconds <= deadline_s + LATE_S


@SIZES
def test_a_server_that_hangs(proxy: Proxy, size: int):
    proxy.set_all(mode="hang")
    assert_in_time(proxy.ask(b"x" * size, deadline_ms=400), 0.4)


@SIZES
def test_a_server_that_reads_no_bodies(proxy: Proxy, size: int):
    """As a stopped JVM: the kernel takes the connection, and what fits into its buffers."""
    for instance in proxy.instances.values():
        instance.reads_bodies.clear()
    assert_in_time(proxy.ask(b"x" * size, deadline_ms=400), 0.4)


@SIZES
def test_in_the_queue(size: int):
    with open_proxy(**ONE_SLOT) as proxy:
        proxy.set_all(mode="hang")
        body = b"x" * size
        held = [proxy.connect() for _ in range(2)]
        for connection in held:
            send(connection, head_of(len(body)), body)
        wait_for(lambda: proxy.runtime.read_stats()[MODEL].in_hand == 2)
        assert_in_time(proxy.ask(body, deadline_ms=400), 0.4)
        assert proxy.runtime.read_stats()[MODEL].in_hand == 2
        for connection in held:
            connection.close()
        wait_for(lambda: proxy.count_queued() == 0)


def test_a_body_that_comes_slowly(proxy: Proxy):
    answer = proxy.ask(b"x" * 100_000, deadline_ms=500, bytes_per_s=80_000)
    assert answer.status == 504
    wait_for(lambda: "POST /predictions/resnet50" in proxy.log.read_text())
    assert not proxy.instances["a1"].requests  # it took nobody's slot


def test_a_client_that_leaves_leaves_the_queue():
    with open_proxy(**ONE_SLOT) as proxy:
        proxy.set_all(mode="hang")
        waiting = [proxy.connect() for _ in range(4)]
        for connection in waiting:
            send(connection, head_of(1), b"x")
        wait_for(lambda: proxy.count_queued() == 2)
        assert proxy.runtime.count_unanswered() == 4
        for connection in waiting:
            connection.close()
        wait_for(lambda: proxy.runtime.count_unanswered() == 0)
        assert proxy.count_queued() == 0


def test_the_earliest_deadline_is_first():
    """One instance with one slot, held until all others wait: with two, neighbours may swap on their way."""
    deadlines = random.Random(13).choices((15, 30, 60, 120), k=40)

    def ask(number: int) -> int:
        return proxy.ask(b"x", f"x-number: {number}", deadline_ms=deadlines[number] * 1000).status

    with open_proxy("a1", **ONE_SLOT) as proxy:
        instance = proxy.instances["a1"]
        instance.reads_bodies.clear()
        with sending(1, lambda _: proxy.ask(deadline_ms=60_000)):
            wait_for(lambda: proxy.runtime.read_stats()[MODEL].in_hand == 1)
            with sending(40, ask) as statuses:
                wait_for(lambda: proxy.count_queued() == 40)
                instance.reads_bodies.set()
        assert statuses == [200] * 40
        served = [
            deadlines[int(one.header("x-number") or 0)] for one in proxy.list_seen() if one.header("x-number")
        ]
        assert served == sorted(deadlines) != deadlines


def test_the_longest_deadline_is_not_cut_by_another_limit():
    """timeout client is for a body that stands still, not for a client that waits for its answer."""
    with open_proxy(body_s=1, idle_s=1, headers_s=1) as proxy:
        proxy.set_all(delay_s=1.6)
        assert proxy.ask(deadline_ms=60_000).status == 200
