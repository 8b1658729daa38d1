"""A real HAProxy with the rendered configuration, in front of fake instances, and a client that sees all."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from config.door import DoorFiles, list_variables, render_door
from config.plan import Plan
from config.rules.network import find_instance_socket
from server.haproxy import HaproxyError, Runtime
from tests.config.doors import plan_behind_door
from tests.config.planning import make_model
from tests.door.backends import Backend, Seen

HAPROXY = shutil.which("haproxy", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin")
TOKEN = "of-strangers"
MODEL = "resnet50"
PATH = f"/predictions/{MODEL}"

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a client got."""

    status: int
    """0 without one."""
    headers: dict[str, str]
    body: bytes
    seconds: float
    error: str = ""
    """What went wrong while sending or reading."""


class Door:
    """HAProxy and the instances behind it."""

    def __init__(self, plan: Plan, folder: Path, backends: dict[str, Backend]) -> None:
        self.plan, self.folder, self.instances = plan, folder, backends
        self.port = plan.inputs.port
        self.files = list_files(folder)
        self.log = folder / "haproxy.log"
        Path(self.files.bearers).write_text(f"Bearer {TOKEN}\n", encoding="utf-8")
        (folder / "haproxy.cfg").write_text(render_door(plan, self.files), encoding="utf-8")
        self.runtime = Runtime(Path(self.files.admin_socket))
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        assert HAPROXY
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [HAPROXY, "-db", "-f", str(self.folder / "haproxy.cfg")],
                env={**os.environ, **list_variables(self.plan)}, stdout=log, stderr=log,
            )  # fmt: skip
        # Its socket's file is there before anybody listens on it.
        wait_for(lambda: (self._answers() and can_connect(self.port)) or process.poll() is not None)
        assert process.poll() is None, self.log.read_text()
        return process

    def _answers(self) -> bool:
        with contextlib.suppress(HaproxyError):
            return bool(self.runtime.read_stats())
        return False

    def serve(self, *names: str) -> None:
        """These are well."""
        for name in names or self.instances:
            for model in self.plan.instances[name].models:
                self.runtime.set_serving(model, name, 1, 1)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), 30)

    def ask(
        self,
        body: bytes = b"x",
        *headers: str,
        path: str = PATH,
        method: str = "POST",
        token: str = TOKEN,
        deadline_ms: int = 0,
        bytes_per_s: int = 0,
    ) -> Answer:
        """One request on a connection of its own."""
        lines = [f"{method} {path} HTTP/1.1", "host: x", *headers]
        lines += [f"content-length: {len(body)}"] if body else []
        lines += [f"authorization: Bearer {token}"] if token else []
        lines += [f"x-deadline-ms: {deadline_ms}"] if deadline_ms else []
        head = ("\r\n".join(lines) + "\r\n\r\n").encode()
        began = time.monotonic()
        with self.connect() as connection:
            error = send(connection, head, body, bytes_per_s)
            answer = read_answer(connection)
        return replace(answer, seconds=time.monotonic() - began, error=error + answer.error)

    def list_seen(self) -> list[Seen]:
        """Predictions that came to instances, in their order."""
        seen = [one for backend in self.instances.values() for one in backend.requests]
        return sorted(seen, key=lambda one: one.at)

    def read_rss_mib(self, field: str = "VmHWM") -> int:
        """Resident memory of HAProxy, the most it ever had."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) >> 10 for line in lines if line.startswith(field))


def list_files(folder: Path) -> DoorFiles:
    return DoorFiles(
        sockets=str(folder),
        admin_socket=f"{folder}/admin.sock",
        supervisor_socket=f"{folder}/supervisor.sock",
        bearers=f"{folder}/bearers.lst",
        certificate=f"{folder}/door.pem",
    )


@contextlib.contextmanager
def open_door(
    change: Callable[[Plan], Plan] = lambda plan: plan,
    prepare: Callable[[Path], None] = lambda _: None,
    **asked,
) -> Iterator[Door]:
    """On free ports; `prepare` puts files into its folder; ends all it started."""
    with claim_ports() as port, tempfile.TemporaryDirectory(prefix="door-", dir="/tmp") as folder:
        asked = {"models": (make_model(MODEL),), "port": port, "batch": "8", "run_dir": folder, **asked}
        plan = change(plan_behind_door(**asked))
        backends = {name: Backend(name, find_instance_socket(plan.inputs, name)) for name in plan.instances}
        prepare(Path(folder))
        door = Door(plan, Path(folder), backends)
        try:
            yield door
        finally:
            door.end()
            for backend in backends.values():
                backend.die()


@contextlib.contextmanager
def claim_ports() -> Iterator[int]:
    """The first of 99 that no other door takes meanwhile: whoever listens on the hundredth has them all.

    Below those that outgoing connections get (32768 and up).
    """
    for port in range(21000, 32000, 100):
        if claim := _claim(port):
            with claim:
                yield port
            return
    raise AssertionError("no free ports")


def _claim(port: int) -> socket.socket | None:
    """None where one of them is in use."""
    try:
        for used in (port, port + 2):
            socket.create_server(("127.0.0.1", used)).close()
        return socket.create_server(("127.0.0.1", port + 99))
    except OSError:
        return None


def can_connect(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 10):
        return True
    return False


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """So long only where something hangs."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


@contextlib.contextmanager
def sending(count: int, act: Callable[[int], T]) -> Iterator[list[T]]:
    """What came back so far of what is sent together; all of it after the block."""
    done: list[T] = []
    load = threading.Thread(target=together, args=(count, act, done), daemon=True)
    load.start()
    yield done
    load.join()


def together(count: int, act: Callable[[int], T], done: list[T] | None = None) -> list[T]:
    done = [] if done is None else done
    threads = [threading.Thread(target=lambda n=n: done.append(act(n)), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    return done


def head_of(length: int) -> bytes:
    """Of a good request with a body so long."""
    head = f"POST {PATH} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n"
    return f"{head}content-length: {length}\r\n\r\n".encode()


def hold(door: Door) -> None:
    """Instances read what they get, and answer nothing."""
    for instance in door.instances.values():
        instance.answers.clear()


def let_go(door: Door) -> None:
    for instance in door.instances.values():
        instance.answers.set()


def send(connection: socket.socket, head: bytes, body: bytes, bytes_per_s: int = 0) -> str:
    """Why not all could be sent."""
    try:
        connection.sendall(head)
        step = bytes_per_s // 20 or len(body) or 1
        for start in range(0, len(body), step):
            connection.sendall(body[start : start + step])
            time.sleep(0.05 if bytes_per_s else 0)
    except OSError as problem:
        return str(problem)
    return ""


def read_answer(connection: socket.socket) -> Answer:
    """One, but for 100."""
    received, error = b"", ""
    try:
        while not _is_whole(received) and (part := connection.recv(1 << 16)):
            received += part
    except OSError as problem:
        error = str(problem)
    head, _, body = received.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    status = int(lines[0].split()[1]) if lines[0] else 0
    return Answer(status=status, headers=headers, body=body, seconds=0, error=error)


def _is_whole(received: bytes) -> bool:
    head, end, body = received.partition(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return len(body) >= int(line.split(b":")[1])
    return bool(end) and head.startswith(b"HTTP/1.1 100")
