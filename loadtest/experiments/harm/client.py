"""Sends what no well-behaved client would, and tells an answer from a reset, a refusal and silence.

A server may answer before the body is whole, and close: as curl does, the answer is read while the body is
sent, and what breaks after a whole answer is no fault.
"""

from __future__ import annotations

import http.client
import io
import itertools
import select
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

HOST = "127.0.0.1"
ANSWER_SECONDS = 30.0
"""Whoever waits longer has gone away."""
RESET = "reset"
"""The connection ended, in whatever way, before a whole answer came."""
REFUSED = "refused"
"""Nobody listens."""
SILENT = "no answer"
"""Nothing within the time."""
_PIECE = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request, not sent yet."""

    path: str
    body: bytes = b""
    content_type: str = ""
    """None is sent when empty."""
    token: str = ""
    """None is shown when empty."""
    headers: tuple[tuple[str, str], ...] = ()
    """Further ones."""

    def render_head(self) -> bytes:
        """Everything before the body."""
        lines = [f"{'POST' if self.body else 'GET'} {self.path} HTTP/1.1", f"Host: {HOST}"]
        lines += [f"Authorization: Bearer {self.token}"] if self.token else []
        lines += [f"Content-Type: {self.content_type}"] if self.content_type else []
        lines += [f"Content-Length: {len(self.body)}"] if self.body else []
        lines += [f"{name}: {value}" for name, value in self.headers]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one request."""

    status: int = 0
    """Of the whole answer; 0 when there is none."""
    failure: str = ""
    """RESET, REFUSED or SILENT; empty when there is an answer."""
    body: bytes = b""
    """The answer's."""
    seconds: float = 0.0
    """From the first byte sent to the last one read."""

    @property
    def kind(self) -> str:
        """The status, or what happened instead."""
        return self.failure or str(self.status)


class Connection:
    """One client's connection; kept from request to request as long as the server keeps it."""

    def __init__(self, port: int, *, seconds: float = ANSWER_SECONDS) -> None:
        self._port, self._seconds = port, seconds
        self._socket: socket.socket | None = None

    def send(self, request: Request) -> Outcome:
        """The whole request, as far as the server wants it."""
        kept = self._socket is not None
        outcome = self._send_once(request)
        # A kept connection may have ended while nobody used it (RFC 9112, 9.3.1); a new one cannot have.
        return self._send_once(request) if kept and outcome.failure == RESET else outcome

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    def _send_once(self, request: Request) -> Outcome:
        began = time.monotonic()
        deadline = began + self._seconds
        try:
            if self._socket is None:
                self._socket = socket.create_connection((HOST, self._port), timeout=self._seconds)
            answer, keep = exchange(self._socket, request, deadline)
        except ConnectionRefusedError:
            answer, keep = Outcome(failure=REFUSED), False
        except TimeoutError:
            answer, keep = Outcome(failure=SILENT), False
        except OSError:
            answer, keep = Outcome(failure=RESET), False
        if not keep:
            self.close()
        took = time.monotonic() - began
        return Outcome(status=answer.status, failure=answer.failure, body=answer.body, seconds=took)


def exchange(link: socket.socket, request: Request, deadline: float) -> tuple[Outcome, bool]:
    """Send while reading until a whole answer is there; and whether the connection can be used again."""
    link.setblocking(False)
    unsent = [memoryview(part) for part in (request.render_head(), request.body) if part]
    received = bytearray()
    while True:
        ready = wait(link, deadline, write=bool(unsent))
        if ready & ~select.POLLOUT:
            piece = receive(link)
            received += piece
            answer = parse_answer(bytes(received), ended=not piece)
            if answer is not None:
                return answer, not unsent and keeps_open(received)
            if not piece:
                return Outcome(failure=RESET), False
        elif ready:
            _send_piece(link, unsent)
        else:
            return Outcome(failure=SILENT), False


