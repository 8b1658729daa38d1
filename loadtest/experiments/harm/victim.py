"""The server under test: asked as clients do, looked at from outside, and started again when it was lost."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from config.plan import Plan
from loadtest.errors import LoadTestError
from loadtest.experiments.harm.client import Connection, Outcome, Request
from loadtest.experiments.harm.row import Look
from loadtest.systems.fleet import Fleet, Site
from loadtest.systems.kit import kit
from loadtest.systems.system import System
from loadtest.trials.machine import read_process_cpu, read_resident_mib
from server.archives import Archive, check_answer, read_archives
from server.errors import ApiError
from server.processes import PROC, Process, find_marked, send_signal
from server.rundir import RunDir

MODELS = ("resnet50", "bert")
TOKEN_SECONDS = 3000
"""TorchServe's tokens live for an hour."""
CANARY_SECONDS = 5.0
PATIENCE_SECONDS = 60.0
"""A worker that has to be started again needs 14 to 30 s."""
_OUT_OF_MEMORY = b"OutOfMemoryError"


class Victim:
    """The kit's server with both models, at one place after the other."""

    def __init__(self, site: Site, precision: str) -> None:
        self._fleet = Fleet(site=site)
        self._member = kit("kit", " ".join(MODELS), ("--precision", precision))
        self.system: System
        self.archives: dict[str, Archive] = {}

    def __enter__(self) -> Victim:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._fleet.keep_only(())

    def _start(self) -> None:
        self.system = self._fleet.bring(self._member, halt=False).system
        plan = self.plan
        self.archives = read_archives(plan, Path(plan.inputs.model_store))
        self.token = self.system.token(TOKEN_SECONDS)
        self.port = int(self.system.url.rpartition(":")[2])

    @property
    def plan(self) -> Plan:
        assert self.system.plan is not None
        return self.system.plan

    @property
    def run(self) -> RunDir:
        assert self.system.run is not None
        return self.system.run

    def ensure(self) -> bool:
        """Every worker there and every canary right, by a new start if need be; True when it took one."""
        if self.wait_for_workers() is not None and self.time_canaries() is not None:
            return False
        self._fleet.keep_only(())
        self._start()
        return True

    def ask(self, model: str, body: bytes, content_type: str = "") -> Request:
        """A prediction with a good token."""
        return Request(path=f"/predictions/{model}", body=body, content_type=content_type, token=self.token)

    def canary(self, model: str) -> Request:
        """The request whose answer is known."""
        canary = self.archives[model].canary
        return self.ask(model, canary.body, canary.content_type)

    def is_right(self, model: str, outcome: Outcome) -> bool:
        """Whether a canary's outcome is its known answer."""
        precision = str(self.plan.models[model].precision.value)
        try:
            answer = json.loads(outcome.body)
        except ValueError:
            return False
        return outcome.status == 200 and check_answer(self.archives[model].canary, precision, answer) is None

    def time_canaries(self) -> float | None:
        """Seconds until every model has answered right; None after PATIENCE_SECONDS."""
        began = time.monotonic()
        for model in MODELS:
            while not self.is_right(model, self.send(self.canary(model))):
                if time.monotonic() - began > PATIENCE_SECONDS:
                    return None
                time.sleep(0.1)
        return round(time.monotonic() - began, 2)

    def send(self, request: Request, seconds: float = CANARY_SECONDS) -> Outcome:
        """One request on a connection of its own."""
        connection = Connection(self.port, seconds=seconds)
        try:
            return connection.send(request)
        finally:
            connection.close()

    def find_workers(self) -> list[Process]:
        """Those that live and have a parent that waits for them; others compute on for nobody."""
        return choose_workers(find_marked(self.run.path))

    def find_worker_of(self, model: str) -> Process:
        """One worker of a model."""
        models = self.find_models()
        for process in self.find_workers():
            if models.get(process.pid) == model:
                return process
        raise LoadTestError(f"{model} has no worker that lives: TorchServe names {sorted(models)}")

    def find_models(self) -> dict[int, str]:
        """Worker → its model, as TorchServe says."""
        return {pid: model for model in MODELS for pid in self.system.list_workers(model)}

    def wait_for_workers(self) -> float | None:
        """Seconds until as many are ready as were planned; None after PATIENCE_SECONDS."""
        planned = sum(int(model.workers.value) for model in self.plan.models.values())
        began = time.monotonic()
        while self._count_ready() < planned:
            if time.monotonic() - began > PATIENCE_SECONDS:
                return None
            time.sleep(0.2)
        return round(time.monotonic() - began, 2)

    def _count_ready(self) -> int:
        """A new process takes 14 s to load; TorchServe knows when it has."""
        try:
            described = [self.system.client.describe(model) for model in MODELS]
        except ApiError:
            return 0
        return sum(one.get("status") == "READY" for model in described for one in model.get("workers", []))

    @contextlib.contextmanager
    def halted(self, process: Process) -> Iterator[None]:
        """Stopped for a while, and always let go on."""
        send_signal(process, signal.SIGSTOP)
        try:
            yield
        finally:
            send_signal(process, signal.SIGCONT)

    def forget_peaks(self, proc: Path = PROC) -> None:
        """VmHWM starts anew (proc(5), clear_refs)."""
        for process in self.find_workers():
            with contextlib.suppress(OSError):
                (proc / str(process.pid) / "clear_refs").write_text("5")

    def look(self) -> Look:
        """Processes, memory, CPU and logs now."""
        processes = find_marked(self.run.path)
        pids = [process.pid for process in choose_workers(processes)]
        resident, peak = _read_all(pids, peak=False), _read_all(pids, peak=True)
        logs = [file for file in self.run.logs.glob("*") if file.is_file()]
        return Look(
            java=next((process.pid for process in processes if process.is_java), None),
            resident_mib={pid: resident[pid] for pid in peak},
            peak_mib=peak,
            cpu_s={pid: read_process_cpu(pid) for pid in peak},
            out_of_memory=sum(file.read_bytes().count(_OUT_OF_MEMORY) for file in logs),
            log_kib=sum(file.stat().st_size for file in logs) / 1024,
        )


def choose_workers(marked: list[Process]) -> list[Process]:
    """Workers whose launcher (or, unpinned, TorchServe) is there: one may outlive its killed launcher."""
    pids = {process.pid for process in marked}
    return [process for process in marked if process.is_worker and process.parent_pid in pids]


def _read_all(pids: list[int], *, peak: bool) -> dict[int, float]:
    found = {}
    for pid in pids:
        with contextlib.suppress(LoadTestError):  # it has ended since
            found[pid] = read_resident_mib(pid, peak=peak)
    return found
