"""/ready and /live on the supervisor's socket, and the order to reload."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from server.errors import ServerError
from server.serve import ask_reload
from server.state import Phase
from server.supervisor import probes as module
from server.supervisor.probes import Readiness, answer_probes

READINESS = Readiness(phase=Phase.READY, models={"bert": (2, 2)}, at=0.0)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)  # a socket's name is short, a test's folder may not be
    return Path("s.sock")


def exchange(path: Path, *sent: bytes, age_s: float = 0.0, rejected: str = "") -> list[tuple[int, Any]]:
    """Status and JSON of the answers to raw requests."""
    readiness = Readiness(phase=READINESS.phase, models=READINESS.models, at=time.monotonic() - age_s)

    async def go() -> list[bytes]:
        async with answer_probes(path, lambda: readiness, lambda: rejected, lambda: b"{}"):
            return [await asyncio.to_thread(send, one) for one in sent]

    def send(request: bytes) -> bytes:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            connection.sendall(request)
            return connection.makefile("rb").read()

    answers = [one.partition(b"\r\n\r\n") for one in asyncio.run(go())]
    return [
        (int(head.split()[1]) if head else 0, json.loads(body) if body else None) for head, _, body in answers
    ]


def request(what: str, headers: str = "") -> bytes:
    return f"{what} HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n".encode()


def test_they_say_what_the_supervisor_saw_last(path: Path) -> None:
    wanted = [request(f"GET {one}") for one in ("/ready", "/live")]
    said = {"phase": "ready", "models": {"bert": {"workers": 2, "planned": 2}}}
    assert exchange(path, *wanted) == [(200, {"ready": True, **said}), (200, {"live": True, **said})]
    assert [status for status, _ in exchange(path, *wanted, age_s=11.0)] == [503, 503]
    assert not path.exists()


def test_there_is_nothing_else(path: Path) -> None:
    wanted = ("GET /models", "POST /ready", "DELETE /live", "GET /reload", "HEAD /ready")
    assert exchange(path, *map(request, wanted)) == [(404, {})] * 4 + [(200, None)]


def test_a_client_that_sends_much_or_nonsense_harms_nobody(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TIMEOUT_S", 0.2)
    long = request("GET /live", f"x: {'y' * 30_000}\r\n")  # what HAProxy may pass on
    statuses = [status for status, _ in exchange(path, b"\r\n\r\n", b"GET", long, request("GET /live"))]
    assert statuses == [0, 0, 200, 200]


def test_a_reload_is_taken_or_rejected_with_the_reason(path: Path) -> None:
    async def go() -> None:
        rejected = ["", "a reload is under way"]
        async with answer_probes(path, lambda: READINESS, lambda: rejected.pop(0), lambda: b""):
            await asyncio.to_thread(ask_reload, path)
            with pytest.raises(ServerError, match="a reload is under way"):
                await asyncio.to_thread(ask_reload, path)
        with pytest.raises(ServerError, match="does not answer"):
            ask_reload(path)

    asyncio.run(go())
