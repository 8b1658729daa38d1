"""Answers /ready and /live on a Unix socket, as the supervisor sees it; and takes the order to reload."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST

from server.state import Phase

TIMEOUT_S = 5.0
LARGEST_HEAD_BYTES = 64 << 10  # HAProxy passes on a client's headers, and they fit into one of its buffers
STALE_S = 10.0  # the loop's turn takes well under a second; after this it is not alive any more


@dataclass(frozen=True, kw_only=True)
class Readiness:
    """What /ready and /live answer from."""

    phase: Phase
    models: Mapping[str, tuple[int, int]]  # model → workers that serve, workers planned
    at: float  # time.monotonic() of the turn

    @property
    def ready(self) -> bool:
        """Whether each model has a worker that serves it."""
        serving = all(count for count, _ in self.models.values())
        return self.phase in (Phase.READY, Phase.DEGRADED) and serving and self.live

    @property
    def live(self) -> bool:
        """Whether the supervisor still looks."""
        return time.monotonic() - self.at < STALE_S


@contextlib.asynccontextmanager
async def answer_probes(
    path: Path,
    read: Callable[[], Readiness],
    reload: Callable[[], str],
    page: Callable[[], bytes],
    ask: Callable[[str], tuple[HTTPStatus, dict[str, Any]] | None] = lambda _: None,
) -> AsyncIterator[None]:
    """Listen until the end of the block; `read` gives the latest readiness, `reload` asks for a reload and
    says why it is rejected, `page` is that of metrics, `ask` answers other paths."""

    def find_answer(method: str, what: str) -> tuple[HTTPStatus, dict[str, Any]]:
        if (method, what) == ("POST", "/reload"):  # HAProxy lets no such request through
            rejected = reload()
            return HTTPStatus.CONFLICT if rejected else HTTPStatus.ACCEPTED, {"rejected": rejected}
        if method not in ("GET", "HEAD") or what not in ("/ready", "/live"):
            return (method in ("GET", "HEAD") and ask(what)) or (HTTPStatus.NOT_FOUND, {})
        readiness = read()
        good = readiness.ready if what == "/ready" else readiness.live
        models = {
            name: {"workers": now, "planned": planned} for name, (now, planned) in readiness.models.items()
        }
        fields = {what[1:]: good, "phase": readiness.phase, "models": models}
        return HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE, fields

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), TIMEOUT_S)
            method, what, *_ = head.decode(errors="replace").split()
            if what == "/metrics" and method in ("GET", "HEAD"):
                status, kind, body = HTTPStatus.OK, CONTENT_TYPE_LATEST, page()
            else:
                status, fields = find_answer(method, what)
                kind, body = "application/json", (json.dumps(fields) + "\n").encode()
            lines = (f"HTTP/1.1 {status.value} {status.phrase}", f"Content-Type: {kind}",
                     f"Content-Length: {len(body)}", "Connection: close", "", "")  # fmt: skip
            writer.write("\r\n".join(lines).encode() + (b"" if method == "HEAD" else body))
            await asyncio.wait_for(writer.drain(), TIMEOUT_S)
        # Whoever sends no request, or too long a one, or goes away.
        except (OSError, ValueError, EOFError, asyncio.LimitOverrunError, asyncio.TimeoutError):
            pass
        finally:
            writer.close()

    path.unlink(missing_ok=True)
    server = await asyncio.start_unix_server(answer, str(path), limit=LARGEST_HEAD_BYTES)
    try:
        yield
    finally:
        server.close()
        path.unlink(missing_ok=True)
