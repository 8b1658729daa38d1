"""An answer or 504 by the deadline, whatever instances do; and the earliest deadline first."""

from __future__ import annotations

import contextlib
import random
import socket
import time

import pytest

from tests.proxy.proxies import Proxy, head_of, planned, read_answer, sending, wait_for

SIZES = pytest.mark.parametrize("size", [1000, 300_000, 8_000_000])
ONE_SLOT = {"model": {"maxconn": 1, "large_maxconn": 1}}
"""One request at a time in each instance, so that others wait."""
LATE_S = 2.0
"""On a busy machine; without X-Deadline-Ms it would be 60 s."""


def assert_in_time(proxy: Proxy, size: int) -> None:
    answer = proxy.ask(b"x" * size, deadline_ms=400)
    assert answer.status == 504
    assert b"no response by the deadline" in answer.body
    assert 0.38 <= answer.seconds <= 0.4 + LATE_S


@SIZES
@pytest.mark.parametrize("does", [{"mode": "hang"}, {"reads_bodies": False}])
def test_a_server_that_hangs_or_reads_no_bodies(proxy: Proxy, size: int, does: dict[str, object]):
    """As a stopped JVM: the kernel takes the connection, and what fits into its buffers."""
    proxy.set_all(**does)
    assert_in_time(proxy, size)


@SIZES
@planned(**ONE_SLOT)
def test_in_the_queue_which_a_client_that_leaves_leaves(proxy: Proxy, size: int):
    def connect(sent: int) -> None:
        clients.append(proxy.connect())
        clients[-1].sendall(head_of(size) + b"x" * sent)

    clients: list[socket.socket] = []
    proxy.set_all(mode="hang")
    for _ in range(2):
        connect(size)
    wait_for(lambda: proxy.stat.in_hand == 2)
    assert_in_time(proxy, size)
    assert proxy.stat.in_hand == 2
    for _ in range(2):
        connect(min(size, 300_000))
    wait_for(lambda: proxy.stat.queued >= 2)
    assert proxy.runtime.count_without_response() == 4
    for client in clients:
        client.close()
    wait_for(lambda: proxy.runtime.count_without_response() == 0)
    wait_for(lambda: proxy.stat.queued == 0)
    assert proxy.list_reasons(5) == [(499, "client_gone")] * 4 + [(504, "deadline")]


@planned(body_s=1, idle_s=1, headers_s=1)
def test_no_other_limit_cuts_a_body_that_comes_slowly_or_the_longest_deadline(proxy: Proxy):
    """A slow body takes nobody's slot. timeout client is for one that stands still, not for who waits."""
    with proxy.connect() as connection:
        connection.sendall(head_of(100_000, "x-deadline-ms: 500"))
        with contextlib.suppress(OSError):
            for _ in range(25):
                connection.sendall(b"x" * 4000)
                time.sleep(0.05)
        assert read_answer(connection).status == 504
    wait_for(lambda: "POST /predictions/resnet50" in proxy.log.read_text())
    assert not proxy.list_seen()
    proxy.set_all(delay_s=1.6)
    assert proxy.ask(deadline_ms=60_000).status == 200


@planned("a1", **ONE_SLOT)
def test_the_earliest_deadline_is_first(proxy: Proxy):
    """One instance with one slot, held until all others wait: with two, neighbours may swap on their way."""
    deadlines = random.Random(13).choices((15, 30, 60, 120), k=40)

    def ask(number: int) -> int:
        return proxy.ask(b"x", f"x-number: {number}", deadline_ms=deadlines[number] * 1000).status

    proxy.set_all(reads_bodies=False)
    with proxy.asking(1, deadline_ms=60_000):
        wait_for(lambda: proxy.stat.in_hand == 1)
        with sending(40, ask) as statuses:
            wait_for(lambda: proxy.stat.queued == 40)
            proxy.set_all(reads_bodies=True)
    assert statuses == [200] * 40
    _, *served = (one.header("x-number") for one in proxy.list_seen())
    assert [deadlines[int(number)] for number in served] == sorted(deadlines) != deadlines
