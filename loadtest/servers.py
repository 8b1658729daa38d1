"""The servers that are compared: the kit's with a plan of its own, and TorchServe as it comes.

Each lives in a run directory of its own, so that several can be up at once; those that are not
measured are halted (SIGSTOP), and cost no CPU.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from config.__main__ import USAGE_ERROR
from config.plan import PLAN_FILE, Plan, read_plan
from loadtest.errors import LoadTestError, RefusedError
from loadtest.stock import IMAGES, Stock, render_stock_properties
from server.api import INFERENCE, Client
from server.errors import ApiError
from server.processes import find_marked
from server.rundir import MARK, RunDir
from server.state import read_failure
from server.stop import stop
from server.verify.describing import collect_descriptions

ROOT = Path(__file__).parent.parent
START_SECONDS = 300


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server that is up."""

    name: str
    run: RunDir
    port: int
    model: str

    @property
    def client(self) -> Client:
        return Client(
            inference_url=f"http://127.0.0.1:{self.port}",
            management_url=f"http://127.0.0.1:{self.port + 1}",
            key_file=self.run.key_file,
        )

    @property
    def url(self) -> str:
        return f"{self.client.inference_url}/predictions/{self.model}"

    @property
    def token(self) -> str:
        return self.client.token(INFERENCE)

    @property
    def plan(self) -> Plan:
        """What the kit planned; the stock server has no plan."""
        return read_plan(self.run.plan)

    def list_workers(self, model: str = "") -> list[int]:
        """Process ids of the model's workers."""
        workers = self.client.describe(model or self.model).get("workers", [])
        return sorted(int(worker["pid"]) for worker in workers)

    def describe_workers(self, model: str = "") -> list[dict[str, Any]]:
        """Every worker's own account of what is in effect; LoadTestError when one gives none."""
        pids = self.list_workers(model)
        answers, problem = collect_descriptions(model or self.model, self.client, set(pids))
        if set(answers) != set(pids):
            raise LoadTestError(f"{self.name}: not every worker could be described: {problem}")
        return [answers[pid] for pid in pids]

    @contextlib.contextmanager
    def resumed(self) -> Iterator[None]:
        """Let it run for a while."""
        self.resume()
        try:
            yield
        finally:
            self.halt()

    def halt(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for process in find_marked(self.run.path):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)


@contextlib.contextmanager
def kit_server(name: str, folder: Path, *, port: int, model: str, arguments: list[str]) -> Iterator[Server]:
    """The kit planned with `arguments` of `python -m config` and verified by its start.

    `model` may name several, with blanks between; then none is the server's own.
    """
    server = Server(name=name, run=RunDir.at(folder), port=port, model=model)
    where = ["--run-dir", str(folder)]
    write_plan(folder, port=port, model=model, arguments=arguments)
    try:
        _start(server, where)
        yield server
    finally:
        server.resume()
        stop(server.run)


def _start(server: Server, where: list[str]) -> None:
    try:
        _call(["server", "start", *where])
    except LoadTestError as problem:
        failure = read_failure(server.run.failure)
        if failure is None:
            raise
        where_it_failed = f"{failure.step}: " if failure.step else ""
        raise RefusedError(str(problem), where_it_failed + failure.cause) from problem


def write_plan(folder: Path, *, port: int, model: str, arguments: list[str]) -> Plan:
    """Plan into a run directory, and start nothing."""
    _call(["config", "--models", model, "--port", str(port), "--run-dir", str(folder), *arguments])
    return read_plan(folder / PLAN_FILE)


def _call(arguments: list[str]) -> None:
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=START_SECONDS, check=False
    )
    if done.returncode == 0:
        return
    message = f"python -m {' '.join(arguments)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    if arguments[0] == "config" and done.returncode == USAGE_ERROR:
        raise RefusedError(message, done.stderr.strip().removeprefix("config: "))
    raise LoadTestError(message)


@contextlib.contextmanager
def stock_server(
    folder: Path, *, port: int, archive: Path, stock: Stock = IMAGES, name: str = "stock TorchServe"
) -> Iterator[Server]:
    """TorchServe 0.12 as it comes, eager FP32, with a model of the kit's archive."""
    run = RunDir.at(folder)
    run.path.mkdir(parents=True, exist_ok=True)
    server = Server(name=name, run=run, port=port, model=stock.model)
    stock.build(archive, run.path, stock.model)
    run.properties.write_text(render_stock_properties(run.path, port, stock), encoding="utf-8")
    run.temporary.mkdir(exist_ok=True)
    try:
        _launch(run)
        _wait(server)
        yield server
    finally:
        server.resume()
        stop(run)


def _launch(run: RunDir) -> None:
    prefix = Path(sys.executable).parent
    command = [str(prefix / "torchserve"), "--start", "--foreground", "--no-config-snapshots"]
    command += ["--ts-config", str(run.properties), "--model-store", str(run.path)]
    temporary = {"TMPDIR": str(run.temporary), "TEMP": str(run.temporary)}
    path = f"{prefix}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    with (run.path / "console.log").open("wb") as console:
        subprocess.Popen(
            command,
            cwd=run.path,
            env={**os.environ, "PATH": path, MARK: str(run.path), **temporary},
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _wait(server: Server) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(ApiError):
            workers = server.client.describe(server.model).get("workers", [])
            if workers and all(worker["status"] == "READY" for worker in workers):
                return
        time.sleep(0.5)
    raise LoadTestError(
        f"{server.name} was not ready within {START_SECONDS} s; see {server.run.path}/console.log"
    )
