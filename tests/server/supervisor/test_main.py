"""The loop: what is ready, what a start fails by, that nothing unforeseen ends it, and how it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from server.processes import find_marked, read_environment, read_process
from server.rundir import MARK
from server.state import Cause, Failure, Part, Phase, read_failure, read_record
from server.supervisor import main as module
from server.supervisor.main import Server
from server.supervisor.probes import Readiness
from server.supervisor.proxy import Serving
from tests.end_to_end.kit import find_port
from tests.server.fakes import wait_for
from tests.server.supervisor.stand_ins import make_haproxy, make_stand_in


@dataclass
class FakeInstance:
    name: str
    own: Any
    calls: list[str]
    ready: bool = False
    retired: bool = False
    was_ready: bool = False
    process: Any = None
    watched: Any = None
    failure: Failure | None = None
    looked_at: float = 0.0
    part: Part = field(default_factory=Part)
    others: list[bool] = field(default_factory=list)
    act: Mock = field(default_factory=Mock)
    forgive: Mock = field(default_factory=Mock)

    @property
    def serving(self) -> dict[str, int]:
        return dict.fromkeys(self.own.models, int(self.ready))

    def look(self, now: float, *, others: bool) -> None:
        self.others.append(others)
        self.looked_at = now
        self.was_ready = self.was_ready or self.ready

    def describe(self) -> Part:
        return self.part

    def describe_serving(self, model: str) -> Serving:
        return Serving(workers=self.serving[model])

    async def end(self, seconds: float) -> None:
        self.calls.append(self.name)


@pytest.fixture
def stage(run, plan, monkeypatch, lines):
    """A server with two instances; HAProxy notes in which order things end."""
    monkeypatch.setattr(module, "PROCESSES_S", 0.0)  # every turn looks at all
    proxy = Mock(ready=True, was_ready=True, process=None, calls=[], stats={})
    proxy.requests.read_lines.return_value = []
    proxy.describe.return_value = Part(phase=Phase.READY)
    proxy.drain, proxy.end = (lambda *_, name=name: proxy.calls.append(name) for name in ("drain", "end"))
    instances = [FakeInstance(name, own, proxy.calls) for name, own in plan.instances.items()]
    return Server(run, plan, proxy, instances, lines.append), proxy, instances, lines  # type: ignore[arg-type]


def turn(server: Server) -> tuple[Phase, bool]:
    """What the record and the probes say after another one."""
    server.turn()
    record = read_record(server.run_dir.record)
    assert record is not None
    return record.phase, server.readiness.ready


def find_asked(proxy: Mock) -> set[str]:
    """Instances that the proxy was told last to hand requests to."""
    return {name for (_, name), serving in proxy.apply.call_args.args[0].items() if serving.workers}


def test_a_start_is_over_when_every_instance_serves_and_one_lost_later_leaves_it_ready(stage) -> None:
    server, proxy, (one, other), lines = stage
    one.ready = True
    assert turn(server) == (Phase.STARTING, False)
    other.ready = True
    assert turn(server) == (Phase.READY, True)
    assert find_asked(proxy) == {"a1", "a2"}
    other.ready, told = False, []
    other.act = lambda: told.append(find_asked(proxy))
    assert turn(server) == (Phase.DEGRADED, True)
    assert told == [{"a1"}]  # it is ended after that; else what it had in hand is asked again of itself
    assert (one.others[-1], other.others[-1]) == (False, True)  # alone, it is given more time
    assert len(lines) == 1
    one.ready = False
    assert turn(server) == (Phase.DEGRADED, False)


def test_those_of_a_reload_count_once_they_serve_and_those_it_retires_no_more(stage) -> None:
    server, _, (one, other), _ = stage
    assert server.ask_reload()  # it starts
    one.ready = other.ready = True
    turn(server)
    server.instances["b1"] = new = replace(one, name="b1", ready=False, was_ready=False)
    assert turn(server)[0] == Phase.READY
    new.ready, one.retired, one.ready = True, True, False
    assert turn(server)[0] == Phase.READY
    assert not server.ask_reload()
    assert server.ask_reload()  # one is under way


@pytest.mark.parametrize("failure", [None, Failure(model="bert", step="freeze", cause="no memory")])
def test_an_instance_that_ends_before_it_was_ready_fails_the_start(stage, run, failure) -> None:
    server, proxy, (one, _), lines = stage
    one.part, one.failure = Part(restarts=1, causes=(Cause(at="", cause="no memory"),)), failure
    assert asyncio.run(server.run()) == 1
    assert read_record(run.record).phase == Phase.FAILED
    assert read_failure(run.failure) == (failure or Failure(cause="no memory"))
    assert "no memory" in lines[0]
    assert proxy.calls == ["drain", "a1", "a2", "end"]


def test_a_proxy_that_ends_before_it_was_ready_fails_the_start_and_later_does_not(stage) -> None:
    """Such as for too few open files: it would be started again and again, and nobody told."""
    server, proxy, _, _ = stage
    causes = (Cause(at="", cause="HAProxy ended (status 1): no"),)
    proxy.describe.return_value = Part(restarts=1, causes=causes)
    assert turn(server)[0] == Phase.STARTING  # killed, after it had answered
    proxy.was_ready = False
    assert turn(server)[0] == Phase.FAILED


def test_whoever_was_stopped_in_the_midst_of_a_turn_is_forgiven_too(stage, monkeypatch) -> None:
    """Else an instance that is well is replaced: for so long nobody has looked at it."""
    server, proxy, (one, other), _ = stage
    began = server._turned_at
    clock = SimpleNamespace(now=began + 1)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    proxy.look = lambda _: setattr(clock, "now", clock.now + 40)
    turn(server)
    assert (one.looked_at, one.forgive.call_count) == (began + 1, 0)
    proxy.look = lambda _: None
    turn(server)
    assert (one.others, one.forgive.call_count) == ([False], 1)
    other.ready = True
    for _ in range(int(module.GRACE_S) + 1):
        clock.now += 1
        turn(server)
    assert one.others == [False, False, True]  # what was seen of the other one before is too old


def test_what_nobody_foresaw_is_said_once_and_does_not_end_the_loop(stage, monkeypatch) -> None:
    server, proxy, (one, other), lines = stage
    monkeypatch.setattr(module, "TURN_S", 0.01)

    async def go() -> None:
        proxy.look.side_effect = ValueError("nobody foresaw this")
        loop = asyncio.ensure_future(server._turn_on())
        await asyncio.sleep(0.1)
        assert len(lines) == 1
        assert "nobody foresaw this" in lines[0]
        proxy.look.side_effect, one.ready, other.ready = None, True, True
        await asyncio.sleep(0.1)
        assert server.readiness.ready
        loop.cancel()

    asyncio.run(go())


def test_a_full_disk_is_said_once_and_the_record_written_when_there_is_room(stage, monkeypatch) -> None:
    server, _, (one, other), lines = stage
    one.ready = other.ready = True
    with monkeypatch.context() as patch:
        patch.setattr(module, "write_state", Mock(side_effect=OSError(28, "No space left on device")))
        for _ in range(3):
            server.turn()
    assert len(lines) == 1
    assert turn(server)[0] == Phase.READY


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_drains_then_ends_the_instances_and_the_proxy_last(stage, number) -> None:
    server, proxy, (one, other), _ = stage
    one.ready = other.ready = True
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests may run under nohup

    async def go() -> int:
        task = asyncio.ensure_future(server.run())
        await asyncio.sleep(0.1)
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)  # a second one must not cut that short
        return await task

    try:
        assert asyncio.run(go()) == 0
    finally:
        signal.signal(signal.SIGHUP, before)
    assert proxy.calls == ["drain", "a1", "a2", "end"]
    assert read_record(server.run_dir.record).phase == Phase.ENDED


def test_a_process_that_ends_is_seen_at_once(stage, dummy, run) -> None:
    server, proxy, _, _ = stage

    async def go() -> float:
        server.turn()
        proxy.process = dummy(run.path)
        asyncio.get_running_loop().call_later(0.1, proxy.process.kill)
        began = time.monotonic()
        await server._wait(30.0)
        proxy.process = None
        await server._wait(0.01)
        return time.monotonic() - began

    assert asyncio.run(go()) < 10
    assert server._handles == {}


@pytest.mark.parametrize(
    ("phase", "serving", "age_s", "ready", "live"),
    [
        (Phase.READY, 2, 0.0, True, True),
        (Phase.DEGRADED, 1, 0.0, True, True),
        (Phase.DEGRADED, 0, 0.0, False, True),
        (Phase.STARTING, 2, 0.0, False, True),
        (Phase.STOPPING, 2, 0.0, False, True),
        (Phase.READY, 2, 11.0, False, False),
    ],
)
def test_ready_and_live_say_what_was_seen_last(phase, serving, age_s, ready, live) -> None:
    readiness = Readiness(phase=phase, models={"bert": (serving, 2)}, at=time.monotonic() - age_s)
    assert (readiness.ready, readiness.live) == (ready, live)


MAIN = """\
import sys, types
verify = types.ModuleType("server.verify")
verify.verify_instance, verify.render = (lambda *_: types.SimpleNamespace(good=True, by_row=dict)), None
sys.modules["server.verify"] = verify
from server.rundir import RunDir
from server.supervisor import main, proxy
proxy.find_program = lambda _: sys.argv[2]
main.supervise(RunDir.at(sys.argv[1]))
"""


def test_the_processes_of_a_server_are_what_is_needed_and_the_orphans_stay_below_its_supervisor(
    run, tmp_path
) -> None:
    (tmp_path / "env").mkdir()
    plan = make_stand_in(run, tmp_path / "env", instances=2)
    run.plan.write_text(replace(plan, proxy=replace(plan.proxy, port=find_port())).to_json())
    run.logs.mkdir()
    run.temporary.mkdir()
    haproxy = make_haproxy(run, tmp_path / "haproxy")
    environment = {**os.environ, MARK: str(run.path)}
    command = [sys.executable, "-c", MAIN, str(run.path), str(haproxy)]
    supervisor = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)

    def read_phase() -> Phase | None:
        record = read_record(run.record)
        return record.phase if record else None

    try:
        wait_for(lambda: supervisor.poll() is not None or read_phase() == Phase.READY)
        assert supervisor.poll() is None
        found = find_marked(run.path)
        roles = sorted(process.role for process in found)
        # helpers: the supervisor, HAProxy's stand-in, and the `torchserve` command of each
        assert roles == sorted(["helper"] * 4 + ["TorchServe", "launcher", "worker"] * 2)
        marks = {process.pid: (read_environment(process.pid) or {})[MARK] for process in found}
        launcher = next(process for process in found if process.role == "launcher")
        worker = next(process for process in found if process.parent_pid == launcher.pid)
        os.kill(launcher.pid, signal.SIGKILL)
        wait_for(lambda: not read_process(launcher.pid))
        orphan = read_process(worker.pid)  # it may have been ended already
        assert orphan is None or orphan.parent_pid == supervisor.pid
        wait_for(lambda: worker.pid not in {process.pid for process in find_marked(run.path)})
        wait_for(lambda: read_phase() == Phase.READY and len(find_marked(run.path)) == len(found))
        assert all(process.parent_pid != 1 for process in find_marked(run.path))
        assert len(set(marks.values())) == 3
        zombies = ["ps", "--ppid", str(supervisor.pid), "-o", "stat="]
        assert "Z" not in subprocess.run(zombies, capture_output=True, text=True, check=False).stdout
    finally:
        supervisor.terminate()
        assert supervisor.wait(60) == 0
    assert find_marked(run.path) == []
    assert read_phase() == Phase.ENDED
