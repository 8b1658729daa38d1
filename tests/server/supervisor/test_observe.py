"""Smoke requests, looks at a TorchServe, and the wait until it is ready."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from config.plan import InstancePlan
from handlers.definition import Packed
from server.errors import ApiError
from server.processes import Activity
from server.ready import EXTRA_SECONDS, StartFailed, wait_until_ready
from server.state import Failure
from server.supervisor import observe as module
from server.supervisor.judge import Lack
from server.supervisor.observe import SmokeRequests, Watch, call, describe
from tests.plans import make_instance, make_model
from tests.server.fakes import Clock
from tests.server.supervisor.stand_ins import RIGHT, WRONG

HELD_S = 40.0
UP = {"status": "READY", "pid": 7}
DOWN = {"status": "UNLOADING", "pid": -1}
FULL = {"jobQueueStatus": {"pendingRequests": 3, "remainingCapacity": 0}}
Answers = dict[str, Any]


def test_a_wrong_answer_counts_until_a_right_one_comes() -> None:
    sent: list[Future[str]] = [Future() for _ in range(5)]
    one, answers = SmokeRequests(iter(sent).__next__, HELD_S), iter(sent)  # type: ignore[arg-type]
    for answer, lack in (
        ("another", Lack.WRONG_ANSWER),
        (ApiError("full", status=503), Lack.WRONG_ANSWER),
        (ApiError("it ended"), Lack.NO_ANSWER),
        ("", None),
        (ApiError("full", status=429), None),
    ):
        one.send()
        future = next(answers)
        future.set_result(answer) if isinstance(answer, str) else future.set_exception(answer)
        for now in (0.0, 6 * 3600.0):
            found = one.judge(0, now)
            assert (found.lack if found else None) == lack
    assert one.answered == 2


@pytest.mark.parametrize(("waiting", "hangs"), [(0, True), (1, False)])
def test_one_that_a_worker_holds_for_longer_than_any_batch_says_that_it_hangs(
    waiting: int, hangs: bool
) -> None:
    one = SmokeRequests(Future, HELD_S)  # type: ignore[arg-type]
    for now in range(30, 1000, 30):
        one.send()
        found = one.judge(waiting, float(now))
        assert bool(found and found.lack == Lack.HANG) is (hangs and now - 30 > HELD_S)
    assert len(one.under_way) == 4


@contextmanager
def serve(path: Path, answers: Answers) -> Iterator[Callable[[Any], Any]]:
    """Answers on both sockets of an instance: runs a coroutine beside that. A list is answered in turn."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        size = int(head.lower().partition("content-length: ")[2].split()[0])
        await reader.readexactly(size)
        said = answers[" ".join(head.split()[:2])]
        if isinstance(said, list):
            said = said.pop(0) if len(said) > 1 else said[0]
        status, fields = said
        if status == 0:  # it dies in mid-answer
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 90\r\n\r\n[")
            writer.close()
            return
        if status is None:  # it hangs
            await asyncio.sleep(60)
        body = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
        writer.write(f"HTTP/1.1 {status} x\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)

    async def run(do: Any) -> Any:
        servers = [await asyncio.start_unix_server(answer, str(path / f"{one}.sock")) for one in ("m", "i")]
        try:
            return await do
        finally:
            for server in servers:
                server.close()

    yield lambda do: asyncio.run(run(do))


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InstancePlan:
    """Of bert, with two workers."""
    monkeypatch.chdir(tmp_path)  # a socket's name is short, a test's folder may not be
    made = make_instance(1, {"bert": make_model("bert", workers=2)})
    sockets = {"management_address": "unix:m.sock", "inference_address": "unix:i.sock"}
    return replace(made, properties={**made.properties, **sockets})


@pytest.fixture
def archives(archive: Packed) -> dict[str, Packed]:
    return {"bert": archive}


def said(*workers: Any, **fields: Any) -> tuple[int, Any]:
    return 200, [{"workers": list(workers), **fields}]


LOOKS = [
    (said(UP, UP), (200, RIGHT), set()),
    (said(UP, DOWN), (200, RIGHT), {Lack.WORKERS}),
    (said(UP, UP), (200, WRONG), {Lack.WRONG_ANSWER}),
    (said(UP, UP), (200, b"<html>"), {Lack.NO_ANSWER}),
    (said(UP, UP), (500, {}), {Lack.NO_ANSWER}),
    (said(UP, UP), (0, {}), {Lack.NO_ANSWER}),
    (said(UP, UP), (503, {}), set()),
    (said(UP, UP), (429, {}), set()),
    ((0, {}), (200, RIGHT), {Lack.NO_ANSWER}),
    ((None, {}), (200, RIGHT), {Lack.NO_ANSWER}),
    ((200, b"[1]"), (200, RIGHT), {Lack.NO_ANSWER}),
]


@pytest.mark.parametrize(("described", "predicted", "lacks"), LOOKS)
def test_looks_see_what_lacks(own, archives, tmp_path, monkeypatch, described, predicted, lacks) -> None:
    monkeypatch.setattr(module, "DESCRIBE_TIMEOUT_S", 0.1)
    watch = Watch(own, archives, Path("/kit"), read=lambda _: None)

    async def look() -> None:
        for turn in range(4):  # the third sends a smoke request
            await watch.look(float(turn))
            await asyncio.sleep(0.05)
        await watch.look(5.0)

    with serve(tmp_path, {"GET /models/bert": described, "POST /predictions/bert": predicted}) as run:
        run(look())
    assert {problem.lack for problem in watch.looks["bert"].problems} == lacks
    assert watch.looked_at == 5.0


def test_a_stopped_worker_is_a_problem_and_not_one_to_end_by_this_look(own, archives, tmp_path) -> None:
    stopped = Activity(stopped=True, cpu_seconds=0.0, start_ticks=1)
    watch = Watch(own, archives, Path("/kit"), read=lambda _: stopped)
    with serve(tmp_path, {"GET /models/bert": said(UP, {**UP, "pid": 8})}) as run:
        run(watch.look(0.0))
    look = watch.looks["bert"]
    assert (look.ready, look.hanging, {one.lack for one in look.problems}) == ((7, 8), (), {Lack.HANG})


def test_a_look_that_fails_is_not_the_last_one_and_after_a_pause_it_begins_again(
    own, archives, tmp_path, monkeypatch
) -> None:
    watch = Watch(own, archives, Path("/kit"), read=lambda _: None)

    async def go() -> None:
        await watch.look(0.0)
        monkeypatch.setattr(watch, "_weigh", lambda *_: 1 / 0)
        task = asyncio.ensure_future(watch.run())
        await asyncio.sleep(0.1)
        assert "ZeroDivisionError" in watch.looks["bert"].problems[0].text
        monkeypatch.undo()
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(module, "LOOK_S", 0.01)
        await asyncio.sleep(0.1)
        assert not watch.looks["bert"].problems
        count, smoke = watch._count, watch._smoke
        monkeypatch.setattr(module, "LOOK_S", -1.0)  # each wait took too long
        await asyncio.sleep(0.1)
        assert watch._smoke is not smoke
        assert watch._count <= count + 1
        task.cancel()

    monkeypatch.setattr(module, "LOOK_S", 0.01)
    with serve(tmp_path, {"GET /models/bert": said(UP, UP), "POST /predictions/bert": (200, RIGHT)}) as run:
        run(go())


def test_of_several_versions_all_workers_count(own, tmp_path) -> None:
    model = replace(own.models["bert"], archives={"1.0": "a.mar", "2.0": "b.mar"})
    two = 200, [{"workers": [UP], **FULL}, {"workers": [{**UP, "pid": 8}, DOWN], **FULL}]
    with serve(tmp_path, {"GET /models/bert/all": two}) as run:
        assert run(describe(replace(own, models={"bert": model}), "bert")) == ([7, 8], 6)


def test_who_hangs_blocks_nobody_else(own, tmp_path) -> None:
    async def ask() -> None:
        hung = [call("unix:m.sock", "GET", "/hangs", timeout_s=0.5) for _ in range(50)]
        tasks = [asyncio.ensure_future(one) for one in hung]
        assert await call("unix:i.sock", "GET", "/good", timeout_s=0.4) == b"{}"
        for task in tasks:
            with pytest.raises(ApiError, match="no response"):
                await task

    with serve(tmp_path, {"GET /hangs": (None, {}), "GET /good": (200, {})}) as run:
        run(ask())


@pytest.fixture
def wait(own, archives, tmp_path):
    """Run the wait; gives (seconds, lines)."""

    def go(answers: Answers, find: Any = lambda: None, die: Any = lambda: None, kit: Any = archives) -> Any:
        clock, lines = Clock(), []

        async def sleep(seconds: float) -> None:
            clock.sleep(seconds)

        how = {"find_failure": find, "find_death": die, "report": lines.append, "sleep": sleep, "now": clock}
        with serve(tmp_path, answers) as run:
            run(wait_until_ready(own, kit, **how))
        return clock.now, lines

    return go


LOADING = said(UP, DOWN)


def test_ready_means_all_workers_and_of_an_archive_of_the_kit_a_right_answer(wait) -> None:
    turns = [(503, {}), said(), LOADING, LOADING, said(UP, UP)]
    seconds, lines = wait({"GET /models/bert": turns, "POST /predictions/bert": (200, RIGHT)})
    assert (seconds, len(lines)) == (2.0, 4)
    assert wait({"GET /models/bert": [LOADING, said(UP, UP)]}, kit={})[0] == 0.5  # others made it


@pytest.mark.parametrize(
    ("described", "predicted", "cause"),
    [
        (said(UP, UP), (200, WRONG), "wrong answer"),
        (said(UP, UP), (500, {}), "no answer"),
        ((404, {}), (200, RIGHT), "does not know the model"),
    ],
)
def test_what_does_not_answer_right_fails_at_once(wait, described, predicted, cause) -> None:
    with pytest.raises(StartFailed, match=cause) as failed:
        wait({"GET /models/bert": described, "POST /predictions/bert": predicted})
    assert failed.value.failure.model == "bert"


def test_a_failed_worker_a_torchserve_that_ends_and_the_time_end_the_wait(wait, own) -> None:
    # Its log is read again.
    found = iter([None, None, Failure(cause="first sight"), Failure(cause="all of it")])
    with pytest.raises(StartFailed, match="all of it"):
        wait({"GET /models/bert": LOADING}, find=found.__next__)
    with pytest.raises(StartFailed, match="it ended"):
        wait({"GET /models/bert": LOADING}, die=lambda: Failure(cause="it ended"))
    limit = own.models["bert"].startup_timeout_s + EXTRA_SECONDS
    with pytest.raises(StartFailed, match=f"after {limit} s"):
        wait({"GET /models/bert": LOADING})
