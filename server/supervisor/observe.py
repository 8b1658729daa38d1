"""What can be seen of an instance: its processes, what TorchServe says of its models, and smoke requests."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from config.plan import InstancePlan, ModelPlan
from server.api import count_waiting
from server.archives import check_answer
from server.errors import ApiError
from server.processes import Activity, Process, find_session, read_activity, read_anonymous_mib
from server.supervisor.judge import (
    BATCH_SHARE,
    STILL_S,
    Lack,
    ModelLook,
    Observation,
    Problem,
    Worker,
    find_hangs,
    observe,
    remember_workers,
)

if TYPE_CHECKING:
    from handlers.definition import Packed

LOOK_S = 5.0
SMOKE_S = 30.0
"""For each worker: idle workers take turns (they wait for one lock, Model.pollBatch), so a model gets a smoke
request more often the more workers it has. One inference each half minute is a thousandth of a core."""
SMOKE_TIMEOUT_S = 300.0
"""Whoever waits that long is not served, however busy the server is."""
DESCRIBE_TIMEOUT_S = 5.0
WALK_S = 5.0
"""Between two searches for processes that are new; every second where one has come or gone."""
_BUSY = (429, 503)
"""A full queue: to be taken out of service for being busy would help nobody."""
_MOST_UNDER_WAY = 4
"""More smoke requests would only lengthen the queue they wait in."""


async def call(
    url: str, method: str, path: str, body: bytes = b"", content_type: str = "", *, timeout_s: float
) -> bytes:
    """The body of TorchServe's answer over its Unix socket; ApiError. Without a thread, so that as many as need be
    can wait for one that hangs."""
    kind = f"Content-Type: {content_type}\r\n" if content_type else ""
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{kind}"

    async def go() -> tuple[int, bytes]:
        reader, writer = await asyncio.open_unix_connection(url.removeprefix("unix:"))
        try:
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            first, _, rest = (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")
            headers = http.client.parse_headers(io.BytesIO(rest))
            # TorchServe keeps the connection open all the same.
            return int(first.split()[1]), await reader.readexactly(int(headers["content-length"]))
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
    said = await call(
        own.properties["inference_address"], "POST", path, archive.body, kind, timeout_s=timeout_s
    )
    try:
        return check_answer(archive.definition, own.models[model].precision, json.loads(said)) or ""
    except ValueError as problem:
        raise ApiError(f"{path}: the answer is not JSON: {said[:200]!r}") from problem


def count_planned(model: ModelPlan) -> int:
    """Workers of all versions."""
    return model.workers * len(model.archives)


class Answer(Protocol):
    """An asyncio.Future, or what a test has in its place."""

    def done(self) -> bool: ...
    def exception(self) -> BaseException | None: ...
    def result(self) -> str: ...


@dataclass(kw_only=True)
class _Sent:
    """A smoke request that is under way."""

    answer: Answer
    held_since: float | None = None
    """When it was first seen to have left the queue: from then on a worker holds it."""


class SmokeRequests:
    """Those of one model.

    A wrong answer or an error stays the verdict until a later answer is right. One that waits its turn says
    nothing; one that a worker holds for longer than any batch takes says that this worker hangs. TorchServe's
    queue is first come, first served, so when nothing waits, all that were sent are in a worker.
    """

    def __init__(self, send: Callable[[], Answer], held_s: float) -> None:
        self._send = send
        self._held_s = held_s
        self._under_way: list[_Sent] = []
        self._verdict: Problem | None = None
        self.answered = 0
        """How many workers answered so far, right or wrong."""

    def send(self) -> None:
        """One more."""
        if len(self._under_way) < _MOST_UNDER_WAY:
            self._under_way.append(_Sent(answer=self._send()))

    @property
    def under_way(self) -> int:
        """How many are sent and not answered."""
        return len(self._under_way)

    def judge(self, waiting: int, now: float) -> Problem | None:
        """What is wrong as far as is known now. `waiting` counts the queue."""
        for sent in self._under_way:
            if sent.answer.done():
                self._weigh(sent.answer)
            elif not waiting and sent.held_since is None:
                sent.held_since = now
        self._under_way = [sent for sent in self._under_way if not sent.answer.done()]
        held = now - min(
            (sent.held_since for sent in self._under_way if sent.held_since is not None), default=now
        )
        if held > self._held_s:
            text = f"a smoke request has no answer after {held:.0f} s, and none waits: a worker hangs"
            return Problem(lack=Lack.HANG, text=text)
        return self._verdict

    def _weigh(self, answer: Answer) -> None:
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
        self,
        own: InstancePlan,
        archives: Mapping[str, Packed],
        root: int,
        read: Callable[[int], Activity | None] = read_activity,
    ) -> None:
        """`root`: the process that was started; it leads a session."""
        self._own, self._archives, self._root, self._read = own, archives, root, read
        self._processes: list[Process] = []
        self._walked_at, self._quiet = float("-inf"), False
        self._tasks: set[asyncio.Task[str]] = set()
        self.looks: dict[str, ModelLook] = {}
        self.looked_at = time.monotonic()
        self._count = 0
        self.forget()

    def forget(self) -> None:
        """All of it was stopped for a while: what was counted until then tells nothing."""
        self.looked_at = time.monotonic()
        self._workers: dict[str, dict[int, Worker]] = {}
        self._smoke = {
            name: SmokeRequests(
                partial(self._send, name), BATCH_SHARE * self._own.models[name].response_timeout_s
            )
            for name in self._archives
        }

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
            self.looks[name] = await self._look_at(name, now)
        self.looked_at = now

    async def _look_at(self, name: str, now: float) -> ModelLook:
        model, smoke = self._own.models[name], self._smoke.get(name)
        planned = count_planned(model)
        try:
            ready, waiting = await describe(self._own, name)
        except ApiError as problem:
            return ModelLook(planned=planned, problems=(Problem(lack=Lack.NO_ANSWER, text=str(problem)),))
        problems = []
        if len(ready) < planned:
            problems.append(Problem(lack=Lack.WORKERS, text=f"{len(ready)} of {planned} workers ready"))
        answered = 0
        if smoke:
            problems += [found] if (found := smoke.judge(waiting, now)) else []
            answered = smoke.answered
            if len(ready) == 1:  # then it is plain who shall answer what has left the queue
                waiting += smoke.under_way
        seen = {pid: activity for pid in ready if (activity := self._read(pid))}
        before = self._workers.get(name, {})
        workers = remember_workers(before, seen, waiting=waiting, answered=answered, now=now)
        self._workers[name] = workers
        # A handler of somebody else's may wait for another machine, for as long as its own time-out says.
        batch_s = model.response_timeout_s * (BATCH_SHARE if model.kit else 1)
        still_s = STILL_S if model.kit else max(STILL_S, batch_s)
        hangs = find_hangs(
            workers, seen, waiting=waiting, answered=answered, batch_s=batch_s, still_s=still_s, now=now
        )
        problems += [Problem(lack=Lack.HANG, text=f"worker {pid} {why}") for pid, why in hangs.items()]
        if smoke and self._count % max(1, round(SMOKE_S / LOOK_S / planned)) == 0:
            smoke.send()
        return ModelLook(
            planned=planned,
            ready=tuple(ready),
            hanging=tuple(pid for pid in hangs if not seen[pid].stopped),
            problems=tuple(problems),
        )

    def _send(self, name: str) -> asyncio.Task[str]:
        sent = send_smoke_request(self._own, name, self._archives[name], SMOKE_TIMEOUT_S)
        task = asyncio.ensure_future(sent)
        self._tasks.add(task)  # else nobody holds it after `forget`
        task.add_done_callback(self._discard)
        return task

    def _discard(self, task: asyncio.Task[str]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # seen, also where nobody waits for it any more

    def close(self) -> None:
        """Its instance has ended."""
        for task in self._tasks:
            task.cancel()

    def observe(self, now: float) -> Observation:
        """Its processes now, and the last looks; new processes are found within a second of another's end."""
        activities = self._read_activities()
        if not self._quiet or len(activities) < len(self._processes) or now - self._walked_at >= WALK_S:
            before, self._processes = self._processes, find_session(self._root)
            self._walked_at, self._quiet = now, before == self._processes
            activities = self._read_activities()
        return observe(
            self._processes,
            activities,
            {pid: read_anonymous_mib(pid) or 0 for pid in activities},
            self.looks,
            self.looked_at,
            launched=self._own.launched,
        )

    def _read_activities(self) -> dict[int, Activity]:
        """Of those of them that live."""
        found = ((one, read_activity(one.pid, switches=False)) for one in self._processes)
        return {one.pid: seen for one, seen in found if seen and seen.start_ticks == one.start_ticks}
