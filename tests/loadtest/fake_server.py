"""A server of known behaviour: service time, workers, pauses, errors, wrong answers, drips, hang-ups."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """What the server does; rates are "each n-th request", 0 is never."""

    service_s: float = 0.002
    """Time that one request takes a worker."""
    workers: int = 4
    """Requests served at once."""
    pause_every_s: float = 0.0
    """All workers stop at multiples of this after the first request …"""
    pause_s: float = 0.0
    """… for so long."""
    error_each: int = 0
    """Answer 503."""
    wrong_each: int = 0
    """Answer another label."""
    hang_up_each: int = 0
    """Close the connection without an answer."""
    drip_each: int = 0
    """Send the answer a byte at a time …"""
    drip_s: float = 0.05
    """… so far apart."""


@dataclass
class Asked:
    """What the server was asked."""

    received: list[tuple[str, bytes, dict[str, str]]] = field(default_factory=list)
    """Path, body, headers."""
    connections: int = 0
    began: float = 0.0

    @property
    def requests(self) -> int:
        return len(self.received)

    def list_values(self, header: str) -> set[str]:
        return {headers.get(header, "") for _, _, headers in self.received}


def answer_to(body: bytes) -> dict:
    """A text model's answer, different for different bodies and known to tests."""
    good = 0.55 + 0.4 * (sum(body) % 97) / 97
    return {"label": "good", "probabilities": {"good": good, "bad": 1 - good}}


WRONG = {"label": "bad", "probabilities": {"good": 0.02, "bad": 0.98}}


class FakeServer:
    """Serves POST /predictions/<model> on a free port of loopback."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour, self.asked = behaviour, Asked()
        self._lock, self._workers = threading.Lock(), threading.Semaphore(behaviour.workers)
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._make_handler())
        self._http.daemon_threads = True
        self._http.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients that give up are expected
        self._http.request_queue_size = 512

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def _count(self, handler: BaseHTTPRequestHandler, body: bytes) -> int:
        with self._lock:
            self.asked.began = self.asked.began or time.monotonic()
            self.asked.received.append((handler.path, body, dict(handler.headers)))
            return self.asked.requests

    def _serve(self) -> None:
        """Take a worker's time, and wait out a pause as a garbage collection would make everyone wait."""
        with self._workers:
            self._wait_out_pause()
            time.sleep(self.behaviour.service_s)
            self._wait_out_pause()

    def _wait_out_pause(self) -> None:
        every, length = self.behaviour.pause_every_s, self.behaviour.pause_s
        since = time.monotonic() - self.asked.began
        if every and since >= every and since % every < length:
            time.sleep(length - since % every)

    def _make_handler(server) -> type[BaseHTTPRequestHandler]:  # noqa: N805 - `self` is the handler's
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # head and body in one packet: Nagle's algorithm would add 40 ms

            def setup(self) -> None:
                super().setup()
                server.asked.connections += 1

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                number, does = server._count(self, body), server.behaviour
                if does.hang_up_each and number % does.hang_up_each == 0:
                    self.close_connection = True
                    return
                server._serve()
                if does.error_each and number % does.error_each == 0:
                    self._reply(503, b'{"code": 503}')
                    return
                wrong = does.wrong_each and number % does.wrong_each == 0
                text = json.dumps(WRONG if wrong else answer_to(body)).encode()
                self._reply(200, text, drip=bool(does.drip_each and number % does.drip_each == 0))

            def _reply(self, status: int, body: bytes, *, drip: bool = False) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                if self.request_version == "HTTP/1.0" and not self.close_connection:
                    self.send_header("Connection", "keep-alive")  # or ab waits for the end of the connection
                self.end_headers()
                for byte in [body[n : n + 1] for n in range(len(body))] if drip else [body]:
                    self.wfile.write(byte)
                    self.wfile.flush()
                    if drip:
                        time.sleep(server.behaviour.drip_s)

            def log_message(self, *_: object) -> None:
                return

        return Handler


@contextlib.contextmanager
def serving(behaviour: Behaviour | None = None) -> Iterator[FakeServer]:
    """A running fake server."""
    server = FakeServer(behaviour or Behaviour())
    thread = threading.Thread(target=server._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server._http.shutdown()
        server._http.server_close()
        thread.join()
