"""The health file over time: what a container's check would make of it, in hours of simulated service."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import pytest

from config.atomic import name_draft
from config.plan import Setting
from server.activity import Activity
from server.api import Client
from server.archives import read_archive
from server.errors import ApiError
from server.health import LOOK_SECONDS, READY, STOPPING, Health, keep_health
from tests.server.fakes import make_archive, wait_for

UP = {"id": "9000", "status": "READY", "pid": 7}
DOWN = {"id": "9001", "status": "UNLOADING", "pid": -1}
RIGHT = {"label": "good", "probabilities": {"good": 0.75}}
WRONG = {"label": "bad", "probabilities": {"bad": 0.75}}

CHECK_SECONDS = 30.0
"""docker/Dockerfile: HEALTHCHECK --interval=30s --retries=2."""
RETRIES = 2
ILL_SECONDS = 90.0
HOUR = 3600.0


@dataclass(kw_only=True)
class Job:
    """A request in the simulated server."""

    seconds: float
    answer: Future[str] | None = None
    result: str = ""


@dataclass(kw_only=True)
class Worker:
    """A simulated worker; one that hangs keeps what it holds."""

    pid: int
    job: Job | None = None
    left: float = 0.0
    cpu_seconds: float = 0.0
    switches: int = 0
    free_since: float = 0.0
    stopped: bool = False
    asleep: bool = False
    spins: bool = False


@dataclass(kw_only=True)
class Simulated:
    """TorchServe with one queue, in steps of half a second; plays the client and /proc too."""

    workers: list[Worker]
    capacity: int = 100
    answer: str = ""
    load: Callable[[float], list[float]] = lambda _: []
    queue: deque[Job] = field(default_factory=deque)
    now: float = 0.0
    dead: bool = False

    def step(self, seconds: float = 0.5) -> None:
        self.now += seconds
        for cost in self.load(self.now):
            if len(self.queue) < self.capacity:
                self.queue.append(Job(seconds=cost))
        # Idle workers wait in line.
        for worker in sorted(self.workers, key=lambda one: one.free_since):
            self._work(worker, seconds)

    def _work(self, worker: Worker, seconds: float) -> None:
        # A stopped process does not take a job itself: TorchServe's thread does so for it.
        while seconds > 0 and (worker.job or self.queue):
            if worker.job is None:
                worker.job = self.queue.popleft()
                worker.left = worker.job.seconds
                worker.switches += not (worker.stopped or worker.asleep)
            if worker.stopped or worker.asleep:
                return
            if worker.spins:
                worker.cpu_seconds += seconds
                return
            spent = min(seconds, worker.left)
            worker.left, worker.cpu_seconds, seconds = (
                worker.left - spent,
                worker.cpu_seconds + spent,
                seconds - spent,
            )
            if worker.left <= 0:
                if worker.job.answer:
                    worker.job.answer.set_result(worker.job.result)
                worker.job = None
                worker.free_since = self.now

    def send(self, _name: str) -> Future[str]:
        answer: Future[str] = Future()
        if len(self.queue) >= self.capacity:
            answer.set_exception(ApiError("full", status=503))
        else:
            self.queue.append(Job(seconds=0.05, answer=answer, result=self.answer))
        return answer

    def describe(self, _name: str) -> dict:
        if self.dead:
            raise ApiError("no answer: IncompleteRead(0 bytes read)")
        workers = [{"status": "READY", "pid": worker.pid} for worker in self.workers]
        return {"workers": workers, "jobQueueStatus": {"pendingRequests": len(self.queue)}}

    def read(self, pid: int) -> Activity:
        (worker,) = [worker for worker in self.workers if worker.pid == pid]
        return Activity(
            stopped=worker.stopped, cpu_seconds=worker.cpu_seconds, start_ticks=1, switches=worker.switches
        )


class SimulatedHealth(Health):
    """Sends its canaries into the simulated queue."""

    def _send(self, name: str) -> Future[str]:
        return self.client.send(name)


def watch(
    plan,
    run,
    server: Simulated,
    seconds: float,
    events: dict[float, Callable[[], None]],
    *,
    offset: float = 0.0,
    response_timeout_s: int = 120,
) -> list[tuple[float, str]]:
    """(time, what the file says) at each of a container's checks, which begin `offset` seconds in."""
    values = {"workers": len(server.workers), "response_timeout_s": response_timeout_s}
    settings = {name: Setting(value=value, reason="test") for name, value in values.items()}
    models = {"bert": dataclasses.replace(plan.models["bert"], **settings)}
    health = SimulatedHealth(
        plan=dataclasses.replace(plan, models=models), archives={}, client=server, run=run, read=server.read
    )
    events, seen, text = dict(events), [], READY
    next_look, next_check = LOOK_SECONDS, offset
    while server.now < seconds:
        for when in [when for when in events if when <= server.now]:
            events.pop(when)()
        server.step()
        if server.now >= next_look:
            text, next_look = health.look(server.now), next_look + LOOK_SECONDS
        if server.now >= next_check:
            seen.append((server.now, text))
            next_check += CHECK_SECONDS
    return seen


