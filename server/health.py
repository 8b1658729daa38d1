"""Whether a TorchServe answers right: requests with known answers, and workers that hang.

A worker's main thread goes to sleep after each batch, until it gets the next one. So a thread that was not
seen to do so has finished nothing, and what it used of CPU time tells a hang that sleeps from one that spins.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from config.folders import write_text_atomically
from config.plan import Plan
from config.terminal import Report
from server.api import Client, count_waiting
from server.archives import check_answer
from server.errors import ApiError
from server.processes import AT_WORK, Activity, read_activity
from server.rundir import RunDir

if TYPE_CHECKING:  # pydantic, which a Python without the environment has not
    from handlers.definition import Packed

STILL_SECONDS = 30.0
"""TorchServe hands a free worker the next batch within milliseconds, so one that is sound uses its core."""
TURNS = 2
"""Idle workers wait in line for one lock (Model.pollBatch), so of as many known requests as there are workers
each gets one; twice as many leave no doubt."""


@dataclass(kw_only=True)
class _Worker:
    """One process, and when it was last seen to work."""

    last: Activity
    """What it was like when its main thread was last seen to have slept or woken."""
    woke_at: float
    """When that was."""
    answered: int
    """Known requests the model had answered by then."""
    cpu_seconds: float
    computed_at: float
    """When it had used CPU time, or no request waited for it."""
    waited_since: float
    """Since when requests wait without a break."""

    def look(self, activity: Activity, waiting: int, answered: int, now: float) -> None:
        if activity.switches != self.last.switches:
            self.last, self.woke_at, self.answered = activity, now, answered
        if not waiting:
            self.waited_since = now
        if not waiting or activity.cpu_seconds - self.cpu_seconds > AT_WORK * (now - self.computed_at):
            self.cpu_seconds, self.computed_at = activity.cpu_seconds, now

    def is_asleep(self, activity: Activity, now: float) -> bool:
        """Whether it computed nothing since its main thread last woke."""
        return activity.cpu_seconds - self.last.cpu_seconds <= AT_WORK * (now - self.woke_at)


class Hangs:
    """Watches the workers of one model from look to look."""

    def __init__(self, batch_seconds: float, read: Callable[[int], Activity | None] = read_activity) -> None:
        """No batch takes longer than `batch_seconds`."""
        self._batch_seconds = batch_seconds
        self._read = read
        self._workers: dict[int, _Worker] = {}
        self.hanging: tuple[int, ...] = ()
        """Those that were found the last time, but for stopped ones."""

    def find(self, pids: Iterable[int], waiting: int, answered: int, now: float) -> str:
        """Which workers hang and why we think so; empty when none does.

        `waiting` counts the queue, `answered` the known requests that workers of the model answered so far.
        """
        found = {pid: activity for pid in pids if (activity := self._read(pid))}
        self._workers = {pid: self._look(pid, found[pid], waiting, answered, now) for pid in found}
        problems = {pid: self._explain(pid, found[pid], waiting, answered, now) for pid in found}
        # Whether one is stopped can be seen at any time: by a look of seconds ago nobody must end it.
        self.hanging = tuple(pid for pid, problem in problems.items() if problem and not found[pid].stopped)
        return ", ".join(f"worker {pid} {problem}" for pid, problem in problems.items() if problem)

    def _look(self, pid: int, activity: Activity, waiting: int, answered: int, now: float) -> _Worker:
        worker = self._workers.get(pid)
        if worker is None or worker.last.start_ticks != activity.start_ticks:
            worker = _Worker(
                last=activity,
                woke_at=now,
                answered=answered,
                cpu_seconds=activity.cpu_seconds,
                computed_at=now,
                waited_since=now,
            )
        worker.look(activity, waiting, answered, now)
        return worker

    def _explain(self, pid: int, activity: Activity, waiting: int, answered: int, now: float) -> str:
        worker = self._workers[pid]
        if activity.stopped:
            return "is stopped"
        if (still := now - worker.computed_at) >= STILL_SECONDS:
            return f"has used no CPU time for {still:.0f} s while {waiting} requests wait"
        if (busy := now - max(worker.woke_at, worker.waited_since)) > self._batch_seconds:
            return f"has finished nothing for {busy:.0f} s while {waiting} requests wait"
        turns = answered - worker.answered
        too_long = now - worker.woke_at > self._batch_seconds
        if turns >= TURNS * len(self._workers) and (too_long or worker.is_asleep(activity, now)):
            return f"has taken none of the last {turns} known requests"
        return ""


# A full queue: to be taken out of service for being busy would help nobody.
_BUSY = (429, 503)
_MOST_UNDER_WAY = 4  # more would only lengthen the queue they wait in

Send = Callable[[], "Future[str]"]
"""Sends one; the result is what is wrong with its answer, empty when nothing is, or an ApiError."""


@dataclass(kw_only=True)
class _Sent:
    """One that is under way."""

    answer: Future[str]
    held_since: float | None = None
    """When it was first seen to have left the queue: from then on a worker holds it."""


class Canaries:
    """Those of one model.

    A wrong answer or an error stays the verdict until a later answer is right. One that waits its turn says
    nothing; one that a worker holds for longer than any batch takes says that this worker hangs. TorchServe's
    queue is first come, first served, so when nothing waits, all that were sent are in a worker.
    """

    def __init__(self, send: Send, held_seconds: float) -> None:
        self._send = send
        self._held_seconds = held_seconds
        self._under_way: list[_Sent] = []
        self._verdict = ""
        self.answered = 0
        """How many workers answered so far, right or wrong."""

    def ask(self) -> None:
        """Send one more."""
        if len(self._under_way) < _MOST_UNDER_WAY:
            self._under_way.append(_Sent(answer=self._send()))

    @property
    def under_way(self) -> int:
        """How many are sent and not answered."""
        return len(self._under_way)

    def judge(self, waiting: int, now: float) -> str:
        """What is wrong as far as is known now; empty when nothing is. `waiting` counts the queue."""
        for sent in self._under_way:
            if sent.answer.done():
                self._verdict = self._weigh(sent.answer)
            elif not waiting and sent.held_since is None:
                sent.held_since = now
        self._under_way = [sent for sent in self._under_way if not sent.answer.done()]
        since = [sent.held_since for sent in self._under_way if sent.held_since is not None]
        held = now - min(since, default=now)
        if held > self._held_seconds:
            return f"a known request is not answered for {held:.0f} s, and none waits: a worker hangs"
        return self._verdict

    def _weigh(self, answer: Future[str]) -> str:
        problem = answer.exception()
        if problem is None:
            self.answered += 1
            return answer.result()
        busy = isinstance(problem, ApiError) and problem.status in _BUSY
        return self._verdict if busy else str(problem)


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
    archives: Mapping[str, Packed]
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
        self.forget()
        self.seen = {name: ModelLook(planned=self._count_planned(name)) for name in self.plan.models}

    def forget(self) -> None:
        """All of it was stopped for a while: what was counted until then tells nothing."""
        self._watched = {name: self._watch(name) for name in self.plan.models}

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
        archive, precision = self.archives[name], str(self.plan.models[name].precision.value)
        kind = archive.definition.example.content_type
        try:
            got = self.client.predict(name, archive.body, kind, timeout_s=CANARY_TIMEOUT_S)
            wrong = check_answer(archive.definition, precision, got)
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
        """Until it is told to end. After a pause of all it waits anew: a known request that is sent in a
        moment between two pauses is late behind the second one, and TorchServe then ends its worker."""
        while True:
            began = time.monotonic()
            if ended.wait(seconds):
                return
            if time.monotonic() - began > seconds + LOOK_SECONDS:
                self._health.forget()
                continue
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
