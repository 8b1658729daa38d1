"""Builds the image, starts containers of it as docs/docker.md says, and takes them away again.

By hand, by `make image-test`; in the environment IMAGE_TEST_ENGINE (docker or podman), IMAGE_TEST_BUILD
(options of a build, such as "--network host"), IMAGE_TEST_STORE (built archives), IMAGE_TEST_PORT.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shlex
import subprocess
import sys
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
STORE = ROOT / "run" / "test-store"
READY_SECONDS = 420
"""Four workers on two cores, with other work beside them."""
PORT = int(os.environ.get("IMAGE_TEST_PORT") or 18080)
NAME = "cpu-kit-test"
TOKEN = "a-token-made-for-the-tests"
HARDENED = ("--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--pids-limit=2048")
needs_two_cpus = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="this machine has one CPU")


@pytest.fixture(scope="session")
def engine() -> str:
    """What builds the image and runs containers."""
    name = os.environ.get("IMAGE_TEST_ENGINE") or "docker"
    try:
        done = subprocess.run([name, "info"], capture_output=True, text=True, check=False)
    except OSError as problem:
        pytest.skip(str(problem))
    if done.returncode:
        pytest.skip(f"{name} does not answer: {done.stderr.strip()[-300:]}")
    return name


def build(engine: str, tag: str, *arguments: str) -> str:
    """The image's name."""
    # Podman's own format has no health checks.
    words = [engine, "build", *(["--format", "docker"] if engine == "podman" else []), "--tag", tag]
    words += [
        "--file",
        "docker/Dockerfile",
        *shlex.split(os.environ.get("IMAGE_TEST_BUILD", "")),
        *arguments,
        ".",
    ]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return tag


@pytest.fixture(scope="session")
def tag(engine: str) -> str:
    return build(engine, "cpu-kit:test")


@pytest.fixture(scope="session")
def store(engine: str) -> Path:
    """ResNet50 and BERT as shipped, with random weights."""
    if os.environ.get("IMAGE_TEST_STORE"):
        return Path(os.environ["IMAGE_TEST_STORE"]).resolve()
    command = [sys.executable, "-m", "models", "build", "MODELS=resnet50 bert", "WEIGHTS=random"]
    command += ["--precisions", "bf16 int8", f"MODEL_STORE={STORE}"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=900)
    return STORE


@pytest.fixture(scope="session")
def photo(store: Path) -> bytes:
    with zipfile.ZipFile(store / "resnet50.mar") as archive:
        return archive.read(json.loads(archive.read("definition.json"))["example"]["file"])


@dataclass(frozen=True)
class Container:
    """One container, running or ended."""

    engine: str

    def call(self, *words: str, check: bool = True) -> str:
        """What it wrote, to both streams."""
        done = subprocess.run(
            [self.engine, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        assert done.returncode == 0 or not check, f"{words}: {done.stdout}"
        return done.stdout

    def run_inside(self, *command: str, check: bool = True) -> str:
        return self.call("exec", NAME, *command, check=check)

    def inspect(self, template: str) -> str:
        return self.call("inspect", "--format", template, NAME).strip()

    @property
    def log(self) -> str:
        return self.call("logs", NAME)

    @property
    def phase(self) -> str:
        return self.read_json("supervisor.json")["phase"]

    def read_json(self, file: str) -> dict[str, Any]:
        """Of the run directory; empty where there is no such file now."""
        return json.loads(self.run_inside("sh", "-c", f"cat /run/kit/{file} 2>/dev/null || echo {{}}"))

    def wait_for(self, happened: Callable[[], object], *, running: bool = True) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not happened():
            assert not running or self.inspect("{{.State.Running}}") == "true", self.log[-3000:]
            assert time.monotonic() < deadline, self.log[-3000:]
            time.sleep(1)

    def is_healthy(self) -> bool:
        """What the health check finds; the engine itself looks every half minute only."""
        return self.run_inside("/opt/kit/docker/health.sh", check=False) == "ready\n"

    def wait_for_end(self) -> tuple[int, str]:
        """Exit code and log."""
        self.wait_for(lambda: self.inspect("{{.State.Running}}") == "false", running=False)
        return int(self.inspect("{{.State.ExitCode}}")), self.log

    def verify(self) -> None:
        assert "verify: all " in self.run_inside("kit", "verify")

    def ask(self, path: str, body: bytes | None = None, token: str = "", kind: str = "") -> tuple[int, bytes]:
        """Status and body; POST where there is one to send. Without a token, that of the container."""
        token = token or self.run_inside("cat", "/run/kit/token").strip()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": kind or "image/jpeg"}
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", PORT, timeout=120)) as connection:
            connection.request("POST" if body else "GET", path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()


@contextlib.contextmanager
def start(engine: str, tag: str, store: Path, *options: str, **settings: str) -> Iterator[Container]:
    """In the background, on the machine's network, kept until the test is over."""
    words = [engine, "run", "--detach", f"--name={NAME}", "--network=host", *HARDENED, *options]
    words += [f"--volume={store}:/model-store:ro"] if any(store.glob("*.mar")) else []
    words += [f"--env=KIT_{name}={value}" for name, value in {"PORT": str(PORT), **settings}.items()]
    remove = [engine, "rm", "--force", "--volumes", NAME]
    subprocess.run(remove, capture_output=True, check=False)
    try:
        done = subprocess.run([*words, tag], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        yield Container(engine)
    finally:
        subprocess.run(remove, capture_output=True, check=False)


@contextlib.contextmanager
def serve(engine: str, tag: str, store: Path, *options: str, **settings: str) -> Iterator[Container]:
    """One that is healthy."""
    with start(engine, tag, store, *options, **settings) as container:
        container.wait_for(container.is_healthy)
        yield container


class Load:
    """Closed-loop users who ask ResNet50 until they are told to end."""

    def __init__(self, container: Container, body: bytes, users: int = 4) -> None:
        self.container, self.body, self.users = container, body, users
        self.token = container.run_inside("cat", "/run/kit/token").strip()
        self.answers: list[tuple[float, float, object]] = []
        """Begin, end, and the status or the name of the exception."""

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """From its first answers on."""
        ended = threading.Event()
        threads = [threading.Thread(target=self._ask, args=(ended,), daemon=True) for _ in range(self.users)]
        for thread in threads:
            thread.start()
        try:
            self.container.wait_for(lambda: self.count()[200] >= 10)
            yield
        finally:
            ended.set()
            for thread in threads:
                thread.join()

    def _ask(self, ended: threading.Event) -> None:
        while not ended.is_set():
            began = time.time()
            try:
                outcome: object = self.container.ask("/predictions/resnet50", self.body, self.token)[0]
            except (OSError, http.client.HTTPException) as problem:
                outcome = type(problem).__name__
            self.answers.append((began, time.time(), outcome))
            if outcome != 200:
                time.sleep(0.05)

    def count(self, before: float = float("inf")) -> Counter[object]:
        """Outcomes of the requests begun until then."""
        return Counter(outcome for began, _, outcome in self.answers if began < before)


def write_secret(folder: Path) -> Path:
    """A token that the container's user can read; pytest's folders are closed to others."""
    file = folder / "token"
    file.write_text(TOKEN)
    for path in (file, folder, folder.parent):
        path.chmod(0o755)
    return file