def find_unhealthy(seen: list[tuple[float, str]]) -> list[float]:
    """When the container was unhealthy: RETRIES checks in a row were not ready."""
    bad = [text != READY for _, text in seen]
    return [seen[i][0] for i in range(len(seen)) if i + 1 >= RETRIES and all(bad[i + 1 - RETRIES : i + 1])]


def serve_two(**values) -> Simulated:
    return Simulated(workers=[Worker(pid=7), Worker(pid=8)], **values)


def busy(rate: float, cost: float) -> Callable[[float], list[float]]:
    """So many requests a second, each so many seconds of a worker."""
    return lambda now: [cost] * (int(now * rate) - int((now - 0.5) * rate))


def hang(server: Simulated, number: int, how: str) -> Callable[[], None]:
    return lambda: setattr(server.workers[number], how, True)


@pytest.mark.parametrize("offset", [0.0, 11.0, 22.0])
@pytest.mark.parametrize("how", ["stopped", "asleep", "spins"])
@pytest.mark.parametrize(
    "load", [busy(0, 0), busy(5, 0.1), busy(40, 0.1)], ids=["idle", "half", "overloaded"]
)
@pytest.mark.parametrize("workers", [1, 2, 8])
def test_one_hung_worker_is_ill_within_90_s_and_stays_so(plan, run, workers, load, how, offset):
    server = Simulated(workers=[Worker(pid=number) for number in range(workers)], load=load)
    seen = watch(plan, run, server, 600 + HOUR / 4, {600.0: hang(server, 0, how)}, offset=offset)
    ill = [when for when, text in seen if text != READY]
    assert 600 <= ill[0] < 600 + ILL_SECONDS + CHECK_SECONDS
    assert find_unhealthy(seen)[0] == ill[0] + CHECK_SECONDS
    assert all(text != READY for when, text in seen if when >= ill[0])


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("load", [busy(0, 0), busy(40, 0.1)], ids=["idle", "overloaded"])
def test_one_that_sleeps_is_ill_within_90_s_however_long_a_batch_may_take(plan, run, workers, load):
    server = Simulated(workers=[Worker(pid=number) for number in range(workers)], load=load)
    events = {600.0: hang(server, 0, "asleep")}
    seen = watch(plan, run, server, 900, events, response_timeout_s=900)
    assert min(when for when, text in seen if text != READY) < 600 + ILL_SECONDS + CHECK_SECONDS


@pytest.mark.parametrize("how", ["asleep", "spins"])
@pytest.mark.parametrize("workers", [1, 2, 8])
def test_a_model_all_of_whose_workers_hang_is_ill_and_stays_so(plan, run, workers, how):
    server = Simulated(workers=[Worker(pid=number) for number in range(workers)])

    def hang_all():
        for number in range(workers):
            hang(server, number, how)()

    seen = watch(plan, run, server, HOUR, {600.0: hang_all})
    assert {text != READY for when, text in seen if when > 600 + ILL_SECONDS + CHECK_SECONDS} == {True}


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_day_of_wrong_answers_is_a_day_of_illness(plan, run, workers):
    server = Simulated(workers=[Worker(pid=number) for number in range(workers)])
    seen = watch(plan, run, server, 6 * HOUR, {600.0: lambda: setattr(server, "answer", "wrong answer: x")})
    after = [text for when, text in seen if when > 600 + 60]
    assert set(after) == {"not ready: bert: wrong answer: x"}


def test_a_right_canary_ends_the_illness(plan, run):
    server = serve_two(answer="wrong answer: x")
    seen = watch(plan, run, server, HOUR, {1800.0: lambda: setattr(server, "answer", "")})
    assert seen[10][1] != READY
    assert {text for when, text in seen if when > 1800 + 60} == {READY}


@pytest.mark.parametrize(
    ("rate", "cost"), [(0, 0.0), (5, 0.1), (19, 0.1), (60, 0.1), (3, 2.0), (30, 2.0), (1, 38.0)]
)
def test_hours_of_any_load_are_no_illness(plan, run, rate, cost):
    """Up to a queue of 100 that takes half an hour, and batches just within a third of the time-out."""
    seen = watch(plan, run, serve_two(load=busy(rate, cost)), 3 * HOUR, {})
    assert {text for _, text in seen} == {READY}


def test_a_worker_that_goes_on_is_well_again(plan, run):
    server = serve_two()
    events = {600.0: hang(server, 0, "stopped"), 900.0: lambda: setattr(server.workers[0], "stopped", False)}
    seen = watch(plan, run, server, HOUR, events)
    assert {text for when, text in seen if 605 < when < 900} != {READY}
    assert {text for when, text in seen if when > 930} == {READY}


