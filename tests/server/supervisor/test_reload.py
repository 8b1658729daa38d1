"""A reload moves the traffic only to what is ready, and takes back what fails."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from server.supervisor.record import Cause, Part
from server.supervisor.reload import Reload, ReloadFailed, fits_beside


@dataclass
class FakeInstance:
    name: str
    ready: bool = False
    retired: bool = False
    asked_to_end: bool = False
    ended: bool = False
    ends_when_asked: bool = True
    causes: tuple[Cause, ...] = ()
    killed: bool = False
    anonymous_mib: int = 1000

    @property
    def seen(self) -> Any:
        return type("Seen", (), {"anonymous_mib": {1: self.anonymous_mib}})

    def ask_to_end(self) -> None:
        self.asked_to_end = True
        self.ended = self.ends_when_asked

    def has_ended(self) -> bool:
        return self.ended

    def kill(self) -> None:
        self.killed = self.ended = True

    def describe(self) -> Part:
        return Part(causes=self.causes)


@dataclass
class FakeDoor:
    unanswered: int = 0

    def count_in_hand(self, names: list[str]) -> int:
        return self.unanswered


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        self.now += 0.5
        return self.now


@dataclass
class Stage:
    beside: bool
    door: FakeDoor = field(default_factory=FakeDoor)
    said: list[str] = field(default_factory=list)
    started_again: list[FakeInstance] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.old = [FakeInstance(f"a{k}", ready=True) for k in (1, 2)]
        self.new = [FakeInstance(f"b{k}") for k in (1, 2)]
        self.instances: dict[str, Any] = {one.name: one for one in self.old}
        self.reload = Reload(
            instances=self.instances,
            new=self.new,  # type: ignore[arg-type]
            door=self.door,  # type: ignore[arg-type]
            report=self.said.append,
            beside=self.beside,
            again=self._start_again,  # type: ignore[arg-type]
            now=Clock(),
        )
        self.steps = self.reload.go()

    def _start_again(self, old: FakeInstance) -> FakeInstance:
        self.started_again.append(FakeInstance(old.name))
        return self.started_again[-1]

    def serving(self) -> list[str]:
        return [name for name, one in self.instances.items() if one.ready and not one.retired]


def finish(stage: Stage) -> list[str]:
    return list(stage.steps)


def test_the_old_ones_serve_until_all_new_ones_are_ready() -> None:
    stage = Stage(beside=True)
    assert next(stage.steps) == "starting b1"
    assert list(stage.instances) == ["a1", "a2", "b1"]
    stage.new[0].ready = True
    assert next(stage.steps) == "starting b2"
    assert stage.serving() == ["a1", "a2", "b1"]
    assert not any(one.asked_to_end for one in stage.old)
    stage.new[1].ready = True
    finish(stage)
    assert list(stage.instances) == ["b1", "b2"]
    assert all(one.asked_to_end and one.ended and not one.killed for one in stage.old)


def test_the_old_ones_answer_what_they_have_before_they_end() -> None:
    stage = Stage(beside=True)
    for one in stage.new:
        one.ready = True
    stage.door.unanswered = 3
    assert next(stage.steps) == "draining a1, a2"
    assert stage.serving() == ["b1", "b2"]
    next(stage.steps)
    assert not stage.old[0].asked_to_end
    stage.door.unanswered = 0
    finish(stage)
    assert stage.old[0].asked_to_end


def test_who_does_not_answer_within_the_time_is_ended_all_the_same() -> None:
    stage = Stage(beside=True)
    for one in stage.new:
        one.ready = True
    stage.door.unanswered = 1
    stage.old[0].ends_when_asked = False
    assert len(finish(stage)) < 120
    assert stage.old[0].killed
    assert not stage.old[1].killed


def test_where_a_new_one_fails_nothing_is_changed() -> None:
    stage = Stage(beside=True)
    next(stage.steps)
    stage.new[0].ready = True
    stage.new[1].causes = (Cause(at="", cause="bert: wrong answer"),)
    with pytest.raises(ReloadFailed, match=r"^b2: bert: wrong answer$"):
        finish(stage)
    assert stage.serving() == ["a1", "a2"]
    assert list(stage.instances) == ["a1", "a2"]
    assert all(one.killed for one in stage.new)
    assert stage.started_again == []


def test_with_memory_for_one_set_there_is_always_one_that_serves() -> None:
    stage = Stage(beside=False)
    for one in stage.new:
        one.ready = True
    for _ in stage.steps:
        assert stage.serving()
        assert len(stage.instances) <= 3
    assert list(stage.instances) == ["b1", "b2"]


def test_one_after_the_other_what_ended_is_started_again_when_its_follower_fails() -> None:
    stage = Stage(beside=False)
    stage.new[0].causes = (Cause(at="", cause="no"),)
    with pytest.raises(ReloadFailed):
        finish(stage)
    assert [one.name for one in stage.started_again] == ["a1"]
    assert stage.instances["a1"] is stage.started_again[0]
    assert stage.instances["a2"] is stage.old[1]
    assert not stage.old[1].retired


def test_another_set_needs_as_much_as_the_running_one_and_a_tenth() -> None:
    old: dict[str, Any] = {"a1": FakeInstance("a1"), "a2": FakeInstance("a2")}
    assert fits_beside(old, 2200, 9000)
    assert not fits_beside(old, 2199, 9000)
    assert fits_beside(old, 9000, 4200)  # a container's limit: what runs is in it too
    assert not fits_beside(old, 9000, 4199)
