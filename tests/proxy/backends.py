"""Small HTTP servers on Unix sockets that stand for TorchServe, and can be slow, hang, fail or die."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Seen:
    """A request as it arrived."""

    target: str
    head: bytes
    body_bytes: int
    at: float = field(default_factory=time.monotonic)

    def count(self, *names: str) -> int:
        """Headers of these names."""
        lines = self.head.lower().split(b"\r\n")[1:]
        return sum(line.partition(b":")[0].decode("latin-1") in names for line in lines)

    def header(self, name: str) -> str | None:
        """The value of a header; None where it is not there."""
        for line in self.head.split(b"\r\n")[1:]:
            key, _, value = line.partition(b":")
            if key.strip().lower() == name.lower().encode():
                return value.strip().decode()
        return None


class Backend:
    """One server; what it does can be changed while it runs."""

    def __init__(self, name: str, path: str) -> None:
        self.name = name
        self.delay_s = 0.0
        self.mode = "ok"
        """ok; a status such as 500; reset (the body read, then closed); cut (an answer half sent); hang."""
        self.reads_bodies = threading.Event()
        """Cleared, a body stays in the socket."""
        self.reads_bodies.set()
        self.answers = threading.Event()
        """Cleared, a request that was read waits."""
        self.answers.set()
        self.resets_to_death = 0
        """In the mode reset: after so many, nobody listens any more; 0 for never."""
        self.requests: list[Seen] = []
        self.checks: list[Seen] = []
        """Requests for /ping."""
        self.active = 0
        self.peak = 0
        self.aborted = 0
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self.path = path
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        self.live_again()

    def die(self) -> None:
        """As a killed process: nobody listens, and every connection is closed; twice is as good as once."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in tuple(self._connections):
            self._reset(connection)

    def live_again(self) -> None:
        """At the same place."""
        Path(self.path).unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen(512)
        threading.Thread(target=self._accept, daemon=True).start()

    def _reset(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _accept(self) -> None:
        listener = self._listener
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self._connections.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("rb") as stream:
                while self._answer_one(connection, stream):
                    pass
        except OSError:
            pass
        finally:
            self._connections.discard(connection)

    def _answer_one(self, connection: socket.socket, stream) -> bool:
        head = _read_head(stream)
        if not head:
            return False
        target = head.split(b" ", 2)[1].decode()
        if target == "/ping":
            self.checks.append(Seen(target=target, head=head, body_bytes=0))
            if self.mode == "hang":
                self._hang(connection)
                return False
            connection.sendall(_render(200, b"{}"))
            return True
        self.reads_bodies.wait()
        body = _read_body(stream, head)
        self.requests.append(Seen(target=target, head=head, body_bytes=body))
        with self._lock:
            self.active += 1
            self.peak = max(self.peak, self.active)
        try:
            return self._act(connection)
        finally:
            with self._lock:
                self.active -= 1

    def _act(self, connection: socket.socket) -> bool:
        mode = self.mode
        if mode == "hang":
            self._hang(connection)
            return False
        self.answers.wait()
        self._wait(connection)
        if self.mode == "reset":
            self.resets_to_death -= 1
            if self.resets_to_death == 0:
                self.die()
            self._reset(connection)
            return False
        if self.mode == "cut":
            connection.sendall(_render(200, b"x" * 1000)[:300])
            self._reset(connection)
            return False
        status = 200 if self.mode == "ok" else int(self.mode)
        connection.sendall(_render(status, f'{{"by": "{self.name}"}}'.encode()))
        return True

    def _wait(self, connection: socket.socket) -> None:
        """The delay; less when the client leaves."""
        connection.settimeout(self.delay_s or 0.001)
        try:
            if self.delay_s and connection.recv(1, socket.MSG_PEEK) == b"":
                self.aborted += 1
                raise OSError("the client left")
        except TimeoutError:
            pass
        connection.settimeout(None)

    def _hang(self, connection: socket.socket) -> None:
        while connection.recv(65536):
            pass
        self.aborted += 1


def _read_head(stream) -> bytes:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line = stream.readline(65536)
        if not line:
            return b""
        head += line
    return head


def _read_body(stream, head: bytes) -> int:
    lines = [line.lower() for line in head.split(b"\r\n")]
    if any(line.startswith(b"transfer-encoding:") for line in lines):
        return _read_chunks(stream)
    lengths = [int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:")]
    wanted = lengths[0] if lengths else 0
    read = 0
    while read < wanted:
        part = stream.read(min(1 << 16, wanted - read))
        if not part:
            raise OSError("cut off")
        read += len(part)
    return read


def _read_chunks(stream) -> int:
    total = 0
    while size := int(stream.readline().split(b";")[0] or b"0", 16):
        total += len(stream.read(size))
        stream.readline()
    while stream.readline().strip():
        pass
    return total


def _render(status: int, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status} Whatever\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
