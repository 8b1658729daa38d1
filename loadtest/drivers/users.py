"""Locust's users for both loops: run headless, with Locust's web page, or as its master and workers.

An open loop is one user per process that starts each request in a greenlet of its own when it is due, so
that answers hold nothing up. Rows come from Locust's `request` event; Locust's own statistics round to two
digits. Its page shows them too, and there open-loop times count from when a request was due.
Closed-loop response times are no latency under load: a server that stalls is asked less.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

import gevent
from geventhttpclient.client import HTTPClientPool
from locust import FastHttpUser, LoadTestShape, constant, events, task
from locust.runners import MasterRunner, WorkerRunner

from loadtest.drivers.job import read_job
from loadtest.drivers.locust import JOB_VARIABLE, OUT_FILE, REPORT, WORKERS_VARIABLE
from loadtest.drivers.records import Recorder
from loadtest.drivers.schedule import order_payloads, plan_arrivals, share_count

FOLDER = Path(os.environ[JOB_VARIABLE])
JOB = read_job(FOLDER)
# Any: Locust's annotation leaves out bytes, which its HTTP client takes.
BODIES: list[Any] = [(FOLDER / one.file).read_bytes() for one in JOB.bodies]
HEADERS = [{"Content-Type": one.content_type, **JOB.headers} for one in JOB.bodies]
END_S = JOB.duration_s + JOB.cool_down_s
"""From the begin of the window; no request starts later."""
LEAD_S = 0.3
"""From a user's start to its first request: spawning must not delay the first arrivals."""
MOST_CONNECTIONS = 20_000
"""More requests under way than this would be more than a machine has ports."""
SHAPE_SECONDS = 60
"""Locust looks once a second whether a shape has ended; a run that never ends is ended after this more."""


class Generator:
    """What one process sends in one run, and what it saw."""

    def __init__(self, worker: int, workers: int) -> None:
        self.worker, self.workers = worker, workers
        self.recorder = Recorder()
        self.users, self.finished = 0, 0
        self.zero: float | None = None
        self.wall_zero = 0.0
        self.cpu: dict[str, float] = {}
        # Of a closed loop: as listed, each process takes its share; by chance, each has an order of its own.
        self.order = (
            order_payloads(len(BODIES), seed=JOB.seed + worker)
            if JOB.shuffled
            else itertools.islice(itertools.cycle(range(len(BODIES))), worker, None, workers)
        )
        self.left = share_count(JOB.stop_after, worker=worker, workers=workers)

    def begin(self) -> None:
        """The first user starts the clock; zero is the begin of the measured window."""
        self.users += 1
        if self.zero is None:
            ahead = LEAD_S + JOB.warm_up_s
            self.zero, self.wall_zero = time.perf_counter() + ahead, time.time() + ahead
            gevent.spawn_later(ahead, self._note_cpu, "begin")
            gevent.spawn_later(ahead + JOB.duration_s, self._note_cpu, "end")

    def _note_cpu(self, moment: str) -> None:
        """Once for each moment."""
        self.cpu.setdefault(moment, time.process_time())

    def now(self) -> float:
        """Seconds from the begin of the measured window."""
        return time.perf_counter() - (self.zero or 0.0)

    def goes_on(self) -> bool:
        """Whether a closed loop's user may send another request; if so it is counted."""
        if self.left == 0 or self.now() >= END_S:
            return False
        self.left = None if self.left is None else self.left - 1
        return True

    def plan(self) -> list[tuple[float, int]]:
        """(due, payload) of this process's share of an open loop."""
        due = plan_arrivals(JOB.process, rate=JOB.level, begin_s=-JOB.warm_up_s, end_s=END_S, seed=JOB.seed)
        planned = list(zip(due.tolist(), order_payloads(len(BODIES), seed=JOB.seed), strict=False))
        return planned[self.worker :: self.workers]

    def finish(self) -> bool:
        """Whether the last user of this process has ended."""
        self.finished += 1
        return self.finished == self.users

    def report(self) -> dict[str, Any]:
        """What goes to the master."""
        self._note_cpu("begin")  # a loop that stops after so many requests may not have come so far
        self._note_cpu("end")
        seconds = max(min(self.now(), JOB.duration_s), 1e-3)
        return {
            "rows": self.recorder.rows,
            "answers": list(self.recorder.answers),
            "cpu_share": (self.cpu["end"] - self.cpu["begin"]) / seconds,
            "wall_zero": self.wall_zero,
        }


class State:
    """Of this process; replaced when a test starts."""

    generator: Generator
    reports: list[dict[str, Any]]


class Plan(LoadTestShape):
    """As many users as the job says, until every process has reported."""

    def tick(self) -> tuple[int, float] | None:
        if len(State.reports) >= _count_workers(self.runner):
            return None
        if self.get_run_time() > JOB.longest_s + SHAPE_SECONDS:
            return None
        users = _count_workers(self.runner) if JOB.is_open else int(JOB.level)
        return users, float(users)


