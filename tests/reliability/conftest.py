"""A running server of two instances behind HAProxy, seen from outside; and the table that is printed."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from config.plan import read_plan
from models.build import build_archive
from server.archives import check_answer, read_archive
from server.processes import (
    PROC,
    Process,
    end_all,
    find_marked,
    read_activity,
    read_process,
    read_status,
    send_signal,
)
from server.state import Phase, Record, read_record
from tests.conftest import RANDOM, TINY_IMAGE, TINY_TEXT, write_definition
from tests.end_to_end.kit import Kit
from tests.reliability.client import Load, Outcome, Request, send
from tests.reliability.seeds import IMAGE, TEXT
from tests.reliability.surroundings import Volume, settable_clock

MODELS = f"{IMAGE} {TEXT}"
# Images and text as large as ResNet-50's and BERT's, and little to compute: what is tested is the server.
SIZE = {"resize": 256, "crop": 224}
IMAGE_MODEL = {
    **TINY_IMAGE,
    "memory": {"worker_mib": 500, "request_mib": 260},
    "options": {**TINY_IMAGE["options"], "size": SIZE},
}
WIDTHS = {
    "token_lengths": [16, 64, 256, 512],
    "row_tokens": 64,
    "tokens_per_run": 256,
    "max_texts_per_request": 8,
}
TEXT_MODEL = {
    **TINY_TEXT,
    "memory": {"worker_mib": 500, "request_mib": 160},
    "architecture_options": {**TINY_TEXT["architecture_options"], "max_position_embeddings": 512},
    "options": {**TINY_TEXT["options"], **WIDTHS},
}
LARGE_BYTES, SMALL_OF = 300_000, 9
"""One photograph in ten is larger than HAProxy's buffers are by default."""
AGAIN_S = 5.0
"""A smoke request is answered right this soon after any harm."""
PATIENCE_S = 120.0
"""Until a server that was hurt by the test before is whole; else it is started anew."""
LOOK_S = 0.5
ROWS = pytest.StashKey[list[tuple[str, ...]]]()
HEAD = (
    "fault", "what happens", "sent", "2xx", "4xx", "5xx", "no response", "deadline exceeded",
    "time to recovery", "orphaned", "verify", "guarantee",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Look:
    """The server at one moment."""

    at: float
    """time.monotonic()."""
    full: bool
    """Nothing is missing: the supervisor says that all is ready, HAProxy and all planned workers run."""
    orphans: tuple[str, ...]
    """Marked processes that do not descend from the supervisor."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Usage:
    """What the server uses, and what it has lost."""

    java: frozenset[int]
    resident_mib: dict[int, float]
    peak_mib: dict[int, float]
    """Since the peaks were last forgotten."""
    cpu_s: dict[int, float]
    """By worker, as are both above."""
    out_of_memory: int
    """OutOfMemoryErrors in all logs; HAProxy's and Java's options only name it."""
    log_kib: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Server(Kit):
    """The kit, called through its proxy and watched from outside."""

    volume: Volume | None = None
    """That its run directory is on; None where it could not be mounted or is not needed."""
    clock: Path | None = None
    """Sets the clock of a JVM that was started while it is there; None without libfaketime."""

    def start_again(self) -> None:
        self.stop()
        end_all(self.run_dir, graceful_seconds=5.0)
        self.plan(MODELS, INSTANCES=2)
        started = self.start()
        assert started.returncode == 0, started.stdout + started.stderr

    def ensure(self) -> None:
        """All is there, by a new start if need be."""
        if not self.wait_until_full(PATIENCE_S if self.read_record() else 0.0):
            self.start_again()

    def reload(self) -> subprocess.CompletedProcess[str]:
        """`make reload` with the same settings."""
        return self.call("server", "reload", "--built", *self.list_settings(MODELS, INSTANCES=2))

    def read_record(self) -> Record | None:
        return read_record(self.run_dir / "supervisor.json")

    def find_worker(self, model: str) -> Process:
        """One of the model's: it runs where the archive was unpacked to."""
        for process in self.find("worker"):
            definition = PROC / str(process.pid) / "cwd" / "definition.json"
            if json.loads(definition.read_text())["name"] == model:
                return process
        raise AssertionError(f"{model} has no worker")

    def look(self) -> Look:
        """From the supervisor's word and from the processes themselves."""
        record, processes = self.read_record(), find_marked(self.run_dir)
        if record is None or read_process(record.pid) is None:
            return Look(at=time.monotonic(), full=False, orphans=tuple(_name(one) for one in processes))
        running = {one.pid for one in processes if (seen := read_activity(one.pid)) and not seen.stopped}
        workers = [one for one in processes if one.is_worker and {one.pid, one.parent_pid} <= running]
        phases = {part.phase for part in record.instances.values()} - {Phase.ENDED}
        plan = read_plan(self.run_dir)
        planned = sum(map(plan.count_workers, plan.models))
        full = (
            record.phase == Phase.READY
            and phases == {Phase.READY}
            and any(one.role == "HAProxy" and one.pid in running for one in processes)
            and len(workers) >= planned
        )
        owned = {record.pid}
        orphans = [one for one in processes if not owned & {one.pid, *list_ancestors(one.pid)}]
        return Look(at=time.monotonic(), full=full, orphans=tuple(map(_name, orphans)))

    def wait_until_full(self, seconds: float) -> bool:
        """Whether nothing is missing by then, and nothing orphaned."""
        ends = time.monotonic() + seconds
        while not ((look := self.look()).full and not look.orphans):
            if time.monotonic() > ends:
                return False
            time.sleep(LOOK_S)
        return True

    @contextlib.contextmanager
    def watched(self) -> Iterator[list[Look]]:
        """Looks, twice a second, until the end of the block."""
        looks, ended = [self.look()], threading.Event()

        def go_on() -> None:
            while not ended.wait(LOOK_S):
                looks.append(self.look())

        thread = threading.Thread(target=go_on, daemon=True)
        thread.start()
        try:
            yield looks
        finally:
            ended.set()
            thread.join()
            looks.append(self.look())

    def make(self, model: str, body: bytes, content_type: str = "", **options: str) -> Request:
        """A prediction with a good token unless another is given."""
        headers = {"token": self.token, **options}
        return Request(path=f"/predictions/{model}", body=body, content_type=content_type, **headers)  # type: ignore[arg-type]

    def smoke_request(self, model: str) -> Request:
        """Whose answer is known."""
        archive = read_archive(self.store / f"{model}.mar")
        return self.make(model, archive.body, archive.definition.example.content_type)

    def is_right(self, model: str, outcome: Outcome) -> bool:
        """Whether a smoke request has its known answer."""
        if outcome.status != 200:
            return False
        definition = read_archive(self.store / f"{model}.mar").definition
        return check_answer(definition, "fp32", json.loads(outcome.body)) is None

    def send_smoke_requests(self) -> list[Outcome]:
        """Of each model; those that are not answered right within AGAIN_S."""
        asked = [(model, send(self.port, self.smoke_request(model), AGAIN_S)) for model in MODELS.split()]
        return [outcome for model, outcome in asked if not self.is_right(model, outcome)]

    def photographs(self, deadline_s: float) -> Iterator[Request]:
        """Without end; each says until when its answer is wanted."""
        headers = (("X-Deadline-Ms", f"{1000 * deadline_s:.0f}"),)
        small = dataclasses.replace(self.smoke_request(IMAGE), headers=headers)
        large = dataclasses.replace(small, body=small.body.ljust(LARGE_BYTES, b"\0"))
        return itertools.cycle([*[small] * SMALL_OF, large])

    def measure_capacity(self) -> float:
        """Photographs a second of a short closed loop."""
        warm_up_s, measured_s, clients = 4.0, 8.0, 16
        with Load(self.port, self.photographs(10.0), clients=clients) as load:
            began = time.monotonic()
            time.sleep(warm_up_s + measured_s)
            ended = time.monotonic()
        assert {one.failure or one.status for one in load.outcomes} == {200}
        return sum(1 for one in load.outcomes if began + warm_up_s <= one.ended < ended) / measured_s

    def use(self) -> Usage:
        """Now."""
        processes = find_marked(self.run_dir)
        workers = [one.pid for one in processes if one.is_worker]
        status = {pid: found for pid in workers if (found := read_status(pid)).get("VmRSS")}
        logs = [file for file in self.run_dir.glob("**/logs/*") if file.is_file()]
        return Usage(
            java=frozenset(one.pid for one in processes if one.is_java),
            resident_mib={pid: int(found["VmRSS"].split()[0]) / 1024 for pid, found in status.items()},
            peak_mib={pid: int(found["VmHWM"].split()[0]) / 1024 for pid, found in status.items()},
            cpu_s={pid: seen.cpu_seconds for pid in status if (seen := read_activity(pid))},
            out_of_memory=sum(file.read_bytes().count(b"OutOfMemoryError:") for file in logs),
            log_kib=sum(file.stat().st_size for file in logs) / 1024,
        )

    def forget_peaks(self) -> None:
        """VmHWM starts anew (proc(5), clear_refs)."""
        for worker in self.find("worker"):
            with contextlib.suppress(OSError):
                (PROC / str(worker.pid) / "clear_refs").write_text("5")


def _name(process: Process) -> str:
    return f"{process.role} {process.pid}"


def list_ancestors(pid: int) -> Iterator[int]:
    """Upwards; marked or not."""
    while (process := read_process(pid)) and process.parent_pid > 0:
        pid = process.parent_pid
        yield pid


@pytest.fixture(scope="session")
def started(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests; a volume and a clock of its own only where a test will need them."""
    folder = tmp_path_factory.mktemp("kit")
    for raw in (IMAGE_MODEL, TEXT_MODEL):
        build_archive(write_definition(folder / "models", raw), RANDOM, store=folder / "store")
    names = [item.name for item in request.session.items]
    with contextlib.ExitStack() as stack:
        run_dir = folder / "run"
        volume = clock = None
        if any("disk-full" in name for name in names):
            volume = stack.enter_context(Volume.mounted(run_dir))
        if any("clock" in name for name in names):
            clock = stack.enter_context(settable_clock(folder / "clock"))
        server = Server(
            run_dir=run_dir, store=folder / "store", port=16080 + os.getpid() % 8 * 100,
            volume=volume, clock=clock,
        )  # fmt: skip
        stack.callback(lambda: end_all(run_dir, graceful_seconds=5.0))
        stack.callback(server.stop)
        server.start_again()
        yield server
        for process in find_marked(run_dir):
            send_signal(process, signal.SIGCONT)


@pytest.fixture
def server(started: Server) -> Server:
    """With nothing missing."""
    started.ensure()
    return started


@pytest.fixture(scope="session")
def capacity(started: Server) -> float:
    started.ensure()
    return started.measure_capacity()


@pytest.fixture
def rows(request: pytest.FixtureRequest) -> list[tuple[str, ...]]:
    """Of the table that is printed at the end."""
    return request.config.stash.setdefault(ROWS, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The table of docs/reliability.md."""
    rows = config.stash.get(ROWS, [])
    if rows:
        terminalreporter.write_sep("=", "faults under load")
        for line in (HEAD, ["---"] * len(HEAD), *rows):
            terminalreporter.write_line(f"| {' | '.join(line)} |")
