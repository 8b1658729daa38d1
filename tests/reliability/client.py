"""Sends requests at a steady rate or by so many clients, each on a connection of its own; keeps their fate.

A server may answer before the body is whole, and close: as curl does, the answer is read while the body is
sent, and what breaks after a whole answer is no fault. A kept connection may be closed by the server at any
moment (RFC 9112, 9.3.1); so none is kept.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import random
import selectors
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

HOST = "127.0.0.1"
RESET, REFUSED, SILENT = "reset", "rejected", "no response"
"""The connection ended before a whole answer; nobody listens; nothing within the time."""
TICK_S = 0.05


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request, not sent yet; a POST where there is a body."""

    path: str
    body: bytes = b""
    content_type: str = ""
    """None is sent when empty."""
    token: str = ""
    """None is shown when empty."""
    headers: tuple[tuple[str, str], ...] = ()

    def render_head(self) -> bytes:
        lines = [f"{'POST' if self.body else 'GET'} {self.path} HTTP/1.1", f"Host: {HOST}"]
        lines += [f"Authorization: Bearer {self.token}"] if self.token else []
        lines += [f"Content-Type: {self.content_type}"] if self.content_type else []
        lines += [f"Content-Length: {len(self.body)}"] if self.body else []
        lines += [f"{name}: {value}" for name, value in self.headers]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one request; times are time.monotonic()'s."""

    request: Request
    due: float
    ended: float
    status: int = 0
    """0 when there is no whole answer."""
    failure: str = ""
    """RESET, REFUSED or SILENT; empty when there is an answer."""
    body: bytes = b""
    """The answer's."""

    @property
    def seconds(self) -> float:
        """From when it was due: a late sender makes no server look fast."""
        return self.ended - self.due


@dataclass(kw_only=True)
class _Exchange:
    """One request under way."""

    request: Request
    due: float
    last: float
    """When it is given up."""
    link: socket.socket
    unsent: list[memoryview]
    received: bytearray = field(default_factory=bytearray)

    def step(self, events: int) -> Outcome | None:
        """Read, then write what can be; the outcome once it is known."""
        try:
            if events & selectors.EVENT_READ:
                piece = self._receive()
                if answer := parse_answer(bytes(self.received), ended=not piece):
                    return self.end(status=answer[0], body=answer[1])
                if not piece:
                    return self.end(failure=RESET)
            if events & selectors.EVENT_WRITE and self.unsent:
                sent = self.link.send(self.unsent[0])
                self.unsent[0] = self.unsent[0][sent:]
                self.unsent = [part for part in self.unsent if part]
        except BlockingIOError:
            pass
        except ConnectionRefusedError:
            return self.end(failure=REFUSED)
        except ConnectionError:  # it wants no more; what it has answered before is still to be read
            self.unsent = []
        return None

    def _receive(self) -> bytes:
        """Nothing at the end, however it came."""
        try:
            piece = self.link.recv(1 << 16)
        except (ConnectionResetError, BrokenPipeError):
            return b""
        self.received += piece
        return piece

    def end(self, **found: object) -> Outcome:
        self.link.close()
        return Outcome(request=self.request, due=self.due, ended=time.monotonic(), **found)  # type: ignore[arg-type]


class _Bytes:
    """As much of a socket as http.client's parser asks for."""

    def __init__(self, received: bytes) -> None:
        self._received = received

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._received)


def parse_answer(received: bytes, *, ended: bool) -> tuple[int, bytes] | None:
    """(status, body), or None while it is not whole; without a length it ends with the connection."""
    if b"\r\n\r\n" not in received:
        return None
    response = http.client.HTTPResponse(_Bytes(received))  # type: ignore[arg-type]
    try:
        response.begin()
        endless = response.length is None and not response.chunked
        body = response.read()
    except (http.client.HTTPException, ValueError):
        return None
    return None if endless and not ended else (response.status, body)


class Load:
    """All of `requests` in turn: as a Poisson process of `rate` a second, or by so many `clients`."""

    def __init__(
        self, port: int, requests: Iterable[Request], *,
        rate: float = 0.0, clients: int = 1, seconds: float = 30.0,
    ) -> None:  # fmt: skip
        self._port, self._requests = port, iter(requests)
        self._rate, self._clients, self._seconds = rate, clients, seconds
        self._random = random.Random(13)
        self._due = self._looked = 0.0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self.run, daemon=True)
        self.outcomes: list[Outcome] = []

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing more is sent; what is under way is waited for."""
        self._stopped.set()
        self._thread.join()

    def run(self) -> list[Outcome]:
        """Until all are sent, or it is told to stop, and each has its outcome."""
        self._due = time.monotonic()
        with selectors.DefaultSelector() as selector:
            while self._begin(selector) or selector.get_map():
                self._go_on(selector)
        return self.outcomes

    def _begin(self, selector: selectors.BaseSelector) -> bool:
        """Those that are due; whether there may be more."""
        while not self._stopped.is_set():
            now = time.monotonic()
            if self._due > now if self._rate else len(selector.get_map()) >= self._clients:
                return True
            request = next(self._requests, None)
            if request is None:
                return False
            due = self._due if self._rate else now
            self._due += self._random.expovariate(self._rate) if self._rate else 0.0
            link = socket.socket()
            link.setblocking(False)
            link.connect_ex((HOST, self._port))
            unsent = [memoryview(part) for part in (request.render_head(), request.body) if part]
            one = _Exchange(request=request, due=due, last=due + self._seconds, link=link, unsent=unsent)
            selector.register(link, selectors.EVENT_READ | selectors.EVENT_WRITE, one)
        return False

    def _go_on(self, selector: selectors.BaseSelector) -> None:
        wait = max(0.0, self._due - time.monotonic()) if self._rate else TICK_S
        for key, events in selector.select(min(TICK_S, wait)):
            if outcome := key.data.step(events):
                selector.unregister(key.fileobj)
                self.outcomes.append(outcome)
            elif events & selectors.EVENT_WRITE and not key.data.unsent:
                selector.modify(key.fileobj, selectors.EVENT_READ, key.data)
        now = time.monotonic()
        if now > self._looked + TICK_S:
            self._looked = now
            for key in [key for key in selector.get_map().values() if key.data.last < now]:
                selector.unregister(key.fileobj)
                self.outcomes.append(key.data.end(failure=SILENT))


def send_all(
    port: int, requests: Iterable[Request], *, clients: int, seconds: float = 150.0
) -> list[Outcome]:
    """By so many clients at once; in the order in which they ended."""
    return Load(port, requests, clients=clients, seconds=seconds).run()


def send(port: int, request: Request, seconds: float = 30.0) -> Outcome:
    """One alone."""
    return send_all(port, [request], clients=1, seconds=seconds)[0]


@contextlib.contextmanager
def held_open(port: int, count: int) -> Iterator[list[socket.socket]]:
    """So many connections, on which nothing was sent yet."""
    with contextlib.ExitStack() as stack:
        links = (socket.create_connection((HOST, port), timeout=10.0) for _ in range(count))
        yield [stack.enter_context(link) for link in links]
