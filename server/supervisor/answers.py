"""Answers /ready and /live on a Unix socket, as the supervisor sees it; and takes the order to reload."""

from __future__ import annotations

import contextlib
import json
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from server.supervisor.supervisor import Standing

TIMEOUT_S = 5.0


class _Handler(BaseHTTPRequestHandler):
    """GET and HEAD of two paths."""

    timeout = TIMEOUT_S
    server: _Server

    def do_GET(self) -> None:
        """200 where it is so, 503 where it is not; which models have how many workers."""
        standing = self.server.read()
        answers = {
            "/ready": standing.ready and standing.is_live(time.monotonic()),
            "/live": standing.is_live(time.monotonic()),
        }
        good = answers.get(self.path)
        if good is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        status = HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
        self._answer(status, _describe(self.path, good, standing))

    def do_POST(self) -> None:
        """/reload: 202, or 409 and why not; the door sends no such request."""
        if self.path != "/reload":
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        refused = self.server.reload()
        self._answer(HTTPStatus.CONFLICT if refused else HTTPStatus.ACCEPTED, {"refused": refused})

    do_HEAD = do_GET  # noqa: N815 - the standard library's name

    def _answer(self, status: HTTPStatus, fields: dict[str, Any]) -> None:
        body = (json.dumps(fields) + "\n").encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def address_string(self) -> str:
        """A Unix socket's peer has no address."""
        return "door"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the standard library's name
        """Probes come every second: nothing."""


def _describe(path: str, good: bool, standing: Standing) -> dict[str, Any]:
    models = {
        name: {"workers": count, "planned": planned} for name, (count, planned) in standing.models.items()
    }
    return {path.removeprefix("/"): good, "phase": standing.phase, "models": models}


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

    def __init__(self, path: Path, read: Callable[[], Standing], reload: Callable[[], str]) -> None:
        self.read = read
        self.reload = reload
        super().__init__(str(path), _Handler)


@contextlib.contextmanager
def answer_probes(path: Path, read: Callable[[], Standing], reload: Callable[[], str]) -> Iterator[None]:
    """Listen until the end of the block; `read` gives the latest standing, `reload` asks for a reload."""
    path.unlink(missing_ok=True)
    with _Server(path, read, reload) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            path.unlink(missing_ok=True)
