"""Drives the kit as the Makefile does, in a run directory, store and ports of the tests' own."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from config.plan import read_plan
from server.api import Connection, bearer
from server.processes import Process, find_marked

ROOT = Path(__file__).parents[2]
START_SECONDS = 400
"""Four workers that load on two cores took 54 s alone and up to 120 s beside other work."""
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
PORTS = range(18080 + 1000 * WORKER, 18980 + 1000 * WORKER, 100)
"""Each worker of a test run has others: what is free now is free at the start."""
BACK_SECONDS = 300
"""A worker is started again within 20 s on a quiet machine."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One HTTP answer."""

    status: int
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, kw_only=True)
class Kit:
    """One run directory and what `make` would do in it."""

    run_dir: Path
    store: Path
    port: int

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", *arguments, f"RUN_DIR={self.run_dir}"]

    def call(self, *arguments: str, seconds: float = START_SECONDS) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments), cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False
        )

    def list_settings(self, models: str, **settings: object) -> list[str]:
        """As arguments; of one instance, unless INSTANCES says otherwise (None: by the machine)."""
        own = {"MODELS": models, "PORT": self.port, "MODEL_STORE": self.store, "INSTANCES": 1, **settings}
        return [f"{name}={value}" for name, value in own.items() if value is not None]

    def plan(self, models: str, **settings: object) -> None:
        """What `make serve` would start is planned and written, and nothing is started."""
        done = self.call("tests.end_to_end.write_plan", *self.list_settings(models, **settings))
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self) -> subprocess.CompletedProcess[str]:
        return self.call("server", "start")

    def stop(self) -> subprocess.CompletedProcess[str]:
        return self.call("server", "stop", seconds=60)

    def verify(self) -> tuple[int, dict[str, list[dict[str, Any]]]]:
        """Exit code, and the rows that differ by name."""
        code, rows = self._compare()
        differing: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            if row["state"] == "DIFFERS":
                differing.setdefault(row["name"], []).append(row)
        return code, differing

    def _compare(self) -> tuple[int, list[dict[str, Any]]]:
        done = self.call("server", "verify", "FORMAT=json", seconds=120)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)["rows"]

    def wait_until_good(self) -> None:
        """Until verify finds nothing that differs."""
        deadline = time.monotonic() + BACK_SECONDS
        while (found := self.verify()) != (0, {}):
            assert time.monotonic() < deadline, found
            time.sleep(1)

    def change_properties(self, **changes: str | None) -> None:
        """Plant a fault: set keys of config.properties behind the plan's back; None takes the line out."""
        path = self.instance / "config.properties"
        kept = [line for line in path.read_text().splitlines() if line.split("=")[0] not in changes]
        added = [f"{key}={value}" for key, value in changes.items() if value is not None]
        path.write_text("\n".join([*kept, *added]) + "\n")

    def read_property(self, key: str) -> str:
        lines = (self.instance / "config.properties").read_text().splitlines()
        return next(line.partition("=")[2] for line in lines if line.startswith(f"{key}="))

    @property
    def instance(self) -> Path:
        """The folder of the first one."""
        return self.run_dir / "instances" / next(iter(read_plan(self.run_dir).instances))

    @property
    def token(self) -> str:
        """Of predictions."""
        return (self.run_dir / "token").read_text().strip()

    def find(self, role: str, instance: str = "") -> list[Process]:
        """Of the server, or of one of its instances."""
        where = self.run_dir / "instances" / instance if instance else self.run_dir
        return [process for process in find_marked(where) if process.role == role]

    def request(
        self,
        path: str,
        body: bytes | None = None,
        *,
        content_type: str = "application/octet-stream",
        token: str | None = None,
        management: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """One request with the right token, or the one given; a POST where there is a body. Management is the
        first instance's, on its Unix socket."""
        address = self.read_property("management_address") if management else f"http://127.0.0.1:{self.port}"
        sent = {**({} if management else bearer(self.token if token is None else token)), **(headers or {})}
        if body is not None:
            sent["Content-Type"] = content_type
        with contextlib.closing(Connection(address, "", 120)) as connection:
            connection.request("GET" if body is None else "POST", f"/{path}", body, sent)
            answer = connection.getresponse()
            return Answer(status=answer.status, body=answer.read())

    def predict(self, model: str, body: bytes, content_type: str = "application/octet-stream") -> Answer:
        return self.request(f"predictions/{model}", body, content_type=content_type)

    def workers(self, model: str) -> list[int]:
        """Pids of a model's real workers, by rank, from `verify`."""
        rows = self._compare()[1]
        return list(dict.fromkeys(row["pid"] for row in rows if row["model"] == model and row["pid"]))

    def processes(self) -> list[int]:
        """Every process that carries the mark of this run directory, or of an instance's in it."""
        mark = f"\0CPU_KIT_RUN={self.run_dir.resolve()}".encode()
        found = []
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit() or int(folder.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                environment = b"\0" + (folder / "environ").read_bytes()
                if mark + b"\0" in environment or mark + b"/" in environment:
                    found.append(int(folder.name))
        return sorted(found)


def find_port() -> int:
    """The first of PORTS whose own ports, and those of its first two instances, are free."""
    for port in PORTS:
        with contextlib.ExitStack() as stack:
            try:
                for offset in (0, 2, *range(10, 15), *range(20, 25)):
                    one = stack.enter_context(socket.socket())
                    one.bind(("127.0.0.1", port + offset))
            except OSError:
                continue
            return port
    raise AssertionError(f"no free ports from any of {list(PORTS)}")


@contextlib.contextmanager
def running(kit: Kit, *serve: str) -> Iterator[subprocess.CompletedProcess[str]]:
    """A started kit, by `server serve` with these settings or by the plan that is there; always stopped, and
    nothing of it may be left."""
    try:
        yield kit.call("server", "serve", *serve) if serve else kit.start()
    finally:
        stopped = kit.stop()
        assert stopped.returncode == 0, stopped.stdout + stopped.stderr
        assert kit.processes() == []
