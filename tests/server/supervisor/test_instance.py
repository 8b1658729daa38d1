"""One instance with a TorchServe of plain Python behind it: real processes, started, hurt and ended."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from server.processes import Process, find_marked, reap_orphans, send_signal
from server.state import Phase, read_failure, read_state
from server.supervisor import instance as module
from server.supervisor import observe
from server.supervisor.instance import GENTLE, Instance, may_be_gentle, set_nice
from server.supervisor.main import _SUBREAPER
from tests.server.supervisor.stand_ins import WRONG, make_stand_in, set_answer

ALL = ["TorchServe", "helper", "launcher", "worker"]
"""Roles of the processes of an instance; the helper is the `torchserve` command."""


@pytest.fixture
def good() -> SimpleNamespace:
    """What verify finds."""
    return SimpleNamespace(good=True, by_row=dict)


@pytest.fixture
def one(run, tmp_path, monkeypatch, lines, good) -> Iterator[Instance]:
    verify = SimpleNamespace(verify_instance=lambda *_: good, render=lambda *_: "batch_size differs\nof bert")
    monkeypatch.setitem(sys.modules, "server.verify", verify)
    monkeypatch.setattr(module, "TERMINATED_WITHIN_S", 0.3)
    monkeypatch.setattr(observe, "LOOK_S", 0.1)
    prctl = ctypes.CDLL(None).prctl
    prctl(_SUBREAPER, 1, 0, 0, 0)
    (tmp_path / "env").mkdir()
    yield Instance("a1", make_stand_in(run, tmp_path / "env"), run, lines.append)
    for process in find_marked(run.path):
        send_signal(process, signal.SIGKILL)
    prctl(_SUBREAPER, 0, 0, 0, 0)


async def turn_until(one: Instance, done: Callable[[], Any], *, others: bool = True) -> None:
    """The supervisor's turns, in quick succession."""
    ends = time.monotonic() + 30
    while not done():
        assert time.monotonic() < ends, one.describe()
        one.look(time.monotonic(), others=others)
        one.act()
        reap_orphans([one.process.pid] if one.process else [])
        await asyncio.sleep(0.02)


@pytest.fixture
def play(one) -> Callable[..., None]:
    """Runs what a test does with an instance that is ready, and ends it."""

    def run(do: Callable[[], Awaitable[None]], seconds: float = 5.0) -> None:
        async def go() -> None:
            await turn_until(one, lambda: one.ready)
            await do()
            await one.end(seconds)

        asyncio.run(go())

    return run


def find(one: Instance, role: str) -> Process:
    return next(process for process in find_marked(one.run.path) if process.role == role)


def test_it_is_started_verified_and_ended_with_nothing_left(one, run, play) -> None:
    async def do() -> None:
        assert sorted(process.role for process in find_marked(run.path)) == ALL
        assert one.serving == {"bert": 1}
        assert (one.describe().phase, one.describe().health) == (Phase.READY, "ready")
        state = read_state(one.run.state)
        assert (state.phase, set(state.archives)) == (Phase.READY, {"bert"})

    play(do)
    assert find_marked(run.path) == []
    assert not one.run.temporary.exists()
    assert not one.run.state.exists()


@pytest.mark.parametrize(
    ("role", "number", "cause"),
    [
        ("TorchServe", signal.SIGKILL, "TorchServe "),
        ("TorchServe", signal.SIGSTOP, "TorchServe is stopped (SIGSTOP)"),
        ("helper", signal.SIGKILL, "TorchServe ended"),
        ("worker", signal.SIGKILL, "bert: no worker is left"),
        ("worker", signal.SIGSTOP, "bert: no worker is left"),
        ("launcher", signal.SIGKILL, "bert: no worker is left"),
    ],
)
def test_what_was_hurt_serves_nobody_and_is_replaced_as_a_whole(one, run, play, role, number, cause) -> None:
    async def do() -> None:
        before = {process.pid for process in find_marked(run.path)}
        send_signal(find(one, role), number)
        await turn_until(one, lambda: not one.serving)
        await turn_until(one, lambda: one.ready)
        assert one.describe().restarts == 1
        assert one.describe().causes[0].cause.startswith(cause)
        after = find_marked(run.path)
        assert sorted(process.role for process in after) == ALL
        assert not before & {process.pid for process in after}

    play(do)


