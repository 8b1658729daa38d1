"""A server under test: how it is brought up, where requests go, and what is known of who answers."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from config.errors import ConfigError
from config.plan import Plan, read_plan
from handlers.backends.catalogue import name_variant
from loadtest.drivers import ROOT, Outcome
from loadtest.errors import LoadTestError
from loadtest.load import Load
from loadtest.payloads import Payload
from server.api import Client, make_client
from server.archives import read_archive
from server.errors import ApiError, ServerError
from server.ports import inference_url
from server.processes import find_marked, send_signal
from server.rundir import RunDir
from server.state import read_record
from server.verify import DIFFERS
from server.verify.collect import collect_descriptions

USERS_WITHOUT_PLAN = 16
"""`auto` users where no plan says how many fill the batches."""
VERIFY_SECONDS = 300
PORT_STEP, PLACES = 100, 60
"""Of a whole experiment: none gets the ports of one that is still up."""
UNKNOWN = "unknown"


@dataclass(kw_only=True)
class Testbed:
    """Where servers are brought up."""

    store: Path
    """Folder with the archives."""
    folder: Path
    """For run directories and variants; gone when the command ends."""
    first_port: int
    say: Callable[[str], None]
    _places: int = 0

    def place(self, kind: str) -> tuple[Path, int]:
        """A run directory and a port of its own, and as many after it as a proxy and its instances take."""
        self._places += 1
        folder = self.folder / f"{kind}-{self._places}"
        folder.mkdir(parents=True)
        return folder, self.first_port + self._places % PLACES * PORT_STEP


@dataclass(frozen=True, kw_only=True)
class Server:
    """One that can be brought up; nothing runs yet."""

    name: str
    """Tells the servers of an experiment apart."""
    open: Callable[[Testbed], contextlib.AbstractContextManager[Running]]
    memory_mib: int = 0
    """That it takes once it is up, where it is known; servers of one block are up together."""
    prepare: Callable[[Running], None] | None = None
    """Before it is measured for the first time."""


class Runner(Protocol):
    """Takes a load itself, instead of Locust or ab: the handler with no server around it."""

    def run(self, load: Load, payloads: list[Payload], folder: Path) -> Outcome:
        """As a driver would."""


@dataclass(frozen=True, kw_only=True)
class Running:
    """A server that is up. Nothing of it changes while it is measured."""

    name: str
    models: tuple[str, ...] = ()
    """That it serves; empty where nobody knows."""
    url: str = ""
    """http://host:port of predictions; empty without a server."""
    path: str = ""
    """Of the URL that predictions are asked at; empty: TorchServe's own, by the model's name."""
    run: RunDir | None = None
    """Its path marks the processes; None for a server that is not ours."""
    plan: Plan | None = None
    """None for one that was not planned by the kit."""
    archives: Mapping[str, Path] = field(default_factory=dict)
    """Model → the kit's archive that its weights come from."""
    how: str = ""
    """What it is, in a few words."""
    least_agreement: float = 0.95
    """With the labels of eager FP32; a baseline with another preprocessing states its own."""
    runner: Runner | None = None
    """Set where there is no server."""
    wrap: Callable[[Payload], Payload] | None = None
    """The form in which it takes payloads, where that is not TorchServe's."""
    start_s: float | None = None
    """From the birth of the first worker's process to the last right smoke request; None where unknown."""

    def adapt(self, payload: Payload) -> Payload:
        """As it is sent here."""
        wrapped = self.wrap(payload) if self.wrap else payload
        return replace(wrapped, path=self.path) if self.path else wrapped

    @property
    def is_kit(self) -> bool:
        """Whether the kit's handler answers in it."""
        return self.plan is not None

    @property
    def has_api(self) -> bool:
        """Whether it is TorchServe, and ours to ask."""
        return self.run is not None and self.runner is None and not self.path

    @property
    def client(self) -> Client:
        """Of a server of ours."""
        assert self.run is not None
        if self.plan is not None:
            return make_client(self.plan, self.run)
        host, _, port = self.url.rpartition(":")
        return Client(inference_url=self.url, management_url=f"{host}:{int(port) + 1}")

    def precision(self, model: str) -> str:
        return (self.plan and self.plan.models[model].precision) or UNKNOWN

    def variant(self, model: str) -> str:
        """Backend and precision, as archives name what was validated."""
        one = self.plan and self.plan.models[model]
        return name_variant(one.backend, one.precision) if one and one.kit else UNKNOWN

    def accuracy(self, model: str) -> Mapping[str, Any] | None:
        """What the accuracy gate saw at build of the precision served; None for FP32, its reference."""
        archive = self.archives.get(model)
        return (
            None if archive is None else read_archive(archive).definition.find_accuracy(self.variant(model))
        )

    def auto_users(self, models: tuple[str, ...]) -> int:
        """Twice as many as fill a batch in every worker: one is computed while the next one gathers."""
        if self.plan is None:
            return USERS_WITHOUT_PLAN
        plan = self.plan
        return sum(2 * plan.count_workers(model) * plan.models[model].batch_size for model in models)

    def token(self) -> str:
        """Of the inference API; empty where none is needed."""
        return self.client.token() if self.has_api else ""

    def list_workers(self) -> dict[str, list[int]]:
        """Model → process ids of its workers; empty where nobody can tell."""
        if not self.has_api:
            return {}
        return {
            model: sorted(int(one["pid"]) for one in self.client.describe(model).get("workers", []))
            for model in self.models
        }

    def describe_workers(self, *, profile: str = "") -> list[dict[str, Any]]:
        """Every kit worker's own account of what is in effect; LoadTestError when one gives none.

        `profile` asks each to look at its next runs, or for what it saw (handlers/shared/profiling.py).
        """
        if not (self.has_api and self.is_kit):
            return []
        found = []
        for model, pids in self.list_workers().items():
            answers, problem = collect_descriptions(model, self.client, set(pids), profile=profile)
            if set(answers) != set(pids):
                raise LoadTestError(f"{self.name}: not every worker could be described: {problem}")
            found += [answers[pid] for pid in pids]
        return found

    def list_causes(self) -> tuple[str, ...]:
        """Why its supervisor started parts again, the last few; none where there is no supervisor."""
        record = read_record(self.run.record) if self.run else None
        parts = {"proxy": record.proxy, **record.instances} if record else {}
        return tuple(f"{name}: {one.cause}" for name, part in parts.items() for one in part.causes)

    def verify(self) -> dict[str, Any] | None:
        """Whether `make verify` passed, and what differs; None where there is no plan to compare with."""
        if not (self.has_api and self.is_kit):
            return None
        assert self.run is not None
        where = ["FORMAT=json", f"RUN_DIR={self.run.path}"]
        done = subprocess.run(
            [sys.executable, "-m", "server", "verify", *where],
            cwd=ROOT, capture_output=True, text=True, timeout=VERIFY_SECONDS, check=False,
        )  # fmt: skip
        try:
            said = dict(json.loads(done.stdout))
            return {
                "good": said["passed"],
                "findings": [row for row in said["rows"] if row["state"] == DIFFERS],
            }
        except (ValueError, KeyError):
            return {"good": False, "findings": [], "error": done.stderr.strip()[-500:]}

    def halt(self) -> None:
        """Stop its processes: they keep their memory and cost no CPU. A foreign server is left alone."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        """Who watches over the others stops first and goes on last: it must never see them stopped."""
        found = find_marked(self.run.path) if self.run else []
        watching_last = sorted(found, key=lambda one: one.is_supervisor)
        for process in watching_last if number == signal.SIGCONT else reversed(watching_last):
            send_signal(process, number)

    @contextlib.contextmanager
    def resumed(self, halted: bool = True) -> Iterator[None]:
        """Let a halted server run for a while; one that runs anyway is left alone."""
        if halted:
            self.resume()
        try:
            yield
        finally:
            if halted:
                self.halt()


def wait_until(running: Running, is_ready: Callable[[], bool], seconds: float) -> None:
    """LoadTestError with the end of its console.log when it is not ready by then."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(ApiError, OSError):  # it does not answer yet
            if is_ready():
                return
        time.sleep(0.5)
    assert running.run is not None
    log = running.run.path / "console.log"
    said = log.read_text(encoding="utf-8", errors="replace")[-1500:]
    raise LoadTestError(f"{running.name} was not ready within {seconds:g} s; see {log}:\n{said}")


