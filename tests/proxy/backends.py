"""Small HTTP servers on Unix sockets that stand for TorchServe, and can be slow, hang, fail or die."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO


@dataclass
class Seen:
    """A request as it arrived."""

    target: str
    head: bytes
    body_bytes: int = 0
    at: float = field(default_factory=time.monotonic)

    def list_values(self, *names: str) -> list[str]:
        """Of all headers of these names."""
        pairs = [line.partition(b":") for line in self.head.split(b"\r\n")[1:]]
        return [value.strip().decode() for name, _, value in pairs if name.strip().lower().decode() in names]

    def header(self, name: str) -> str:
        return [*self.list_values(name), ""][0]


class Backend:
    """One server; what it does can be changed while it runs."""

    def __init__(self, name: str, path: str) -> None:
        self.name, self.path, self.delay_s = name, Path(path), 0.0
        self.mode, self.resets_to_death = "ok", 0
        """ok; a status such as 500; hang; reset (the body read, then closed), after so many for good."""
        self.reads_bodies = self.answers = True
        """Else a body stays in the socket; a request that was read waits."""
        self.requests, self.checks = list[Seen](), list[Seen]()
        """Predictions, and requests for /ping."""
        self.active = self.peak = 0
        self._changed, self._connections = threading.Condition(), set[socket.socket]()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.live_again()

    def set(self, **values: Any) -> None:
        """What it does from now on."""
        with self._changed:
            vars(self).update(values)
            self._changed.notify_all()

    def die(self) -> None:
        """As a killed process: nobody listens, and every connection is closed; twice is as good as once."""
        for connection in (self._listener, *tuple(self._connections)):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def live_again(self) -> None:
        """At the same place."""
        self.path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
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
            if not (line := stream.readline()):
                return False
            head += line
        seen = Seen(head.split(b" ", 2)[1].decode(), head)
        if seen.target == "/ping":
            self.checks.append(seen)
            return self._respond(connection, "hang" if self.mode == "hang" else "ok")
        self._await("reads_bodies")
        seen.body_bytes = _read_body(stream, seen)
        self.requests.append(seen)
        with self._changed:
            self.active += 1
            self.peak = max(self.peak, self.active)
        try:
            if self.mode != "hang":
                self._await("answers")
                time.sleep(self.delay_s)
            return self._respond(connection, self.mode)
        finally:
            with self._changed:
                self.active -= 1

    def _await(self, permission: str) -> None:
        with self._changed:
            self._changed.wait_for(lambda: getattr(self, permission))

    def _respond(self, connection: socket.socket, mode: str) -> bool:
        if mode == "hang":
            while connection.recv(65536):
                pass
        elif mode == "reset":
            self.resets_to_death -= 1
            if self.resets_to_death == 0:
                self.die()
        else:
            status, body = mode.replace("ok", "200"), f'{{"by": "{self.name}"}}'
            head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
            connection.sendall(f"{head}\r\n\r\n{body}".encode())
        return mode not in ("hang", "reset")


def _read_body(stream: BinaryIO, seen: Seen) -> int:
    """Its size."""
    if not seen.list_values("transfer-encoding"):
        return _skip(stream, int(seen.header("content-length") or 0))
    total = 0
    while size := int(stream.readline().split(b";")[0] or b"0", 16):
        total += _skip(stream, size)
        stream.readline()
    while stream.readline().strip():
        pass
    return total


def _skip(stream: BinaryIO, size: int) -> int:
    """OSError where the connection ends before it does."""
    if len(stream.read(size)) < size:
        raise OSError("cut off")
    return size
