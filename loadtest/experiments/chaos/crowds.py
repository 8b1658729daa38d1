"""Clients that only take places: connections without a word, bodies a byte at a time; and overload."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Iterator, Sequence

from loadtest.experiments.chaos.stage import MODEL, Stage
from loadtest.experiments.harm import bodies
from loadtest.experiments.harm.client import HOST, Request

IDLE, SLOW = 1000, 60
HOLD_S, OPEN_S, CONNECT_S = 15.0, 10.0, 1.0
DRIP_S = 0.5
BODY_BYTES = 1_000_000
OVERLOAD_S = 60.0


def hold_idle_connections(stage: Stage) -> None:
    """Nothing is sent."""
    with contextlib.ExitStack() as held:
        links = open_links(stage.port, IDLE, held)
        time.sleep(HOLD_S)
        closed = count_closed(links)
    stage.notes.append(
        f"{len(links)} of {IDLE} connections held for {HOLD_S:g} s; {closed} were closed meanwhile"
    )


def send_slow_bodies(stage: Stage) -> None:
    """With a good token, a byte at a time."""
    request = Request(
        path=f"/predictions/{MODEL}",
        body=b"\0" * BODY_BYTES,
        content_type=bodies.JPEG,
        token=stage.target.token,
    )
    with contextlib.ExitStack() as held:
        links = open_links(stage.port, SLOW, held)
        send(links, request.render_head())
        end = time.monotonic() + HOLD_S
        while time.monotonic() < end:
            send(links, b"\0")
            time.sleep(DRIP_S)
        ended = count_closed(links)
    stage.notes.append(
        f"{len(links)} bodies of {BODY_BYTES} bytes, a byte every {DRIP_S:g} s; {ended} were ended or "
        f"answered within {HOLD_S:g} s"
    )


def open_links(port: int, count: int, held: contextlib.ExitStack) -> list[socket.socket]:
    """As many as there can be, within a time."""
    return [held.enter_context(link) for link in _connect(port, count)]


def _connect(port: int, count: int) -> Iterator[socket.socket]:
    end = time.monotonic() + OPEN_S
    for _ in range(count):
        if time.monotonic() > end:
            return
        with contextlib.suppress(OSError):
            yield socket.create_connection((HOST, port), timeout=CONNECT_S)


def send(links: Sequence[socket.socket], data: bytes) -> None:
    """To each that still takes it."""
    for link in links:
        with contextlib.suppress(OSError):
            link.sendall(data)


def count_closed(links: Sequence[socket.socket]) -> int:
    """Those on which the server has said or ended something."""
    poller = select.poll()
    for link in links:
        poller.register(link, select.POLLIN)
    return len(poller.poll(0))


def go_on(_: Stage) -> None:
    """The load itself is the fault."""
    time.sleep(OVERLOAD_S)
