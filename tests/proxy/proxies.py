"""A real HAProxy with the rendered configuration, in front of fake instances, and a client that sees all."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from config.plan import INSTANCES_FOLDER, PROXY_FILE, Plan
from config.proxy import ProxyFiles, find_socket, list_variables
from config.render import render_proxy
from server.haproxy import HaproxyError, Runtime
from tests.plans import make_instance, make_model, make_plan, make_proxy
from tests.proxy.backends import Backend, Seen

HAPROXY = shutil.which("haproxy", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin")
TOKEN = "of-clients"
MODEL = "resnet50"
PATH = f"/predictions/{MODEL}"
FOREIGN = "old"

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a client got."""

    status: int = 0
    """0 without one."""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    seconds: float = 0
    error: str = ""
    """What went wrong while sending or reading."""


class Proxy:
    """HAProxy and the instances behind it."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.folder, self.port = plan, Path(plan.run_dir), plan.proxy.port
        self.files = ProxyFiles.of(self.folder)
        self.log = self.folder / "haproxy.log"
        self.instances = {name: Backend(name, self.find_socket(name)) for name in plan.instances}
        write_files(plan)
        self.runtime = Runtime(Path(self.files.admin_socket))
        self.process = self._start()

    def find_socket(self, instance: str) -> str:
        return find_socket(self.folder / INSTANCES_FOLDER / instance, "inference")

    def _start(self) -> subprocess.Popen[bytes]:
        assert HAPROXY
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [HAPROXY, "-db", "-f", str(self.folder / PROXY_FILE)],
                env={**os.environ, **list_variables(self.plan)}, stdout=log, stderr=log,
            )  # fmt: skip
        wait_for(lambda: self._is_up() or process.poll() is not None)
        assert process.poll() is None, self.log.read_text()
        return process

    def _is_up(self) -> bool:
        """The runtime socket's file is there before HAProxy listens on it."""
        with contextlib.suppress(HaproxyError, OSError):
            self.connect().close()
            return bool(self.runtime.read_stats())
        return False

    def serve(self, *names: str) -> None:
        """Requests may go to these."""
        for name in names:
            for model in self.plan.instances[name].models if name in self.plan.instances else ():
                self.runtime.set_serving(model, name, 1, 1)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for instance in self.instances.values():
            instance.die()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), 30)

    def ask(
        self, body: bytes = b"x", *headers: str, deadline_ms: int = 0, bytes_per_s: int = 0, **asked: str
    ) -> Answer:
        """One request on a connection of its own; `asked`: as of head_of."""
        lines = [*headers, f"x-deadline-ms: {deadline_ms}"] if deadline_ms else headers
        began = time.monotonic()
        with self.connect() as connection:
            error = send(connection, head_of(len(body) or None, *lines, **asked), body, bytes_per_s)
            answer = read_answer(connection)
        return replace(answer, seconds=time.monotonic() - began, error=error + answer.error)

    def set_all(self, **values: Any) -> None:
        """What the instances do from now on: mode, delay_s."""
        for instance in self.instances.values():
            vars(instance).update(values)

    def hold(self) -> None:
        """Instances read what they get, and answer nothing."""
        for instance in self.instances.values():
            instance.answers.clear()

    def let_go(self) -> None:
        for instance in self.instances.values():
            instance.answers.set()

    def count_queued(self) -> int:
        return self.runtime.read_stats()[MODEL].queued

    def list_seen(self) -> list[Seen]:
        """Predictions that came to instances, in their order."""
        seen = [one for backend in self.instances.values() for one in backend.requests]
        return sorted(seen, key=lambda one: one.at)

    def read_rss_mib(self, field: str = "VmHWM") -> int:
        """Resident memory of HAProxy, the most it ever had."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) >> 10 for line in lines if line.startswith(field))


def plan_proxy(
    folder: Path | str, instances: int = 2, foreign: bool = False, model: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Plan:  # fmt: skip
    """Instances with one kit model; `model`: values of it, `changes`: of ProxyPlan; `foreign`: one instance
    more, with two versions of an archive that others made."""
    served = {MODEL: make_model(MODEL, **{"maxconn": 16, **(model or {})})}
    planned = {f"a{number}": make_instance(number, served) for number in range(1, instances + 1)}
    if foreign:
        archives = {"1.0": "/archives/old.mar", "2.0 b": "/archives/new er.mar"}
        values = {"kit": False, "archives": archives, "version": "2.0 b", "backend": "", "precision": ""}
        old = {FOREIGN: make_model(FOREIGN, **values, limits={})}
        planned[f"a{instances + 1}"] = make_instance(instances + 1, old, kit=False)
    return replace(make_plan(run_dir=folder, proxy=make_proxy(**changes)), instances=planned)


def write_files(plan: Plan) -> None:
    """What HAProxy reads, in the plan's run directory."""
    files = ProxyFiles.of(Path(plan.run_dir))
    Path(files.sockets).mkdir(mode=0o700, exist_ok=True)
    Path(files.bearers).write_text(f"Bearer {TOKEN}\n", encoding="utf-8")
    Path(plan.run_dir, PROXY_FILE).write_text(render_proxy(plan), encoding="utf-8")


@contextlib.contextmanager
def open_proxy(
    *serving: str, prepare: Callable[[ProxyFiles], None] = lambda _: None, **changes: Any
) -> Iterator[Proxy]:
    """On free ports, for plan_proxy's `changes`; `serving`: instances that get requests, by default all;
    `prepare` adds files; ends all it started."""
    with claim_ports() as port, tempfile.TemporaryDirectory(prefix="proxy-", dir="/tmp") as folder:
        plan = plan_proxy(folder, **{"port": port, "metrics_port": port + 2, **changes})
        prepare(ProxyFiles.of(Path(folder)))
        proxy = Proxy(plan)
        try:
            proxy.serve(*serving or proxy.instances)
            yield proxy
        finally:
            proxy.end()


@contextlib.contextmanager
def claim_ports() -> Iterator[int]:
    """The first of 99 that no other test takes meanwhile: whoever listens on the hundredth has them all.
    Below those of outgoing connections (32768 and up)."""
    for port in range(21000, 32000, 100):
        with contextlib.suppress(OSError):
            for used in (port, port + 2):
                socket.create_server(("127.0.0.1", used)).close()
            claim = socket.create_server(("127.0.0.1", port + 99))
            break
    with claim:
        yield port


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
    with ThreadPoolExecutor(count) as pool:
        for number in range(count):
            pool.submit(lambda n=number: done.append(act(n)))
        yield done


def together(count: int, act: Callable[[int], T]) -> list[T]:
    with sending(count, act) as done:
        pass
    return done


def head_of(
    length: int | None, *headers: str, path: str = PATH, method: str = "POST", token: str = TOKEN
) -> bytes:
    """Of a request with a body so long; None: the headers say that, or there is no body."""
    lines = [f"{method} {path} HTTP/1.1", "host: x", *headers]
    lines += [f"authorization: Bearer {token}"] if token else []
    lines += [] if length is None else [f"content-length: {length}"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


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
    response = http.client.HTTPResponse(connection)
    try:
        response.begin()
        headers = {name.lower(): value for name, value in response.getheaders()}
        return Answer(status=response.status, headers=headers, body=response.read())
    except (OSError, http.client.HTTPException) as problem:
        return Answer(error=repr(problem))