@pytest.mark.parametrize(
    ("role", "number", "why"),
    [("worker", signal.SIGSTOP, "is stopped"), ("launcher", signal.SIGKILL, "has lost its launcher")],
)
def test_where_nobody_else_serves_an_ill_worker_is_ended_alone(one, lines, play, role, number, why) -> None:
    async def do() -> None:
        worker = find(one, "worker")
        send_signal(find(one, role), number)
        told = f"worker {worker.pid} {why}"
        await turn_until(one, lambda: any(told in line for line in lines), others=False)
        await turn_until(one, lambda: not Path(f"/proc/{worker.pid}").exists(), others=False)  # no zombie
        await turn_until(one, lambda: not one.serving["bert"], others=False)
        assert one.describe().restarts == 0
        assert worker.pid not in {process.pid for process in find_marked(one.run.path)}

    play(do)


def test_one_that_is_to_be_replaced_waits_until_the_proxy_was_told(one, play) -> None:
    async def do() -> None:
        send_signal(find(one, "TorchServe"), signal.SIGSTOP)
        while one.serving:
            one.look(time.monotonic(), others=True)
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.2)
        assert find(one, "TorchServe")
        assert not one.ready
        one.retired = True  # a reload's: it is left to end by itself
        one.act()
        await asyncio.sleep(0.2)
        assert find(one, "TorchServe")

    play(do, 0.1)


@pytest.mark.parametrize("fault", ["answer", "verify", "environment", "archive", "full disk"])
def test_a_start_that_fails_leaves_its_cause_and_no_process_and_is_tried_again(
    one, run, monkeypatch, good, fault
) -> None:
    causes = {
        "answer": "smoke request: wrong answer", "verify": "differs from the plan", "environment": "missing:",
        "archive": "not as it was built", "full disk": "OSError: [Errno 28]",
    }  # fmt: skip
    if fault == "answer":
        set_answer(one.run, WRONG)
    elif fault == "environment":
        one.run.properties.unlink()
    elif fault == "archive":
        monkeypatch.setattr("server.archives.find_damage", lambda *_: "another file")
    elif fault == "full disk":
        full = Mock(side_effect=OSError(28, "No space left on device"))
        monkeypatch.setattr(module, "prepare_folders", full)
    good.good = fault != "verify"

    async def go() -> None:
        await turn_until(one, lambda: one.failure)
        assert causes[fault] in one.failure.describe()
        assert causes[fault] in one.describe().causes[0].cause
        assert not one.was_ready
        assert find_marked(run.path) == []
        assert read_failure(one.run.failure) == one.failure
        await turn_until(one, lambda: one.describe().restarts == 2)
        assert one.describe().phase == Phase.BACKING_OFF
        await one.end(0.1)

    asyncio.run(go())


def test_an_end_in_the_midst_of_a_start_leaves_nothing(one, run) -> None:
    async def go() -> None:
        await turn_until(one, lambda: len(find_marked(run.path)) > 1)
        await one.end(5.0)

    asyncio.run(go())
    assert find_marked(run.path) == []


def test_what_is_forgiven_is_no_reason_any_more(one, play) -> None:
    async def do() -> None:
        one._memory, one._watch.looked_at = module.Memory(unwell_since=0.0), 0.0
        one.forgive()
        one.look(time.monotonic(), others=True)
        assert one.ready

    play(do)


@pytest.mark.skipif(not may_be_gentle(), reason="only root, or who has RLIMIT_NICE, can make it urgent again")
def test_an_instance_of_a_reload_loads_gently_and_serves_as_others_do(one) -> None:
    async def go() -> None:
        one.gentle = True
        await turn_until(one, find_gentle)
        await turn_until(one, lambda: one.ready)
        assert not find_gentle()
        await one.end(5.0)

    def find_gentle() -> list[int]:
        pids = [process.pid for process in find_marked(one.run.path)]
        return [pid for pid in pids if os.getpriority(os.PRIO_PROCESS, pid) == GENTLE]

    asyncio.run(go())


@pytest.mark.skipif(not may_be_gentle(), reason="only root, or who has RLIMIT_NICE, can make it urgent again")
def test_a_process_is_made_gentle_and_urgent_again() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        for nice in (GENTLE, 0):
            set_nice([2**22 - 1, process.pid], nice)
            assert os.getpriority(os.PRIO_PROCESS, process.pid) == nice
