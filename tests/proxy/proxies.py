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
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from config.plan import INSTANCES_FOLDER, PROXY_FILE, Plan
from config.proxy import ProxyFiles, find_socket, list_variables
from config.render import render_proxy
from server.haproxy import HaproxyError, Runtime, Stat
from server.supervisor.requests import parse_line
from tests.plans import make_instance, make_model, make_plan, make_proxy
from tests.proxy.backends import Backend, Seen

TOKEN = "of-clients"
MODEL, FOREIGN = "resnet50", "old"
PATH = f"/predictions/{MODEL}"
PHOTO = b"x" * 300_000


class Answer(NamedTuple):
    """What a client got; without a status it was nothing."""

    status: int = 0
    headers: Mapping[str, str] = {}
    body: bytes = b""
    seconds: float = 0


class Proxy:
    """HAProxy and the instances behind it."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.folder, self.port = plan, Path(plan.run_dir), plan.proxy.port
        self.files, self.log = ProxyFiles.of(self.folder), self.folder / "haproxy.log"
        self.instances = {name: self.open_instance(name) for name in plan.instances}
        self.runtime = Runtime(Path(self.files.admin_socket))
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(**call_haproxy(plan), stdout=log, stderr=log)
        wait_for(self._is_up)

    def open_instance(self, name: str) -> Backend:
        return Backend(name, find_socket(self.folder / INSTANCES_FOLDER / name, "inference"))

    def _is_up(self) -> bool:
        """The runtime socket's file is there before HAProxy listens on it."""
        assert self.process.poll() is None, self.log.read_text()
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

    def ask(self, body: bytes = b"x", *headers: str, deadline_ms: int = 0, **asked: str) -> Answer:
        """One request on a connection of its own; `asked`: as of head_of."""
        lines = [*headers, f"x-deadline-ms: {deadline_ms}"] if deadline_ms else headers
        return self.exchange(head_of(len(body) or None, *lines, **asked), body)

    def exchange(self, *parts: bytes) -> Answer:
        """The first answer to bytes as they are, as far as they can be sent."""
        began = time.monotonic()
        with self.connect() as connection:
            with contextlib.suppress(OSError):
                for part in parts:
                    connection.sendall(part)
            return read_answer(connection)._replace(seconds=time.monotonic() - began)

    def asking(self, count: int, body: bytes = b"x", **asked: Any) -> Sending:
        """Statuses of what is sent together."""
        return sending(count, lambda _: self.ask(body, **asked).status)

    def set_all(self, **values: Any) -> None:
        """What the instances do from now on."""
        for instance in self.instances.values():
            instance.set(**values)

    @property
    def stat(self) -> Stat:
        return self.runtime.read_stats()[MODEL]

    def list_reasons(self, count: int) -> list[tuple[int, str]]:
        """Status and reason of so many requests, as the lines of their first hop have them; sorted."""
        found: list[tuple[int, str]] = []

        def read() -> bool:
            lines = [*filter(None, map(parse_line, self.log.read_text().splitlines()))]
            found[:] = sorted((line.status, line.reason) for line in lines if not line.second)
            return len(found) >= count

        wait_for(read)
        return found

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


def call_haproxy(plan: Plan, *options: str, text: str = "") -> dict[str, Any]:
    """How subprocess starts it, with what it reads in the run directory; `text`: another configuration."""
    program = shutil.which("haproxy", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin")
    if program is None:
        pytest.skip("HAProxy is not installed (apt install haproxy)")
    files, file = ProxyFiles.of(Path(plan.run_dir)), Path(plan.run_dir, PROXY_FILE)
    Path(files.sockets).mkdir(mode=0o700, exist_ok=True)
    Path(files.bearers).write_text(f"Bearer {TOKEN}\n", encoding="utf-8")
    file.write_text(text or render_proxy(plan), encoding="utf-8")
    return {
        "args": [program, *options, "-db", "-f", str(file)],
        "env": {**os.environ, **list_variables(plan)},
    }


@contextlib.contextmanager
def open_proxy(*serving: str, certificate: str = "", **changes: Any) -> Iterator[Proxy]:
    """On free ports, for plan_proxy's `changes`; `serving`: instances that get requests, by default all."""
    with claim_ports() as port, tempfile.TemporaryDirectory(prefix="proxy-", dir="/tmp") as folder:
        Path(ProxyFiles.of(Path(folder)).certificate).write_text(certificate, encoding="utf-8")
        proxy = Proxy(plan_proxy(folder, **{"port": port, "metrics_port": port + 2, **changes}))
        try:
            proxy.serve(*serving or proxy.instances)
            yield proxy
        finally:
            proxy.end()


def planned(*serving: str, **changes: Any) -> pytest.MarkDecorator:
    """For tests whose `proxy` is another one: by open_proxy, with these."""
    return pytest.mark.parametrize("proxy", [(serving, changes)], indirect=True, ids=["planned"])


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


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """So long only where something hangs."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


Sending = contextlib.AbstractContextManager[list[Any]]


@contextlib.contextmanager
def sending(count: int, act: Callable[[int], Any]) -> Iterator[list[Any]]:
    """What came back so far of what is sent together; all of it after the block."""
    done: list[Any] = []
    with ThreadPoolExecutor(count) as pool:
        for number in range(count):
            pool.submit(lambda n=number: done.append(act(n)))
        yield done


def head_of(
    length: int | None, *headers: str, path: str = PATH, method: str = "POST", token: str = TOKEN
) -> bytes:
    """Of a request with a body so long; None: the headers say that, or there is no body."""
    lines = [f"{method} {path} HTTP/1.1", "host: x", *headers]
    lines += [f"authorization: Bearer {token}"] if token else []
    lines += [] if length is None else [f"content-length: {length}"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def read_answer(connection: socket.socket) -> Answer:
    """One, but for 100."""
    response = http.client.HTTPResponse(connection)
    with contextlib.suppress(OSError, http.client.HTTPException):
        response.begin()
        headers = {name.lower(): value for name, value in response.getheaders()}
        return Answer(status=response.status, headers=headers, body=response.read())
    return Answer()
