"""What the server's tests share: recordings, a fake /proc, a fake TorchServe, archives, dummies."""

from __future__ import annotations

import dataclasses
import hashlib
import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from config.plan import Plan
from handlers.definition import Definition, render_definition
from server.processes import Process, read_process
from server.rundir import MARK, RunDir
from server.state import State, write_state

RECORDED = Path(__file__).parent / "recorded"


def with_model(plan: Plan, model: str, **values: Any) -> Plan:
    """The plan with other values of one model, in all instances."""
    return dataclasses.replace(
        plan,
        instances={
            name: dataclasses.replace(
                one, models={**one.models, model: dataclasses.replace(one.models[model], **values)}
            )
            for name, one in plan.instances.items()
        },
    )


CLOSE = {"answer_relative": 0.01, "answer_absolute": 0.001}


def make_archive(
    file: Path,
    *,
    name: str = "echo",
    note: str = "a stand-in",
    text: str = "hello",
    source: str = "random",
    **described: Any,
) -> Path:
    """An archive of our format, without a model in it; another note gives it another id."""
    expected = {"label": "good", "probabilities": {"good": 0.75, "bad": 0.25}}
    described = {
        "name": name,
        "weights": "random (seed 0)",
        "notes": [note],
        "example": {"file": "example.txt", "content_type": "text/plain", "expected": expected},
        "precisions": {"fp32": {**CLOSE, "self_check_relative_error": 0.001}},
        "origin": {"source": source, "path": "", "files": ""},
        "built_with": {"torch": version("torch")},
        **described,
    }
    empty = {"handler": "", "batch_sizes": [1], "model": {}, "inputs": ""}
    definition = Definition(**{**empty, **described})
    members = {"definition.json": render_definition(definition).encode(), "example.txt": text.encode()}
    sums = "".join(f"{hashlib.sha256(body).hexdigest()}  {name}\n" for name, body in members.items())
    with zipfile.ZipFile(file, "w") as archive:
        for member, body in {**members, "SHA256SUMS": sums.encode()}.items():
            archive.writestr(member, body)
    return file


def write_running(run: RunDir, phase: str, **values: Any) -> None:
    """server.json of a server that was started from the plan that is there, unless `values` differ."""
    digest = hashlib.sha256(run.plan.read_bytes()).hexdigest()
    known = {"plan_sha256": digest, "started_at": "now", **values}
    write_state(run.state, State(phase=phase, **known))


class Clock:
    """Time that passes only when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class FakeProc:
    """A /proc of text files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._set_mounts("self", "mnt:[1]")

    def add(
        self,
        pid: int,
        *,
        command: tuple[str, ...] = ("sleep", "1"),
        parent: int = 1,
        start: int = 100,
        state: str = "S",
        environment: dict[str, str] | None = None,
        mounts: str = "mnt:[1]",
    ) -> Path:
        """One process; its folder."""
        folder = self.path / str(pid)
        folder.mkdir(parents=True)
        # The name holds a blank and a bracket, as a program's may.
        fields = ["0"] * 50
        fields[0], fields[1], fields[19] = state, str(parent), str(start)
        (folder / "stat").write_text(f"{pid} (a name) b) {' '.join(fields)}\n")
        (folder / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in command))
        pairs = [f"{name}={value}".encode() + b"\0" for name, value in (environment or {}).items()]
        (folder / "environ").write_bytes(b"".join(pairs))
        self._set_mounts(str(pid), mounts)
        return folder

    def _set_mounts(self, pid: str, mounts: str) -> None:
        folder = self.path / pid / "ns"
        folder.mkdir(parents=True)
        (folder / "mnt").symlink_to(mounts)

    def add_thread(self, pid: int, thread: int, cpus: str) -> None:
        """One thread of a process."""
        folder = self.path / str(pid) / "task" / str(thread)
        folder.mkdir(parents=True)
        (folder / "status").write_text(f"Name:\tpython\nCpus_allowed:\t3\nCpus_allowed_list:\t{cpus}\n")


class FakeTorchServe:
    """Answers like TorchServe: `routes` maps "GET /models/x" to (status, body) or a function giving it."""

    def __init__(self) -> None:
        self.routes: dict[str, Any] = {}
        self.requests: list[tuple[str, str, bytes]] = []
        self.url = ""
        self.largest_request = 16 << 20

    def answer(self, method: str, path: str, token: str, body: bytes) -> tuple[int, Any]:
        """(status, body) of one request."""
        self.requests.append((f"{method} {path}", token, body))
        answer = self.routes.get(f"{method} {path}", (404, {"code": 404, "message": "not found"}))
        return answer() if callable(answer) else answer


@contextmanager
def serve_fake() -> Iterator[FakeTorchServe]:
    """A fake TorchServe on a free port; one address plays inference and management."""
    fake = FakeTorchServe()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if "Expect" in self.headers:  # as netty does: by the announced size alone
                fits = int(self.headers["Content-Length"]) <= fake.largest_request
                self.send_response_only(100 if fits else 413)
                self.end_headers()
                return
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            token = self.headers.get("Authorization", "")
            status, answer = fake.answer(self.command, self.path, token, body)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(answer if isinstance(answer, bytes) else json.dumps(answer).encode())

        do_POST = do_GET  # noqa: N815 - the name is http.server's

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.handle_error = lambda *_: None  # type: ignore[method-assign]  # who gives up is expected
        fake.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield fake
        server.shutdown()


@contextmanager
def answer_once(server: socket.socket, answer: bytes) -> Iterator[list[bytes]]:
    """Says this to whoever calls first, whatever was asked, and hangs up; what it was sent."""
    sent: list[bytes] = []

    def serve() -> None:
        with suppress(OSError):
            connection, _ = server.accept()
            with connection:
                sent.append(connection.recv(4096))
                connection.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield sent
    thread.join()


SLEEP = "import time; time.sleep(60)"
IGNORE_TERM = (
    f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); {SLEEP}"
)


def start_dummy(run: Path | str, *words: str, code: str = SLEEP) -> subprocess.Popen[bytes]:
    """A real process with the mark of a run directory; `words` stand in its command line."""
    environment = {**os.environ, MARK: str(run)}
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words], env=environment, stdout=subprocess.PIPE, start_new_session=True
    )
    return shown(process)


def shown(process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    """Popen returns at exec(), a moment before the kernel shows the new environment and command line."""
    wait_for(Path(f"/proc/{process.pid}/environ").read_bytes)
    wait_for(Path(f"/proc/{process.pid}/cmdline").read_bytes)
    return process


def start_orphan(run: Path | str) -> Process:
    """A real marked process whose parent has ended, so that it hangs under another one."""
    inner = [sys.executable, "-c", SLEEP]
    code = f"import subprocess; print(subprocess.Popen({inner!r}).pid, flush=True)"
    parent = start_dummy(run, code=code)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.wait(60)
    return wait_for(lambda: _read_adopted(pid, parent.pid))


def _read_adopted(pid: int, parent: int) -> Process | None:
    process = read_process(pid)
    return process if process and process.parent_pid != parent and process.command else None


def wait_for(look: Callable[[], Any], seconds: float = 60.0) -> Any:
    """The first thing found, or an error."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"nothing within {seconds} s")
