"""Small HTTP servers on Unix sockets that stand for TorchServe, and can be slow, hang, fail or die."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO


@dataclass
class Seen:
    """A request as it arrived."""

    target: str
    head: bytes
    body_bytes: int = 0
    at: float = field(default_factory=time.monotonic)

    def list_values(self, name: str) -> list[str]:
        """Of all headers of this name."""
        pairs = (line.partition(b":") for line in self.head.split(b"\r\n")[1:])
        return [v.strip().decode() for key, _, v in pairs if key.strip().lower() == name.lower().encode()]

    def header(self, name: str) -> str | None:
        return next(iter(self.list_values(name)), None)

    def count(self, *names: str) -> int:
        """Headers of these names."""
        return sum(len(self.list_values(name)) for name in names)


class Backend:
    """One server; what it does can be changed while it runs."""

    def __init__(self, name: str, path: str) -> None:
        self.name, self.path = name, path
        self.delay_s = 0.0
        self.mode = "ok"
        """ok; a status such as 500; reset (the body read, then closed); hang."""
        self.reads_bodies, self.answers = threading.Event(), threading.Event()
        """Cleared, a body stays in the socket; a request that was read waits."""
        self.reads_bodies.set()
        self.answers.set()
        self.resets_to_death = 0
        """In the mode reset: after so many, nobody listens any more; 0 for never."""
        self.requests: list[Seen] = []
        self.checks: list[Seen] = []
        """Requests for /ping."""
        self.active = self.peak = 0
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        self.live_again()

    def die(self) -> None:
        """As a killed process: nobody listens, and every connection is closed; twice is as good as once."""
        for connection in (self._listener, *tuple(self._connections)):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def live_again(self) -> None:
        """At the same place."""
        Path(self.path).unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen(512)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                self._connections.add(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as stream:
            while self._answer(connection, stream):
                pass
        self._connections.discard(connection)

    def _answer(self, connection: socket.socket, stream: BinaryIO) -> bool:
        """One request; False ends the connection."""
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = stream.readline(65536)
            if not line:
                return False
            head += line
        seen = Seen(head.split(b" ", 2)[1].decode(), head)
        if seen.target == "/ping":
            self.checks.append(seen)
            return self._respond(connection) if self.mode == "hang" else _send(connection, 200, b"{}")
        self.reads_bodies.wait()
        seen.body_bytes = _read_body(stream, seen)
        self.requests.append(seen)
        with self._lock:
            self.active += 1
            self.peak = max(self.peak, self.active)
        try:
            return self._respond(connection)
        finally:
            with self._lock:
                self.active -= 1

    def _respond(self, connection: socket.socket) -> bool:
        if self.mode == "hang":
            while connection.recv(65536):
                pass
            return False
        self.answers.wait()
        time.sleep(self.delay_s)
        if self.mode == "reset":
            self.resets_to_death -= 1
            if self.resets_to_death == 0:
                self.die()
            return False
        return _send(
            connection, 200 if self.mode == "ok" else int(self.mode), b'{"by": "%s"}' % self.name.encode()
        )


def _read_body(stream: BinaryIO, seen: Seen) -> int:
    """Its size; OSError where the connection ends before it does."""
    if not seen.count("transfer-encoding"):
        return _skip(stream, int(seen.header("content-length") or 0))
    total = 0
    while size := int(stream.readline().split(b";")[0] or b"0", 16):
        total += _skip(stream, size)
        stream.readline()
    while stream.readline().strip():
        pass
    return total


def _skip(stream: BinaryIO, size: int) -> int:
    left = size
    while left:
        part = stream.read(min(1 << 16, left))
        if not part:
            raise OSError("cut off")
        left -= len(part)
    return size


def _send(connection: socket.socket, status: int, body: bytes) -> bool:
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return True
