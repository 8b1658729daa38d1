"""The server under test: asked as clients do, looked at from outside, and started again when it was lost."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from loadtest.cpu import read_process_cpu
from loadtest.errors import LoadTestError
from loadtest.harm.client import Connection, Outcome, Request
from loadtest.harm.row import Look
from loadtest.servers import Server, kit_server
from loadtest.soak import read_resident_mib
from server.archives import Archive, check_answer, read_archives
from server.errors import ApiError
from server.processes import PROC, Process, find_marked, send_signal

MODELS = ("resnet50", "bert")
CANARY_SECONDS = 5.0
PATIENCE_SECONDS = 60.0
"""A worker that has to be started again needs 14 to 30 s."""
_OUT_OF_MEMORY = b"OutOfMemoryError"


class Site:
    """One run directory and the kit's server in it."""

    def __init__(self, folder: Path, store: Path, *, port: int, precision: str) -> None:
        self._folder, self._port = folder, port
        self._arguments = ["--precision", precision, "--model-store", str(store.resolve())]
        self._up = contextlib.ExitStack()
        self.server: Server
        self.archives: dict[str, Archive] = {}

    def __enter__(self) -> Site:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._up.close()

    def _start(self) -> None:
        models = " ".join(MODELS)
        self.server = self._up.enter_context(
            kit_server("kit", self._folder, port=self._port, model=models, arguments=self._arguments)
        )
        plan = self.server.plan
        self.archives = read_archives(plan, Path(plan.inputs.model_store))
        self.token = self.server.token

    def ensure(self) -> bool:
        """Every worker there and every canary right, by a new start if need be; True when it took one."""
        if self.wait_for_workers() is not None and self.time_canaries() is not None:
            return False
        self._up.close()
        self._start()
        return True

    @property
    def port(self) -> int:
        return self._port

    def ask(self, model: str, body: bytes, content_type: str = "") -> Request:
        """A prediction with a good token."""
        return Request(path=f"/predictions/{model}", body=body, content_type=content_type, token=self.token)

    def canary(self, model: str) -> Request:
        """The request whose answer is known."""
        canary = self.archives[model].canary
        return self.ask(model, canary.body, canary.content_type)

    def is_right(self, model: str, outcome: Outcome) -> bool:
        """Whether a canary's outcome is its known answer."""
        precision = str(self.server.plan.models[model].precision.value)
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
        connection = Connection(self._port, seconds=seconds)
        try:
            return connection.send(request)
        finally:
            connection.close()

    def find_workers(self) -> list[Process]:
        """Those that live and have a parent that waits for them; others compute on for nobody."""
        return choose_workers(find_marked(self.server.run.path))

    def find_worker_of(self, model: str) -> Process:
        """One worker of a model."""
        models = self.find_models()
        for process in self.find_workers():
            if models.get(process.pid) == model:
                return process
        raise LoadTestError(f"{model} has no worker that lives: TorchServe names {sorted(models)}")

    def find_models(self) -> dict[int, str]:
        """Worker → its model, as TorchServe says."""
        return {pid: model for model in MODELS for pid in self.server.list_workers(model)}

    def wait_for_workers(self) -> float | None:
        """Seconds until as many are ready as were planned; None after PATIENCE_SECONDS."""
        planned = sum(int(model.workers.value) for model in self.server.plan.models.values())
        began = time.monotonic()
        while self._count_ready() < planned:
            if time.monotonic() - began > PATIENCE_SECONDS:
                return None
            time.sleep(0.2)
        return round(time.monotonic() - began, 2)

    def _count_ready(self) -> int:
        """A new process takes 14 s to load; TorchServe knows when it has."""
        try:
            described = [self.server.client.describe(model) for model in MODELS]
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
        processes = find_marked(self.server.run.path)
        pids = [process.pid for process in choose_workers(processes)]
        resident, peak = _read_all(pids, peak=False), _read_all(pids, peak=True)
        logs = [file for file in self.server.run.logs.glob("*") if file.is_file()]
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