def make_running(name: str, run: RunDir, plan: Plan, *, how: str) -> Running:
    """The kit's server of a run directory, up or soon to be."""
    return Running(
        name=name,
        models=tuple(plan.models),
        url=inference_url(plan),
        run=run,
        plan=plan,
        archives={
            model: Path(plan.model_store) / one.archives[one.version]
            for model, one in plan.models.items()
            if one.kit
        },
        how=how,
    )


def find_running(run_dir: str, name: str = "") -> Running:
    """The kit's server of a run directory, which must be up."""
    run = RunDir.at(run_dir)
    try:
        plan = read_plan(run.plan)
        make_client(plan, run).describe(next(iter(plan.models)))
    except (ConfigError, ServerError) as problem:
        raise LoadTestError(
            f"no server answers from {run_dir}: {problem}; run `make serve` first"
        ) from problem
    # A result may go to others: its figures name the folder, not where it lies.
    return make_running(name or run.path.name, run, plan, how="the kit's server, as it runs")


def running_server(where: str, name: str = "") -> Server:
    """One that is up, by its run directory or its URL: nothing is started or stopped, and it goes on behind.

    A URL may have a path, which is then asked instead of TorchServe's `/predictions/<model>`.
    """

    @contextlib.contextmanager
    def go_on(_: Testbed) -> Iterator[Running]:
        if not is_url(where):
            running = find_running(where, name)
        else:
            parts = urlsplit(where)
            url, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
            path += f"?{parts.query}" if parts.query else ""
            how = "any server, by its URL: it cannot be verified"
            running = Running(name=name or where, url=url, path=path, how=how)
        try:
            yield running
        finally:
            running.resume()

    return Server(name=name or (where if is_url(where) else Path(where).resolve().name), open=go_on)


def is_url(text: str) -> bool:
    return text.startswith(("http://", "https://"))


def kept_server(name: str) -> Server:
    """Of a kept result: its blocks are read, and it is never brought up."""

    def reject(_: Testbed) -> contextlib.AbstractContextManager[Running]:
        raise LoadTestError(f"{name} is known by its kept figures alone")

    return Server(name=name, open=reject)
