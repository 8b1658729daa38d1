"""What can be seen of an instance: its processes, what TorchServe says of its models, and smoke requests."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from config.plan import InstancePlan, ModelPlan
from server.api import count_waiting
from server.archives import check_answer
from server.errors import ApiError
from server.processes import Activity, Process, find_marked, read_activity, read_anonymous_mib
from server.supervisor.judge import (
    STILL_S,
    Lack,
    ModelLook,
    Observation,
    Problem,
    Worker,
    explain_hang,
    observe,
    remember_worker,
)

if TYPE_CHECKING:
    from handlers.definition import Packed

LOOK_S = 5.0
SMOKE_S = 30.0
"""For each worker: idle workers take turns (they wait for one lock, Model.pollBatch), so a model gets a smoke
request more often the more workers it has. One inference each half minute is a thousandth of a core."""
SMOKE_TIMEOUT_S = 300.0  # whoever waits that long is not served, however busy the server is
DESCRIBE_TIMEOUT_S = 5.0
BATCH_SHARE = 1 / 3  # of the response time-out: it is planned so that no batch takes longer than that
WALK_S = 30.0  # between two searches for processes that are new; every second where one has come or gone
_BUSY = (429, 503)  # a full queue: to be taken out of service for being busy would help nobody
_MOST_UNDER_WAY = 4  # more smoke requests would only lengthen the queue they wait in


async def call(
    url: str, method: str, path: str, body: bytes = b"", content_type: str = "", *, timeout_s: float
) -> bytes:
    """The body of TorchServe's response over its Unix socket; ApiError. Without a thread, so that as many as
    need be can wait for one that hangs."""
    kind = f"Content-Type: {content_type}\r\n" if content_type else ""
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{kind}Content-Length: {len(body)}\r\n\r\n"

    async def go() -> tuple[int, bytes]:
        reader, writer = await asyncio.open_unix_connection(url.removeprefix("unix:"))
        try:
            writer.write(head.encode() + body)
            first, _, rest = (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")
            size = http.client.parse_headers(io.BytesIO(rest))["content-length"]
            return int(first.split()[1]), await reader.readexactly(int(size))  # it keeps the connection open
        finally:
            writer.close()

    try:
        status, text = await asyncio.wait_for(go(), timeout_s)
    # A JVM that dies in mid-answer gives IncompleteReadError, which is no OSError; or half a head.
    except (OSError, EOFError, ValueError, LookupError, TypeError, asyncio.TimeoutError) as problem:
        raise ApiError(f"{path}: no response: {str(problem) or type(problem).__name__}") from problem
    if status >= http.client.BAD_REQUEST:
        raise ApiError(f"{path}: answered {status}: {text[:2000].decode(errors='replace')}", status=status)
    return text


async def describe(own: InstancePlan, model: str) -> tuple[list[int], int]:
    """Process ids of the workers that TorchServe calls READY, of all versions, and how many requests wait."""
    path = f"/models/{quote(model)}" + ("/all" if len(own.models[model].archives) > 1 else "")
    said = await call(own.properties["management_address"], "GET", path, timeout_s=DESCRIBE_TIMEOUT_S)
    try:
        versions: list[Mapping[str, Any]] = json.loads(said)
        workers = [worker for version in versions for worker in version.get("workers", [])]
        ready = [int(worker["pid"]) for worker in workers if worker.get("status") == "READY"]
        return ready, sum(count_waiting(version) for version in versions)
    except (ValueError, LookupError, TypeError, AttributeError) as problem:
        raise ApiError(f"{path}: not a description: {said[:200]!r}") from problem


async def send_smoke_request(own: InstancePlan, model: str, archive: Packed, timeout_s: float) -> str:
    """What is wrong with the answer to the archive's example, empty when nothing is; ApiError without one."""
    kind, path = archive.definition.example.content_type, f"/predictions/{quote(model)}"
    url = own.properties["inference_address"]
    said = await call(url, "POST", path, archive.body, kind, timeout_s=timeout_s)
    try:
        return check_answer(archive.definition, own.models[model].precision, json.loads(said)) or ""
    except ValueError as problem:
        raise ApiError(f"{path}: the answer is not JSON: {said[:200]!r}") from problem


