"""A reload moves the traffic only to what is ready, and takes back what fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from server.errors import ServerError
from server.state import Cause, Part
from server.supervisor import reload as module
from server.supervisor.reload import DONE, FAILED, Reload, ReloadFailed, fit_together


@dataclass
class FakeInstance:
    name: str
    ready: bool = False
    retired: bool = False
    ended: bool = False
    causes: tuple[Cause, ...] = ()
    anonymous_mib: int = 1000

    @property
    def seen(self) -> Any:
        return type("Seen", (), {"anonymous_mib": {1: self.anonymous_mib}})

    async def end(self, seconds: float) -> None:
        self.ended = True

    def describe(self) -> Part:
        return Part(causes=self.causes)


@dataclass
class FakeProxy:
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
    """Two instances a1 and a2 that serve, and b1 and b2 that shall take over."""

    proxy: FakeProxy = field(default_factory=FakeProxy)
    lines: list[str] = field(default_factory=list)
    started_again: list[FakeInstance] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.old = [FakeInstance(f"a{k}", ready=True) for k in (1, 2)]
        self.new = [FakeInstance(f"b{k}") for k in (1, 2)]
        self.instances: dict[str, Any] = {one.name: one for one in self.old}
        parts: Any = (None, None, self.proxy, self.instances, self.lines.append)
        self.reload = Reload(*parts)
        self.reload._new = self.new  # type: ignore[assignment]

    def start_again(self, name: str, *_: Any) -> FakeInstance:
        self.started_again.append(FakeInstance(name))
        return self.started_again[-1]

    def serving(self) -> list[str]:
        return [name for name, one in self.instances.items() if one.ready and not one.retired]

    def move(self, *, together: bool, after: Callable[[str], None] = lambda _: None) -> list[str]:
        """All of its steps, a turn of the loop each."""

        async def go() -> list[str]:
            steps = []
            for step in self.reload.move(together=together):
                steps.append(step)
                after(step)
                await asyncio.sleep(0)
                assert len(steps) < 120
            return steps

        return asyncio.run(go())


@pytest.fixture
def stage(monkeypatch) -> Stage:
    made = Stage()
    monkeypatch.setattr(module, "Instance", made.start_again)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=Clock()))
    return made


def test_the_old_ones_serve_until_all_new_ones_are_ready(stage: Stage) -> None:
    def check(step: str) -> None:
        if step.startswith("starting"):
            assert stage.serving()[:2] == ["a1", "a2"]
            assert not any(one.ended for one in stage.old)
            stage.instances[step.split()[1]].ready = True

    steps = stage.move(together=True, after=check)
    assert steps[:3] == ["starting b1", "starting b2", "draining a1, a2"]
    assert list(stage.instances) == ["b1", "b2"]
    assert all(one.ended for one in stage.old)


@pytest.mark.parametrize("answered", [True, False])
def test_the_old_ones_answer_what_they_have_before_they_end_or_the_time_for_that_is_over(
    stage: Stage, answered: bool
) -> None:
    stage.new[0].ready = stage.new[1].ready = True
    stage.proxy.unanswered = 3
    turns: list[str] = []

    def check(step: str) -> None:
        turns.append(step)
        assert stage.serving() == ["b1", "b2"]
        if step.startswith("draining"):
            assert not stage.old[0].ended
        if answered and len(turns) == 5:
            stage.proxy.unanswered = 0

    stage.move(together=True, after=check)
    assert turns.count("draining a1, a2") == 5 if answered else turns.count("draining a1, a2") > 50
    assert stage.old[0].ended


def test_where_a_new_one_fails_nothing_is_changed(stage: Stage) -> None:
    stage.new[0].ready = True
    stage.new[1].causes = (Cause(at="", cause="bert: wrong answer"),)
    with pytest.raises(ReloadFailed, match=r"^b2: bert: wrong answer$"):
        stage.move(together=True)
    assert stage.serving() == list(stage.instances) == ["a1", "a2"]
    assert all(one.ended for one in stage.new)
    assert stage.started_again == []


def test_with_memory_for_one_set_there_is_always_one_that_serves(stage: Stage) -> None:
    stage.new[0].ready = stage.new[1].ready = True

    def check(_: str) -> None:
        assert stage.serving()
        assert len(stage.instances) <= 3

    stage.move(together=False, after=check)
    assert list(stage.instances) == ["b1", "b2"]


def test_one_after_the_other_what_ended_is_started_again_when_its_follower_fails(stage: Stage) -> None:
    stage.new[0].causes = (Cause(at="", cause="no"),)
    with pytest.raises(ReloadFailed):
        stage.move(together=False)
    assert [one.name for one in stage.started_again] == ["a1"]
    assert stage.instances["a1"] is stage.started_again[0]
    assert stage.instances["a2"] is stage.old[1]
    assert not stage.old[1].retired


def test_one_that_cannot_be_ended_in_order_is_asked_again(stage: Stage) -> None:
    async def fail(_: float) -> None:
        raise OSError(28, "No space left on device")

    stage.new[0].ready = stage.new[1].ready = True
    stage.old[0].end = fail  # type: ignore[method-assign]
    with pytest.raises(OSError, match="No space"):
        stage.move(together=True)
    assert stage.serving() == ["a1", "a2"]


def test_another_set_needs_as_much_as_the_running_one_and_a_tenth() -> None:
    old: dict[str, Any] = {"a1": FakeInstance("a1"), "a2": FakeInstance("a2")}
    assert fit_together(old, 2200, 9000)
    assert not fit_together(old, 2199, 9000)
    assert fit_together(old, 9000, 4200)  # a container's limit: what runs is in it too
    assert not fit_together(old, 9000, 4199)


def test_what_cannot_be_served_is_rejected_by_name_and_changes_nothing(stage: Stage, monkeypatch) -> None:
    def check(_: Any) -> None:
        raise ServerError("bert.mar: not as it was built")

    monkeypatch.setattr(module, "_check", check)

    async def go() -> str:
        while not stage.reload.ended:
            done = stage.reload.step()
            await asyncio.sleep(0.01)
        return done

    assert asyncio.run(go()).startswith(f"{FAILED}bert.mar: not as it was built")
    assert stage.serving() == list(stage.instances) == ["a1", "a2"]


def test_the_plan_that_was_next_is_the_plan_and_the_token_is_read_anew(stage, run, plan, monkeypatch) -> None:
    """As `make status` and `make verify` see it, too."""
    following = replace(plan, generation="b")
    stage.reload._run = run
    run.next.mkdir()
    (run.next / run.plan.name).write_text(following.to_json())
    (run.next / run.proxy_config.name).write_text("global\n")
    changed: list[bool] = []
    stage.proxy.change_token = lambda: changed.append(True)  # type: ignore[attr-defined]
    monkeypatch.setattr(module, "_check", lambda _: following)
    monkeypatch.setattr(module, "read_archives", lambda _: {})
    monkeypatch.setattr(module, "Instance", lambda name, *_: FakeInstance(name, ready=True))

    async def go() -> str:
        while not stage.reload.ended:
            done = stage.reload.step()
            await asyncio.sleep(0.01)
        return done

    assert asyncio.run(go()) == DONE
    assert stage.reload.plan.to_json() == run.plan.read_text() == following.to_json()
    assert run.proxy_config.read_text() == "global\n"
    assert changed == [True]
