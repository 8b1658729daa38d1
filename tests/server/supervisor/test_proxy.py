"""HAProxy is started, set to who serves, and started again; a stand-in for it (the real one: tests/proxy)."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from server.haproxy import HaproxyError, Stat
from server.processes import read_environment
from server.state import Phase
from server.supervisor import proxy as module
from server.supervisor.proxy import WINDOW_S, Prediction, Predictor, Proxy, Serving
from tests.server.fakes import wait_for
from tests.server.supervisor.stand_ins import make_haproxy, make_stand_in

ONE, NONE = Serving(1, 1, 8, 3), Serving(0, 1, 8, 3)


@pytest.fixture
def proxy(run, tmp_path, monkeypatch, lines) -> Iterator[Proxy]:
    (tmp_path / "env").mkdir()
    plan = make_stand_in(run, tmp_path / "env")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    run.logs.mkdir()
    run.temporary.mkdir()
    program = str(make_haproxy(run, tmp_path / "haproxy"))
    monkeypatch.setattr(module, "find_program", lambda _: program)
    monkeypatch.setattr("server.haproxy.TIMEOUT_S", 0.2)
    made = Proxy(run, replace(plan, proxy=replace(plan.proxy, port=port)), lines.append)
    yield made
    made.end()


def look_until(proxy: Proxy, done: Any) -> None:
    def look() -> bool:
        proxy.look(time.monotonic())
        return bool(done())

    wait_for(look)


def test_it_is_started_and_set_to_who_serves_once(proxy, monkeypatch) -> None:
    heard: list[tuple[Any, ...]] = []
    monkeypatch.setattr(proxy._runtime, "set_serving", lambda *words: heard.append(words))
    proxy.apply({("bert", "a1"): ONE})
    assert heard == []  # it does not run yet
    look_until(proxy, lambda: proxy.ready)
    for serving in (ONE, ONE, NONE):
        proxy.apply({("bert", "a1"): serving})
    assert heard == [("bert", "a1", *ONE), ("bert", "a1", *NONE)]
    assert proxy.describe().phase == Phase.READY


def test_killed_it_is_started_again_at_once_for_those_that_serve(proxy, run) -> None:
    look_until(proxy, lambda: proxy.ready)
    proxy.apply({("bert", "a1"): ONE, ("bert", "a2"): NONE})
    before = proxy.process
    before.kill()
    before.wait()
    proxy.look(time.monotonic())
    assert not proxy.ready
    assert proxy.process is not before
    environment = wait_for(lambda: read_environment(proxy.process.pid))
    assert (environment["KIT_STATE_a1"], environment["KIT_STATE_a2"]) == ("enabled", "disabled")
    assert environment["KIT_LISTENER"].startswith("fd@")
    look_until(proxy, lambda: proxy.ready)
    assert "SIGKILL" in proxy.describe().causes[0].cause


def test_one_that_does_not_answer_is_ended_after_a_while(proxy, monkeypatch) -> None:
    look_until(proxy, lambda: proxy.ready)
    now, before = time.monotonic(), proxy.process
    os.kill(before.pid, signal.SIGSTOP)
    proxy.look(now + module.UNHEARD_S - 1)
    assert (proxy.ready, before.poll(), proxy.describe().phase) == (False, None, Phase.STARTING)
    proxy.look(now + module.UNHEARD_S + 1)
    assert before.wait(60) == -signal.SIGKILL
    look_until(proxy, lambda: proxy.ready)


def test_what_cannot_be_started_is_tried_again_with_pauses(proxy, monkeypatch) -> None:
    monkeypatch.setattr(module, "find_program", lambda _: "/no/such/program")
    proxy.look(time.monotonic())
    proxy.look(time.monotonic())
    assert "cannot be started" in proxy.describe().causes[0].cause
    assert (proxy.describe().phase, proxy.was_ready) == (Phase.BACKING_OFF, False)


def test_a_drain_lets_nothing_new_in_and_waits_until_all_is_answered(proxy, monkeypatch, lines) -> None:
    left, calls = [2, 1, 0, 0], []
    monkeypatch.setattr(proxy._runtime, "reject_new", lambda: calls.append("reject"))
    monkeypatch.setattr(
        proxy._runtime, "count_without_response", lambda: calls.append("count") or left.pop(0)
    )
    proxy.drain(10.0)
    assert calls == []  # it does not run
    look_until(proxy, lambda: proxy.ready)
    proxy.drain(10.0)
    assert calls == ["reject", "count", "count", "count"]
    left[:] = [1] * 100
    began = time.monotonic()
    proxy.drain(0.2)
    assert time.monotonic() - began < 5
    assert "1 requests" in lines[-1]

    def fail() -> None:
        raise HaproxyError("it hangs")

    monkeypatch.setattr(proxy._runtime, "reject_new", fail)
    proxy.drain(10.0)
    assert "it hangs" in lines[-1]


FIRST, EVEN = Prediction(10_000, 450), Prediction(15_000, 450)


@pytest.mark.parametrize(
    ("looks", "learnt"),
    [
        ([(second, second * 100, 0) for second in range(10)], Prediction()),  # no queue was seen
        ([(0.0, 0, 9), (WINDOW_S / 2, 100, 9)], Prediction()),
        ([(0.0, 0, 9), (WINDOW_S / 2, 100, 9), (WINDOW_S, 200, 9)], FIRST),
        ([(0.0, 0, 9), (1.0, 10, 0), (WINDOW_S, 20, 9)], Prediction()),  # the queue was empty
        ([(0.0, 0, 9), (2.0, 200, 9), (4.0, 300, 9)], EVEN),  # newer windows weigh more
        ([(0.0, 1000, 9), (2.0, 10, 9)], Prediction()),  # counters that began anew
        ([(0.0, 1000, 9), (2.0, 10, 9), (4.0, 210, 9)], FIRST),
    ],
)
def test_the_rate_of_a_full_window_is_learnt(looks: Any, learnt: Prediction) -> None:
    one = Predictor()
    for at, answered, queued in looks:
        stat = Stat(answered=answered, queued=queued, in_hand=0, service_ms=300.0, up=1, asleep={})
        assert one.learn(at, stat) == one.prediction
    assert one.prediction == learnt