def count_planned(model: ModelPlan) -> int:
    """Workers of all versions."""
    return model.workers * len(model.archives)


class SmokeRequests:
    """Those of one model.

    A wrong answer or an error stays the verdict until a later answer is right. One that waits its turn says
    nothing; one that a worker holds for longer than any batch takes says that this worker hangs. TorchServe's
    queue is first come, first served, so when nothing waits, all that were sent are in a worker.
    """

    def __init__(self, send: Callable[[], asyncio.Future[str]], held_s: float) -> None:
        self._send, self._held_s = send, held_s
        self._verdict: Problem | None = None
        self.under_way: dict[asyncio.Future[str], float | None] = {}
        """Those without an answer → when each was first seen to have left the queue: a worker holds it."""
        self.answered = 0  # how many workers answered so far, right or wrong

    def send(self) -> None:
        """One more."""
        if len(self.under_way) < _MOST_UNDER_WAY:
            self.under_way[self._send()] = None

    def judge(self, waiting: int, now: float) -> Problem | None:
        """What is wrong as far as is known now. `waiting` counts the queue."""
        for answer in [answer for answer in self.under_way if answer.done()]:
            del self.under_way[answer]
            self._weigh(answer)
        if not waiting:
            self.under_way = {answer: since or now for answer, since in self.under_way.items()}
        held = now - min(filter(None, self.under_way.values()), default=now)
        if held > self._held_s:
            text = f"a smoke request has no answer after {held:.0f} s, and none waits: a worker hangs"
            return Problem(lack=Lack.HANG, text=text)
        return self._verdict

    def _weigh(self, answer: asyncio.Future[str]) -> None:
        problem = answer.exception()
        if problem is None:
            self.answered += 1
            wrong = answer.result()
            text = f"wrong answer: {wrong}"
            self._verdict = Problem(lack=Lack.WRONG_ANSWER, text=text) if wrong else None
        elif not (isinstance(problem, ApiError) and problem.status in _BUSY):
            self._verdict = Problem(lack=Lack.NO_ANSWER, text=str(problem))


