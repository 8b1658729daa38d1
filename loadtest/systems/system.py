"""A system under test: where requests go, and what is known of who answers."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from config.plan import Plan
from handlers.engines import name_variant
from loadtest.drivers.job import Job, Outcome
from loadtest.errors import LoadTestError
from loadtest.payloads import Payload
from server.api import Client
from server.archives import read_archive
from server.call import make_client
from server.errors import ApiError
from server.ports import inference_url
from server.processes import find_marked, send_signal
from server.rundir import RunDir
from server.supervisor.record import read_record
from server.verify.collect import collect_descriptions

ROOT = Path(__file__).resolve().parents[2]
USERS_WITHOUT_PLAN = 16
"""`auto` users where no plan says how many fill the batches."""
VERIFY_SECONDS = 300
ANSWER_SECONDS = 120.0
"""A whole batch of texts may be before it, on a server without buckets for the first time."""
UNKNOWN = "unknown"


class Reference(Protocol):
    """Takes a job itself instead of a driver: the handler with no server around it."""

    def run(self, job: Job, folder: Path) -> Outcome:
        """As a driver would."""


@dataclass(frozen=True, kw_only=True)
class System:
    """One system that is up. Nothing of it changes while it is measured."""

    name: str
    """Tells the systems of an experiment apart."""
    models: tuple[str, ...]
    """That it serves; empty where nobody knows."""
    url: str = ""
    """http://host:port of predictions; empty without a server."""
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
    reference: Reference | None = None
    """Set where there is no server."""
    start: Mapping[str, Any] | None = None
    """How long its start took (`read_start`); None where it was up before, or tells nothing."""

    @property
    def is_kit(self) -> bool:
        """Whether the kit's handler answers in it."""
        return self.plan is not None

    @property
    def client(self) -> Client:
        """Of a server of ours; of another one only predictions can be asked for."""
        if self.run is None:
            return Client(inference_url=self.url, management_url=self.url)
        if self.plan is not None:
            return make_client(self.plan, self.run)
        host, _, port = self.url.rpartition(":")
        management = f"{host}:{int(port) + 1}"
        return Client(inference_url=self.url, management_url=management)

    def precision(self, model: str) -> str:
        return str(self.plan.models[model].precision.value) if self.plan else UNKNOWN

    def variant(self, model: str) -> str:
        """Engine and precision, as archives name what was judged."""
        plan = self.plan and self.plan.models[model]
        return name_variant(str(plan.engine.value), str(plan.precision.value)) if plan else UNKNOWN

    def accuracy(self, model: str) -> Mapping[str, Any] | None:
        """What the accuracy gate saw at build of the precision served; None for FP32, its reference."""
        archive = self.archives.get(model)
        return None if archive is None else read_archive(archive).accuracy.get(self.variant(model))

    def auto_users(self, model: str) -> int:
        """Twice as many as fill a batch in every worker: one is computed while the next one gathers."""
        if self.plan is None:
            return USERS_WITHOUT_PLAN
        plan = self.plan.models[model]
        return 2 * int(plan.workers.value) * int(plan.batch_size.value)

    def token(self, seconds: float) -> str:
        """A token that outlives the run; empty without token authorisation."""
        if self.run is None or self.reference is not None:
            return ""
        return self.client.token()

    def list_workers(self, model: str) -> list[int]:
        """Process ids of the model's workers; empty where nobody can tell."""
        if self.run is None or self.reference is not None:
            return []
        workers = self.client.describe(model).get("workers", [])
        return sorted(int(worker["pid"]) for worker in workers)

    def ask(self, payloads: Sequence[Payload], *, at_once: int) -> list[Any]:
        """Each payload's answer, away from any load; LoadTestError when one gets none."""

        def predict(one: Payload) -> Any:
            return self.client.predict(one.model, one.body, one.content_type, timeout_s=ANSWER_SECONDS)

        try:
            with ThreadPoolExecutor(at_once) as pool:
                return list(pool.map(predict, payloads))
        except ApiError as problem:
            raise LoadTestError(f"{self.name} must answer each payload asked calmly: {problem}") from problem

    def describe_workers(self, model: str, *, profile: str = "") -> list[dict[str, Any]]:
        """Every worker's own account of what is in effect; LoadTestError when one gives none.

        `profile` asks each to look at its next runs, or for what it saw (handlers/shared/profiling.py).
        """
        pids = self.list_workers(model)
        answers, problem = collect_descriptions(model, self.client, set(pids), profile=profile)
        if set(answers) != set(pids):
            raise LoadTestError(f"{self.name}: not every worker could be described: {problem}")
        return [answers[pid] for pid in pids]

    def list_causes(self) -> tuple[str, ...]:
        """Why its supervisor started parts again, the last few; none where there is no supervisor."""
        record = read_record(self.run.record) if self.run else None
        parts = {"door": record.door, **record.instances} if record else {}
        return tuple(f"{name}: {one.cause}" for name, part in parts.items() for one in part.causes)

    def verify(self) -> dict[str, Any] | None:
        """What `make verify` finds, as JSON; None where there is no plan to compare with."""
        if self.run is None or self.plan is None or self.reference is not None:
            return None
        where = ["--format", "json", "--run-dir", str(self.run.path)]
        command = [sys.executable, "-m", "server", "verify", *where]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=VERIFY_SECONDS, check=False
        )
        try:
            return dict(json.loads(done.stdout))
        except ValueError:
            return {"good": False, "findings": [], "error": done.stderr.strip()[-500:]}

    def halt(self) -> None:
        """Stop its processes: they keep their memory and cost no CPU. A foreign server is left alone."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        """Who watches over the others stops first and goes on last: it must never see them stopped."""
        found = find_marked(self.run.path) if self.run else []
        watching_last = sorted(found, key=lambda one: (one.is_supervisor, one.is_keeper))
        for process in watching_last if number == signal.SIGCONT else reversed(watching_last):
            send_signal(process, number)

    @contextlib.contextmanager
    def resumed(self) -> Iterator[None]:
        """Let it run for a while."""
        self.resume()
        try:
            yield
        finally:
            self.halt()


def make_kit_system(name: str, run: RunDir, plan: Plan, *, how: str) -> System:
    """The kit's server of a run directory, up or soon to be."""
    store = Path(plan.inputs.model_store)
    return System(
        name=name,
        models=tuple(plan.models),
        url=inference_url(plan),
        run=run,
        plan=plan,
        archives={model: store / str(one.archive.value) for model, one in plan.models.items()},
        how=how,
    )
