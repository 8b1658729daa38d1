"""/ready and /live on the supervisor's socket."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server.supervisor.answers import answer_probes
from server.supervisor.record import DEGRADED, READY, STARTING, STOPPING
from server.supervisor.supervisor import STALE_S, Standing


class Connection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=5)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(5)
        self.sock.connect(str(self.path))


class Told:
    refusal = ""
    standing = Standing(phase=READY, models={"bert": (2, 2)}, at=0.0)


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    told = Told()
    with answer_probes(tmp_path / "s.sock", lambda: told.standing, lambda: told.refusal):
        yield told


def ask(tmp_path: Path, path: str, method: str = "GET") -> tuple[int, Any]:
    connection = Connection(tmp_path / "s.sock")
    connection.request(method, path)
    answer = connection.getresponse()
    body = answer.read()
    return answer.status, json.loads(body) if body.startswith(b"{") else None


def stand(phase: str, serving: int, *, age_s: float = 0.0) -> Standing:
    return Standing(phase=phase, models={"bert": (serving, 2)}, at=time.monotonic() - age_s)


@pytest.mark.parametrize(
    ("phase", "serving", "age_s", "ready", "live"),
    [
        (READY, 2, 0.0, 200, 200),
        (DEGRADED, 1, 0.0, 200, 200),
        (DEGRADED, 0, 0.0, 503, 200),
        (STARTING, 2, 0.0, 503, 200),
        (STOPPING, 2, 0.0, 503, 200),
        (READY, 2, STALE_S + 1, 503, 503),
    ],
)
def test_they_say_what_the_supervisor_saw_last(
    tmp_path: Path, told: Told, phase: str, serving: int, age_s: float, ready: int, live: int
) -> None:
    told.standing = stand(phase, serving, age_s=age_s)
    assert ask(tmp_path, "/ready")[0] == ready
    assert ask(tmp_path, "/live")[0] == live


def test_there_is_nothing_else(tmp_path: Path, told: Told) -> None:
    assert ask(tmp_path, "/models")[0] == 404
    assert ask(tmp_path, "/ready", "POST")[0] == 404
    told.standing = stand(READY, 2)
    assert ask(tmp_path, "/ready", "HEAD") == (200, None)


def test_a_reload_is_taken_or_refused_with_the_reason(tmp_path: Path, told: Told) -> None:
    assert ask(tmp_path, "/reload", "POST") == (202, {"refused": ""})
    told.refusal = "a reload is under way"
    assert ask(tmp_path, "/reload", "POST") == (409, {"refused": "a reload is under way"})
