"""What answers /ready and /live on a Unix socket, in the supervisor's place."""

from __future__ import annotations

import socketserver
import threading
import time
from http.server import BaseHTTPRequestHandler


class _Handler(BaseHTTPRequestHandler):
    server: Supervisor

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        if self.server.hangs:
            time.sleep(self.server.HANG_S)
        body = b"as the supervisor says"
        self.send_response(self.server.status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "proxy"

    def log_message(self, *_: object) -> None:
        """Not in a test's output."""


class Supervisor(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Runs within `with`."""

    HANG_S = 60.0
    daemon_threads = True
    block_on_close = False

    def __init__(self, path: str) -> None:
        super().__init__(path, _Handler)
        self.status, self.hangs = 200, False
        self.asked: list[str] = []

    def __enter__(self) -> Supervisor:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()
