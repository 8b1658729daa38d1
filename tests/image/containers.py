"""Starts containers as `make image-run` does, talks to them, and takes them away again."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from docker.image.__main__ import build_parser
from docker.image.engines import Engine
from docker.image.run import render_run
from server.throttling import parse_stat

READY_SECONDS = 420
"""Four workers on two cores, with other work beside them."""
STOP_SECONDS = 90
HOST = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class Container:
    """One container, running or ended."""

    engine: Engine
    name: str
    port: int

    def call(self, *words: str, check: bool = True) -> str:
        done = subprocess.run([self.engine.name, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0 or not check, f"{words}: {done.stderr}"
        return done.stdout

    def run_inside(self, *command: str, check: bool = True) -> str:
        return self.call("exec", self.name, *command, check=check)

    def inspect(self, template: str) -> str:
        return self.call("inspect", "--format", template, self.name).strip()

    @property
    def log(self) -> list[dict[str, Any]]:
        """Every line parsed: one that is no JSON fails the test."""
        return [json.loads(line) for line in self.call("logs", self.name).splitlines()]

    @property
    def plan(self) -> dict[str, Any]:
        return json.loads(self.run_inside("cat", "/run/kit/plan.json"))

    def is_running(self) -> bool:
        return self.inspect("{{.State.Running}}") == "true"

    def is_healthy(self) -> bool:
        """What the health check finds; the engine itself looks every half minute only."""
        done = subprocess.run(
            [self.engine.name, "exec", self.name, "/opt/kit/docker/health.sh"],
            capture_output=True,
            check=False,
        )
        return done.returncode == 0

    def wait_until_healthy(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not self.is_healthy():
            assert self.is_running(), self.log[-1]
            assert time.monotonic() < deadline, self.log[-3:]
            time.sleep(2)

    def wait_for_end(self, seconds: float = READY_SECONDS) -> tuple[int, dict[str, Any]]:
        """Exit code, and the log's last line."""
        deadline = time.monotonic() + seconds
        while self.is_running():
            assert time.monotonic() < deadline, self.log[-3:]
            time.sleep(0.5)
        return int(self.inspect("{{.State.ExitCode}}")), self.log[-1]

    def read_listening(self) -> set[tuple[int, bool]]:
        """(port, whether beyond loopback) of its own range; the network is the machine's."""
        table = self.run_inside("sh", "-c", "cat /proc/net/tcp /proc/net/tcp6")
        listening = [line.split()[1] for line in table.splitlines() if line.split()[3:4] == ["0A"]]
        places = [entry.rsplit(":", 1) for entry in listening]
        ports = {(int(port, 16), int(host, 16) == 0) for host, port in places}
        return {(port, everywhere) for port, everywhere in ports if self.port <= port < self.port + 100}

    def read_rights(self) -> dict[str, set[str]]:
        """Of all its processes."""
        fields = [
            line.split() for line in self.run_inside("sh", "-c", "cat /proc/[0-9]*/status").splitlines()
        ]
        names = ("CapEff:", "CapBnd:", "NoNewPrivs:", "Seccomp:", "Uid:")
        return {name: {rest[0] for first, *rest in fields if first == name} for name in names}

    def read_token(self) -> str:
        """As a person gets it."""
        return self.run_inside("kit", "token").strip()

    def predict(
        self, model: str, body: bytes, token: str, content_type: str = "image/jpeg"
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=120)
        with contextlib.closing(connection):
            headers = {"Authorization": f"Bearer {token}", "Content-Type": content_type}
            connection.request("POST", f"/predictions/{model}", body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()


@contextlib.contextmanager
def start_container(
    engine: Engine,
    tag: str,
    name: str,
    port: int,
    arguments: Sequence[str],
    *,
    front: str = "none",
    extra: Sequence[str] = (),
) -> Iterator[Container]:
    """A container of `make image-run`'s own command, in the background and kept until the test is over."""
    options = ["run", "--tag", tag, "--name", name, "--network", "host", "--port", str(port)]
    command = render_run(engine.name, build_parser().parse_args([*options, "--front", front, *arguments]))
    command[command.index("--rm")] = "--detach"
    image = command.pop()
    subprocess.run([engine.name, "rm", "--force", "--volumes", name], capture_output=True, check=False)
    container = Container(engine=engine, name=name, port=port)
    try:
        done = subprocess.run([*command, *extra, image], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        yield container
    finally:
        subprocess.run([engine.name, "rm", "--force", "--volumes", name], capture_output=True, check=False)


@dataclass(kw_only=True)
class Load:
    """Closed-loop users who ask one model until they are told to end."""

    container: Container
    model: str
    body: bytes
    token: str
    users: int = 8
    answers: list[tuple[float, float, object]] = field(default_factory=list)
    """Begin, end, and the status or the name of the exception."""

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        ended = threading.Event()
        threads = [threading.Thread(target=self._ask, args=(ended,), daemon=True) for _ in range(self.users)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            for thread in threads:
                thread.join()

    def _ask(self, ended: threading.Event) -> None:
        while not ended.is_set():
            began = time.time()
            try:
                outcome: object = self.container.predict(self.model, self.body, self.token)[0]
            except (OSError, http.client.HTTPException) as problem:
                outcome = type(problem).__name__
            self.answers.append((began, time.time(), outcome))
            if outcome != 200:
                time.sleep(0.05)

    def count(self, before: float = float("inf"), since: float = 0.0) -> Counter[object]:
        """Outcomes of the requests begun in that time."""
        return Counter(outcome for began, _, outcome in self.answers if since <= began < before)


NO_RIGHTS = {
    "CapEff:": {"0" * 16},
    "CapBnd:": {"0" * 16},
    "NoNewPrivs:": {"1"},
    "Seccomp:": {"2"},
    "Uid:": {"10001"},
}


def write_secret(folder: Path, text: str) -> Path:
    """A token that the container's user can read; pytest's folders are closed to others."""
    file = folder / "token"
    file.write_text(text)
    for path in (file, folder, folder.parent):
        path.chmod(0o755)
    return file


def read_throttled(container: Container) -> dict[str, dict[str, float]]:
    """Of the container's own control group, in version 1 or 2."""
    files = ["/sys/fs/cgroup/cpu/cpu.stat", "/sys/fs/cgroup/cpu,cpuacct/cpu.stat", "/sys/fs/cgroup/cpu.stat"]
    text = container.run_inside("sh", "-c", f"cat {' '.join(files)} 2>/dev/null", check=False)
    return {"container": parse_stat(text)}


def own_port() -> int:
    return int(os.environ.get("KIT_PORT") or 18080)


def read_canary(store: Path, model: str = "resnet50") -> bytes:
    import zipfile

    with zipfile.ZipFile(store / f"{model}.mar") as archive:
        return archive.read(json.loads(archive.read("canary.json"))["file"])