def _count_workers(runner: Any) -> int:
    return max(1, runner.worker_count) if isinstance(runner, MasterRunner) else 1


POOL = HTTPClientPool(
    concurrency=MOST_CONNECTIONS, network_timeout=JOB.timeout_s, connection_timeout=JOB.timeout_s
)
"""Of all users of an open loop together; each closed one has its own."""


class Sender(FastHttpUser):
    """Sends one request and records it."""

    abstract = True
    host = JOB.url
    network_timeout = connection_timeout = JOB.timeout_s
    client_pool = POOL if JOB.is_open else None
    wait_time = constant(0)

    def send(self, payload: int, due: float) -> None:
        """A network time-out starts anew with each byte; the timer here bounds the whole request."""
        context = {"payload": payload, "due": due, "sent": State.generator.now()}
        timer = gevent.Timeout(JOB.timeout_s)
        timer.start()
        try:
            # `with`, so that the time Locust shows can count from when the request was due.
            with self.client.post(JOB.bodies[payload].path, data=BODIES[payload], headers=HEADERS[payload],
                                  context=context, catch_response=True) as response:  # fmt: skip
                if JOB.is_open:
                    response.request_meta["response_time"] += 1000 * (context["sent"] - due)
        except gevent.Timeout:
            self._give_up(context)
        finally:
            timer.close()

    def _give_up(self, context: dict[str, Any]) -> None:
        waited = 1000 * JOB.timeout_s
        self.environment.events.request.fire(
            request_type="POST", name=JOB.bodies[context["payload"]].path, response_time=waited,
            response_length=0, response=None, context=context,
            exception=TimeoutError(f"no whole answer within {JOB.timeout_s:g} s"),
        )  # fmt: skip


def record(response: Any, exception: Any, context: dict[str, Any], **_: Any) -> None:
    """Listener of the `request` event, which fires as soon as an answer is read."""
    if "sent" not in context:
        return
    status = int(getattr(response, "status_code", 0) or 0)
    content = getattr(response, "content", None) if status else None
    State.generator.recorder.add(
        payload=context["payload"],
        scheduled=context["due"],
        sent=context["sent"],
        ended=State.generator.now(),
        status=status,
        body=content.decode(errors="replace") if isinstance(content, (bytes, bytearray)) else "",
        error="" if exception is None else _describe(exception),
    )


def _describe(exception: BaseException) -> str:
    return f"{type(exception).__name__}: {exception}".split("\n")[0][:120]


class OpenLoopUser(Sender):
    """Starts requests when they are due, whatever became of the earlier ones."""

    abstract = not JOB.is_open

    @task
    def run_schedule(self) -> None:
        generator = State.generator
        generator.begin()
        under_way = []
        for due, payload in generator.plan():
            wait = due - generator.now()
            if wait > 0:
                gevent.sleep(wait)
            under_way.append(gevent.spawn(self.send, payload, due))
        gevent.joinall(under_way)
        _end(self)


class ClosedLoopUser(Sender):
    """Sends a request, waits for its answer, sends the next."""

    abstract = JOB.is_open
    concurrency = 1

    @task
    def run_loop(self) -> None:
        generator = State.generator
        generator.begin()
        gevent.sleep(max(0.0, -JOB.warm_up_s - generator.now()))
        while generator.goes_on():
            self.send(next(generator.order), float("nan"))
        _end(self)


def _end(user: Sender) -> None:
    """The last user of the process reports; then all wait to be stopped."""
    if State.generator.finish():
        user.environment.runner.send_message(REPORT, State.generator.report())
    gevent.sleep(JOB.longest_s + 2 * SHAPE_SECONDS)


@events.init.add_listener
def prepare(environment: Any, **_: Any) -> None:
    """The master (or the only process) collects."""
    environment.events.request.add_listener(record)
    if not isinstance(environment.runner, WorkerRunner):
        environment.runner.register_message(REPORT, collect)


def collect(environment: Any, msg: Any, **_: Any) -> None:
    """One process's report; the last one completes the run."""
    State.reports.append(msg.data)
    if len(State.reports) == _count_workers(environment.runner):
        (FOLDER / OUT_FILE).write_text(json.dumps(State.reports), encoding="utf-8")


@events.test_start.add_listener
def start(environment: Any, **_: Any) -> None:
    """A fresh run; the web page can start several, one after the other."""
    runner = environment.runner
    worker, workers = 0, 1
    if isinstance(runner, WorkerRunner):
        # Told by whoever started them: a worker does not know of the others.
        worker, workers = max(0, runner.worker_index), int(os.environ.get(WORKERS_VARIABLE, "1"))
    State.generator, State.reports = Generator(worker, workers), []


State.reports = []
