"""Keeps files that say whether a TorchServe answers right: what the supervisor goes by."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from config.atomic import write_text_atomically
from config.plan import Plan
from server.activity import Activity, read_activity
from server.api import Client
from server.archives import Archive, check_answer
from server.canaries import Canaries
from server.errors import ApiError
from server.hangs import Hangs
from server.progress import Report
from server.queues import count_waiting
from server.rundir import RunDir

READY = "ready"
STOPPING = "not ready: stopping"

LOOK_SECONDS = 5.0
CANARY_SECONDS = 30.0
"""For each worker: idle workers take turns (they wait for one lock, Model.pollBatch), so a model gets one
more often the more workers it has. One inference each half minute is a thousandth of a core."""
CANARY_TIMEOUT_S = 300.0
"""Whoever waits that long is not served, however busy the server is."""
BATCH_SHARE = 1 / 3
"""Of the response time-out: it is planned so that no batch takes longer than that."""


@dataclass(frozen=True, kw_only=True)
class ModelLook:
    """One model at one look, for the supervisor."""

    planned: int
    """Workers there shall be."""
    ready: tuple[int, ...] = ()
    """Process ids of those TorchServe calls ready."""
    hanging: tuple[int, ...] = ()
    """Those of them that run, and take no request or finish none."""


def parse_looks(raw: Mapping[str, Mapping[str, Any]]) -> dict[str, ModelLook]:
    """Model → look, from the file's JSON; KeyError or TypeError where it is no such file."""
    return {
        name: ModelLook(planned=look["planned"], ready=tuple(look["ready"]), hanging=tuple(look["hanging"]))
        for name, look in raw.items()
    }


@dataclass(frozen=True, kw_only=True)
class _Watched:
    """What is remembered of one model from look to look."""

    canaries: Canaries
    hangs: Hangs
    looks_per_canary: int


@dataclass(kw_only=True)
class Health:
    """Looks at one server again and again."""

    plan: Plan
    """What was asked for."""
    archives: Mapping[str, Archive]
    """The canaries."""
    client: Client
    """TorchServe's addresses."""
    run: RunDir
    """Where the file is."""
    read: Callable[[int], Activity | None] = read_activity
    """Reads what a process does."""
    looks: int = 0
    """How many there were."""
    seen: dict[str, ModelLook] = field(default_factory=dict)
    """Model → what the last look saw of its workers."""
    _watched: dict[str, _Watched] = field(init=False)

    def __post_init__(self) -> None:
        self._watched = {name: self._watch(name) for name in self.plan.models}
        self.seen = {name: ModelLook(planned=self._count_planned(name)) for name in self.plan.models}

    def _count_planned(self, name: str) -> int:
        return int(self.plan.models[name].workers.value)

    def _watch(self, name: str) -> _Watched:
        model = self.plan.models[name]
        batch_seconds = int(model.response_timeout_s.value) * BATCH_SHARE
        return _Watched(
            canaries=Canaries(partial(self._send, name), batch_seconds),
            hangs=Hangs(batch_seconds, self.read),
            looks_per_canary=max(1, round(CANARY_SECONDS / LOOK_SECONDS / int(model.workers.value))),
        )

    def look(self, now: float) -> str:
        """READY, or "not ready: " and why; from time to time a canary is sent, and its answer seen later."""
        self.looks += 1
        problems = [f"{name}: {found}" for name in self.plan.models if (found := self._find(name, now))]
        return f"not ready: {'; '.join(problems)}" if problems else READY

    def _find(self, name: str, now: float) -> str:
        watched = self._watched[name]
        try:
            described = self.client.describe(name)
        except ApiError as problem:
            self.seen[name] = ModelLook(planned=self._count_planned(name))
            return str(problem)
        waiting = count_waiting(described)
        up = [
            int(worker["pid"]) for worker in described.get("workers", []) if worker.get("status") == "READY"
        ]
        planned = self._count_planned(name)
        unready = f"{len(up)} of {planned} workers ready" if len(up) < planned else ""
        wrong = watched.canaries.judge(waiting, now)
        if len(up) == 1:  # then it is plain who shall answer what has left the queue
            waiting += watched.canaries.under_way
        hanging = watched.hangs.find(up, waiting, watched.canaries.answered, now)
        self.seen[name] = ModelLook(planned=planned, ready=tuple(up), hanging=watched.hangs.hanging)
        if self.looks % watched.looks_per_canary == 0:
            watched.canaries.ask()
        return ", ".join(problem for problem in (unready, wrong, hanging) if problem)

    def _send(self, name: str) -> Future[str]:
        answer: Future[str] = Future()
        threading.Thread(target=self._await, args=(name, answer), daemon=True).start()
        return answer

    def _await(self, name: str, answer: Future[str]) -> None:
        canary, precision = self.archives[name].canary, str(self.plan.models[name].precision.value)
        try:
            got = self.client.predict(name, canary.body, canary.content_type, timeout_s=CANARY_TIMEOUT_S)
            wrong = check_answer(canary, precision, got)
            answer.set_result(f"wrong answer: {wrong}" if wrong else "")
        except Exception as problem:  # of whatever kind: it must end the waiting
            answer.set_exception(problem)


@contextlib.contextmanager
def keep_health(health: Health, report: Report, seconds: float = LOOK_SECONDS) -> Iterator[None]:
    """Look again and again in a thread; at the end, say that the server stops. Changes are reported."""
    ended = threading.Event()
    keeper = _Keeper(health, report)
    thread = threading.Thread(target=keeper.keep, args=(ended, seconds), daemon=True)
    keeper.list_workers()
    keeper.say(READY)  # the start has just seen it
    thread.start()
    try:
        yield
    finally:
        with keeper.writing:
            ended.set()
            keeper.write(STOPPING)


class _Keeper:
    """Goes on whatever happens: a file that is not written any more grows old, and health.sh sees that."""

    def __init__(self, health: Health, report: Report) -> None:
        self._health = health
        self._report = report
        self.writing = threading.Lock()
        """A look may still be under way when the server stops: what it says must not come after that."""
        self._was_ready = True
        self._unwritten = ""

    def list_workers(self) -> None:
        """So that the file by model has them from the beginning; what is wrong the first look will say."""
        with contextlib.suppress(Exception):
            self._health.look(time.monotonic())

    def keep(self, ended: threading.Event, seconds: float) -> None:
        """Until it is told to end."""
        while not ended.wait(seconds):
            try:
                text = self._health.look(time.monotonic())
            except Exception as problem:  # of whatever kind: this look must not be the last one
                text = f"not ready: cannot look: {type(problem).__name__}: {problem}"
            with self.writing:
                if not ended.is_set():
                    self.say(text)

    def say(self, text: str) -> None:
        """Write it, and report it when it is no longer what was reported last."""
        if (text == READY) != self._was_ready:
            self._was_ready = text == READY
            self._report(f"health: {text}")
        self.write(text)

    def write(self, text: str) -> None:
        """As far as the disk allows; that it does not is reported once."""
        looks = {name: dataclasses.asdict(look) for name, look in self._health.seen.items()}
        try:
            write_text_atomically(self._health.run.looks, json.dumps(looks) + "\n")
            write_text_atomically(self._health.run.health, f"{text}\n")
            self._unwritten = ""
        except OSError as problem:
            if not self._unwritten:
                self._report(f"health: cannot be written, so it counts as not ready in a minute: {problem}")
            self._unwritten = str(problem)
