"""The loop: what is ready, what a start fails by, and that nothing unforeseen ends it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from server.rundir import RunDir
from server.supervisor import supervisor as module
from server.supervisor.record import DEGRADED, FAILED, READY, STARTING, STOPPING, Cause, Part, read_record
from server.supervisor.supervisor import Supervisor
from tests.config.doors import plan_behind_door


@dataclass
class FakeDoor:
    ready: bool = True
    was_ready: bool = True
    broken: bool = False
    part: Part = field(default_factory=lambda: Part(phase=READY))
    told: dict[Any, Any] = field(default_factory=dict)
    stop_here: Callable[[], None] = lambda: None

    def look(self, now: float) -> None:
        if self.broken:
            raise ValueError("nobody foresaw this")
        self.stop_here()

    def apply(self, serving: Any) -> None:
        self.told = dict(serving)

    def describe(self) -> Part:
        return self.part


@dataclass
class FakeInstance:
    name: str
    plan: Any
    run: Any
    ready: bool = False
    retired: bool = False
    was_ready: bool = False
    forgiven: int = 0
    looked_at: float = 0.0
    part: Part = field(default_factory=Part)
    others: list[bool] = field(default_factory=list)
    act: Callable[[], None] = lambda: None

    @property
    def serving(self) -> dict[str, int]:
        return {model: int(self.ready) for model in self.plan.models}

    def look(self, processes, now: float, *, others: bool) -> None:
        self.others.append(others)
        self.looked_at = now
        self.was_ready = self.was_ready or self.ready

    def forgive(self) -> None:
        self.forgiven += 1

    def describe(self) -> Part:
        return self.part

    def describe_serving(self, model: str) -> int:
        return self.serving[model]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "PROCESSES_S", 0.0)  # every turn looks at all
    plan, said = plan_behind_door(), list[str]()
    instances = [FakeInstance(name, plan, RunDir.at(tmp_path / name)) for name in plan.instances]
    door = FakeDoor()
    supervisor = Supervisor(RunDir.at(tmp_path), plan, door, instances, said.append)  # type: ignore[arg-type]
    return supervisor, door, instances, said


def phase(supervisor: Supervisor) -> str:
    record = read_record(supervisor.run_dir.record)
    assert record is not None
    return record.phase


def test_a_start_is_over_when_every_instance_serves(stage):
    supervisor, door, (one, other), _ = stage
    one.ready = True
    supervisor._turn()
    assert phase(supervisor) == STARTING
    assert not supervisor.standing.ready
    other.ready = True
    supervisor._turn()
    assert phase(supervisor) == READY
    assert supervisor.standing.ready
    assert set(door.told.values()) == {1}


def test_one_that_is_lost_later_leaves_a_degraded_server_that_is_ready(stage):
    supervisor, _, (one, other), said = stage
    one.ready = other.ready = True
    supervisor._turn()
    other.ready = False
    supervisor._turn()
    assert phase(supervisor) == DEGRADED
    assert supervisor.standing.ready
    assert said == ["the server is degraded"]
    assert one.others[-1] is False  # alone, it is given more time
    assert other.others[-1] is True


def test_the_health_file_says_what_ready_says_and_whether_the_door_can_be_asked(stage):
    supervisor, door, instances, _ = stage
    health = supervisor.run_dir.health
    supervisor._turn()
    assert health.read_text().startswith("not ready: starting; ")
    for one in instances:
        one.ready = True
    supervisor._turn()
    assert health.read_text() == "ready\n"
    door.ready = False
    supervisor._turn()
    assert health.read_text() == "not ready: degraded; no door\n"
    door.ready = True
    supervisor._note(STOPPING)
    assert health.read_text() == "not ready: stopping\n"


def test_the_door_knows_before_an_instance_is_ended(stage):
    """Else what it had in hand is asked again of itself: for a moment nobody has fewer requests."""
    supervisor, door, (one, other), _ = stage
    one.ready = other.ready = True
    supervisor._turn()
    one.ready, told = False, []
    one.act = lambda: told.append({place: now for place, now in door.told.items() if place[1] == "a1"})
    supervisor._turn()
    assert [set(now.values()) for now in told] == [{0}]


def test_those_of_a_reload_count_once_they_serve_and_those_it_retires_no_more(stage):
    supervisor, _, (one, other), _ = stage
    one.ready = other.ready = True
    supervisor._turn()
    supervisor.instances["b1"] = new = replace(one, name="b1", ready=False, was_ready=False)
    supervisor._turn()
    assert phase(supervisor) == READY
    new.ready = True
    one.retired, one.ready = True, False
    supervisor._turn()
    assert phase(supervisor) == READY


def test_an_instance_that_ends_before_it_was_ready_fails_the_start(stage):
    supervisor, _, (one, _), said = stage
    one.part = Part(restarts=1, causes=(Cause(at="", cause="no memory"),))
    supervisor._turn()
    assert phase(supervisor) == FAILED
    assert said == ["start failed: a1: no memory"]
    assert "no memory" in supervisor.run_dir.failure.read_text()


def test_a_door_that_ends_before_it_was_ready_fails_the_start_and_later_does_not(stage):
    """Such as for too few open files: it would be started again and again, and nobody told."""
    supervisor, door, _, said = stage
    door.part = Part(restarts=1, causes=(Cause(at="", cause="HAProxy ended (status 1): no"),))
    supervisor._turn()
    assert phase(supervisor) == STARTING  # killed, after it had answered
    door.was_ready = False
    supervisor._turn()
    assert phase(supervisor) == FAILED
    assert said == ["start failed: door: HAProxy ended (status 1): no"]


def test_whoever_was_stopped_in_the_midst_of_a_turn_is_forgiven_too(stage, monkeypatch):
    """Else an instance that is well is replaced: for so long nobody has looked at it."""
    supervisor, door, (one, other), _ = stage
    began = supervisor._turned_at
    clock = SimpleNamespace(now=began + 1)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    door.stop_here = lambda: setattr(clock, "now", clock.now + 40)
    supervisor._turn()
    assert (one.looked_at, one.forgiven) == (began + 1, 0)
    door.stop_here = lambda: None
    supervisor._turn()
    assert (one.others, one.forgiven) == ([False], 1)
    other.ready = True
    for _ in range(int(module.GRACE_S) + 1):
        clock.now += 1
        supervisor._turn()
    assert one.others == [False, False, True]  # what was seen of the other one before is too old


def test_what_nobody_foresaw_is_said_once_and_does_not_end_the_loop(stage):
    supervisor, door, (one, other), said = stage
    door.broken = True
    supervisor._turn_safely()
    supervisor._turn_safely()
    assert said == ["the supervisor cannot look: ValueError: nobody foresaw this"]
    door.broken = False
    one.ready = other.ready = True
    supervisor._turn_safely()
    assert phase(supervisor) == READY


def test_a_reload_is_refused_while_the_server_is_not_up(stage):
    supervisor, _, (one, other), _ = stage
    assert supervisor.ask_reload() == "the server is starting"
    one.ready = other.ready = True
    supervisor._turn()
    assert supervisor.ask_reload() == ""
    assert supervisor.ask_reload() == "a reload is under way"