class Watch:
    """Looks at one instance that serves; a new one after each start of it."""

    def __init__(
        self, own: InstancePlan, archives: Mapping[str, Packed], path: Path,
        read: Callable[[int], Activity | None] = read_activity,
    ) -> None:  # fmt: skip
        """`path`: the instance's folder, the mark of its processes. No session has them all (torch's launcher
        starts a worker in one of its own) nor, once a launcher is killed, a tree."""
        self._own, self._archives, self._path, self._read = own, archives, path, read
        self._processes: list[Process] = []
        self._walked_at, self._quiet, self._count = float("-inf"), False, 0
        self._tasks: set[asyncio.Task[str]] = set()
        self.looks: dict[str, ModelLook] = {}
        self.forget()

    def forget(self) -> None:
        """All of it was stopped for a while: what was counted until then tells nothing."""
        self.looked_at = time.monotonic()
        self._workers: dict[str, dict[int, Worker]] = {}
        self._smoke = {
            name: SmokeRequests(partial(self._send, name), self._find_batch_s(name))
            for name in self._archives
        }

    def _find_batch_s(self, name: str) -> float:
        """What no batch takes longer than; somebody else's handler may wait as long as its time-out says."""
        model = self._own.models[name]
        return model.response_timeout_s * (BATCH_SHARE if model.kit else 1.0)

    async def run(self) -> None:
        """Look again and again. After a pause of all it begins anew: a smoke request that is sent in a moment
        between two pauses is late after the second one, and TorchServe then ends its worker."""
        while True:
            began = time.monotonic()
            await asyncio.sleep(LOOK_S)
            if time.monotonic() - began > 2 * LOOK_S:
                self.forget()
                continue
            try:
                await self.look(time.monotonic())
            except Exception as problem:  # of whatever kind: this look must not be the last one
                text = f"cannot look: {type(problem).__name__}: {problem}"
                found = (Problem(lack=Lack.NO_ANSWER, text=text),)
                self.looks = {name: replace(look, problems=found) for name, look in self.looks.items()}

    async def look(self, now: float) -> None:
        """Ask for all models; from time to time a smoke request is sent, and its answer seen later."""
        self._count += 1
        for name in self._own.models:
            try:
                self.looks[name] = self._weigh(name, *await describe(self._own, name), now)
            except ApiError as problem:
                found = (Problem(lack=Lack.NO_ANSWER, text=str(problem)),)
                self.looks[name] = ModelLook(planned=count_planned(self._own.models[name]), problems=found)
        self.looked_at = now

    def _weigh(self, name: str, ready: list[int], waiting: int, now: float) -> ModelLook:
        """`ready`: pids of workers; `waiting`: requests in TorchServe's queue."""
        model, smoke, problems, answered = self._own.models[name], self._smoke.get(name), [], 0
        if len(ready) < (planned := count_planned(model)):
            problems.append(Problem(lack=Lack.WORKERS, text=f"{len(ready)} of {planned} workers ready"))
        if smoke:
            problems += [found] if (found := smoke.judge(waiting, now)) else []
            answered = smoke.answered
            if len(ready) == 1:  # then it is plain who answers what has left the queue
                waiting += len(smoke.under_way)
            if self._count % max(1, round(SMOKE_S / LOOK_S / planned)) == 0:
                smoke.send()
        seen = {pid: activity for pid in ready if (activity := self._read(pid))}
        before, batch_s = self._workers.get(name, {}), self._find_batch_s(name)
        workers, hanging = dict[int, Worker](), list[int]()
        for pid, one in seen.items():
            workers[pid] = remember_worker(before.get(pid), one, waiting=waiting, answered=answered, now=now)
            if why := explain_hang(
                workers[pid], one, workers=len(seen), waiting=waiting, answered=answered, now=now,
                batch_s=batch_s, still_s=STILL_S if model.kit else max(STILL_S, batch_s),
            ):  # fmt: skip
                problems.append(Problem(lack=Lack.HANG, text=f"worker {pid} {why}"))
                hanging += [] if one.stopped else [pid]
        self._workers[name], told = workers, tuple(problems)
        return ModelLook(planned=planned, ready=tuple(ready), hanging=tuple(hanging), problems=told)

    def _send(self, name: str) -> asyncio.Task[str]:
        def discard(done: asyncio.Task[str]) -> None:
            self._tasks.discard(done)
            if not done.cancelled():
                done.exception()  # seen, also where nobody waits for it any more

        sent = send_smoke_request(self._own, name, self._archives[name], SMOKE_TIMEOUT_S)
        task = asyncio.ensure_future(sent)
        self._tasks.add(task)  # else nobody holds it after `forget`
        task.add_done_callback(discard)
        return task

    def close(self) -> None:
        """Its instance has ended."""
        for task in self._tasks:
            task.cancel()

    def observe(self, now: float) -> Observation:
        """Its processes now, and the last looks; new processes are found within a second of another's end."""
        seen = self._read_activities()
        if not self._quiet or len(seen) < len(self._processes) or now - self._walked_at >= WALK_S:
            before, self._processes = self._processes, find_marked(self._path)
            self._walked_at, self._quiet = now, before == self._processes
            seen = self._read_activities()
        held, launched = {pid: read_anonymous_mib(pid) or 0 for pid in seen}, self._own.launched
        return observe(self._processes, seen, held, self.looks, self.looked_at, launched=launched)

    def _read_activities(self) -> dict[int, Activity]:
        """Of those of them that live."""
        found = ((one, read_activity(one.pid, switches=False)) for one in self._processes)
        return {one.pid: seen for one, seen in found if seen and seen.start_ticks == one.start_ticks}