def test_torchserve_that_dies_in_mid_answer_is_ill(plan, run):
    server = serve_two()
    seen = watch(plan, run, server, 1200, {600.0: lambda: setattr(server, "dead", True)})
    assert {text for when, text in seen if when > 606} == {
        "not ready: bert: no answer: IncompleteRead(0 bytes read)"
    }


@pytest.fixture
def health(plan, run, torchserve, tmp_path):
    return Health(
        plan=dataclasses.replace(plan, models={"bert": plan.models["bert"]}),
        archives={"bert": read_archive(make_archive(tmp_path / "bert.mar", name="bert"))},
        client=Client(inference_url=torchserve.url, management_url=torchserve.url),
        run=run,
        read=lambda pid: None,
    )


def serve(torchserve, workers, answer=(200, RIGHT)):
    torchserve.routes = {
        "GET /models/bert": (200, [{"workers": workers}]),
        "POST /predictions/bert": answer,
    }


@pytest.mark.parametrize(
    ("workers", "answer", "text"),
    [
        ([UP, UP], (200, RIGHT), "ready"),
        ([UP, DOWN], (200, RIGHT), "not ready: bert: 1 of 2 workers ready"),
        ([UP, UP], (200, WRONG), "not ready: bert: wrong answer: expected the label 'good'"),
        ([UP, UP], (200, b"<html>"), "not ready: bert: http://127.0.0.1:"),
        ([UP, UP], (500, {"code": 500}), "not ready: bert: http://127.0.0.1:"),
        ([UP, UP], (503, {"code": 503}), "ready"),
        ([UP, UP], (429, {"code": 429}), "ready"),
    ],
)
def test_looks_tell_what_they_find(health, torchserve, workers, answer, text):
    serve(torchserve, workers, answer)
    looks = [health.look(float(number)) for number in range(4)]  # the third sends a canary
    canary = wait_for(lambda: [what for what, _, _ in torchserve.requests if what.startswith("POST")])
    assert canary == ["POST /predictions/bert"]
    assert wait_for(lambda: health.look(5.0).startswith(text))
    assert looks[0] == ("ready" if DOWN not in workers else text)


def test_without_an_answer_it_is_not_ready(health):
    assert health.look(0.0).startswith("not ready: bert: http://127.0.0.1:")


def test_the_file_follows_the_server_and_its_end(health, torchserve, run):
    serve(torchserve, [UP, DOWN])
    reports: list[str] = []
    with keep_health(health, reports.append, seconds=0.01):
        assert wait_for(lambda: "1 of 2" in run.health.read_text())
        serve(torchserve, [UP, UP])
        assert wait_for(lambda: run.health.read_text() == "ready\n")
    assert run.health.read_text() == f"{STOPPING}\n"
    assert reports == ["health: not ready: bert: 1 of 2 workers ready", "health: ready"]


def make_folder(path) -> bool:
    """Whether it could be made: a file of the name may be there for an instant."""
    with contextlib.suppress(FileExistsError):
        path.mkdir()
    return path.is_dir()


def test_a_file_that_cannot_be_written_is_said_once_and_grows_old(health, torchserve, run):
    serve(torchserve, [UP, UP])
    reports: list[str] = []
    draft = name_draft(run.health)
    with keep_health(health, reports.append, seconds=0.01):
        assert wait_for(run.health.exists)
        assert wait_for(lambda: make_folder(draft))
        assert wait_for(lambda: reports)
        before, looks = run.health.stat().st_mtime_ns, health.looks
        assert wait_for(lambda: health.looks > looks + 3)
        assert run.health.stat().st_mtime_ns == before
        draft.rmdir()
        assert wait_for(lambda: run.health.stat().st_mtime_ns != before)
    assert [text.split(": [")[0] for text in reports] == [
        "health: cannot be written, so it counts as not ready in a minute"
    ]


def test_a_look_that_fails_is_not_the_last_one(health, torchserve, run, monkeypatch):
    serve(torchserve, [UP, UP])

    def fail(*_):
        raise RuntimeError("a bug")

    with monkeypatch.context() as patched, keep_health(health, lambda _: None, seconds=0.01):
        patched.setattr(health, "look", fail)
        assert wait_for(lambda: run.health.read_text() == "not ready: cannot look: RuntimeError: a bug\n")
        patched.undo()
        assert wait_for(lambda: run.health.read_text() == "ready\n")


def test_a_disk_that_is_full_from_the_beginning_keeps_no_server_from_being_served(health, torchserve, run):
    serve(torchserve, [UP, UP])
    run.health.mkdir()
    with keep_health(health, lambda _: None, seconds=0.01):
        assert wait_for(lambda: health.looks > 2)