def wait(link: socket.socket, deadline: float, *, write: bool) -> int:
    """poll(2)'s events of one socket, 0 after the deadline; select(2) knows no descriptors above 1023."""
    poller = select.poll()
    poller.register(link, select.POLLIN | (select.POLLOUT if write else 0))
    found = poller.poll(1000 * max(0.0, deadline - time.monotonic()))
    return found[0][1] if found else 0


def receive(link: socket.socket) -> bytes:
    """What is there; nothing at the end, however it came."""
    try:
        return link.recv(_PIECE)
    except BlockingIOError:  # poll(2) saw an error that send(2) has taken since
        return b""
    except ConnectionError:
        return b""


def _send_piece(link: socket.socket, unsent: list[memoryview]) -> None:
    try:
        sent = link.send(unsent[0])
    except BlockingIOError:
        return
    except ConnectionError:
        # The server wants no more; what it has answered before is still to be read.
        unsent.clear()
        return
    unsent[0] = unsent[0][sent:]
    if not unsent[0]:
        unsent.pop(0)


class _Bytes:
    """As much of a socket as http.client's parser asks for."""

    def __init__(self, received: bytes) -> None:
        self._received = received

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._received)


def parse_answer(received: bytes, *, ended: bool) -> Outcome | None:
    """The answer, or None while it is not whole; without a length it ends with the connection."""
    if b"\r\n\r\n" not in received:
        return None
    response = http.client.HTTPResponse(_Bytes(received))  # type: ignore[arg-type]
    try:
        response.begin()
        endless = response.length is None and not response.chunked
        body = response.read()
    except (http.client.HTTPException, ValueError):
        return None
    return None if endless and not ended else Outcome(status=response.status, body=body)


def keeps_open(received: bytes | bytearray) -> bool:
    """Whether the server will take another request on this connection."""
    head = bytes(received).partition(b"\r\n\r\n")[0].lower()
    return head.startswith(b"http/1.1") and b"connection: close" not in head


def send_all(
    requests: Sequence[Request], port: int, *, clients: int, seconds: float = ANSWER_SECONDS,
    at_most_s: float = float("inf"), keep: bool = False,
) -> list[Outcome]:  # fmt: skip
    """By so many clients at once, each with a connection a request (or one kept); in the order of `requests`.

    None is begun after `at_most_s`, so there may be fewer outcomes than requests.
    """
    end = time.monotonic() + at_most_s
    places = iter(enumerate(requests))

    def work(_: int) -> list[tuple[int, Outcome]]:
        connection, done = Connection(port, seconds=seconds), []
        for place, request in _take(places, end):
            done.append((place, connection.send(request)))
            if not keep:
                connection.close()
        connection.close()
        return done

    with ThreadPoolExecutor(clients) as pool:
        try:
            found = list(itertools.chain.from_iterable(pool.map(work, range(clients))))
        finally:
            for _ in places:  # whoever interrupts us waits for what is under way only
                pass
    return [outcome for _, outcome in sorted(found, key=lambda one: one[0])]


def _take(places: Iterator[tuple[int, Request]], end: float) -> Iterator[tuple[int, Request]]:
    """From an iterator that all clients share (next() of one is a single step of the interpreter)."""
    for place in places:
        if time.monotonic() > end:
            return
        yield place


def hold_open(head: bytes, sent: Iterable[bytes], port: int, *, seconds: float) -> tuple[socket.socket, str]:
    """A connection that has sent what it could in the time and is left open; and what was answered so far."""
    link = socket.create_connection((HOST, port), timeout=seconds)
    deadline, answer = time.monotonic() + seconds, "open"
    link.setblocking(False)
    unsent = [memoryview(head), *(memoryview(part) for part in sent)]
    while answer == "open":
        # With nothing left to send (or nobody to take it), just what has come by now is looked at.
        ready = wait(link, deadline if unsent else 0.0, write=bool(unsent))
        if ready & ~select.POLLOUT:
            found = parse_answer(piece := receive(link), ended=True)
            answer = found.kind if found else ("reset" if not piece else "open")
        elif ready:
            _send_piece(link, unsent)
        else:
            break
    return link, answer
