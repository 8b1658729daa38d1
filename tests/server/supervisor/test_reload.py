"""A reload moves the traffic only to what is ready, and takes back what fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

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
    seen: Any = field(default_factory=lambda: SimpleNamespace(anonymous_mib={1: 1000}))

    async def end(self, seconds: float) -> None:
        self.ended = True

    def describe(self) -> Part:
        return Part(causes=self.causes)


class Stage:
    """Two instances a1 and a2 that serve, and b1 and b2 that are to take over."""

    def __init__(self, run: Any, plan: Any) -> None:
        self.proxy, self.run = Mock(), run
        self.proxy.count_in_hand.return_value = 0
        self.started_again: list[FakeInstance] = []
        self.old = [FakeInstance(f"a{k}", ready=True) for k in (1, 2)]
        self.new = [FakeInstance(f"b{k}", ready=True) for k in (1, 2)]
        self.instances: dict[str, Any] = {one.name: one for one in self.old}
        self.reload = Reload(run, plan, self.proxy, self.instances, lambda _: None)
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

    def finish(self) -> str:
        """The same from the check on; how it ended."""

        async def go() -> str:
            while not self.reload.ended:
                done = self.reload.step()
                await asyncio.sleep(0.01)
            return done

        return asyncio.run(go())


@pytest.fixture
def stage(run, plan, monkeypatch) -> Stage:
    made = Stage(run, plan)
    monkeypatch.setattr(module, "Instance", made.start_again)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=count(0.0, 0.5).__next__))
    return made


def test_the_old_ones_serve_until_all_new_ones_are_ready(stage) -> None:
    stage.new[0].ready = stage.new[1].ready = False

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
    stage, answered
) -> None:
    stage.proxy.count_in_hand.return_value = 3
    turns: list[str] = []

    def check(step: str) -> None:
        turns.append(step)
        assert stage.serving() == ["b1", "b2"]
        if step.startswith("draining"):
            assert not stage.old[0].ended
        if answered and len(turns) == 5:
            stage.proxy.count_in_hand.return_value = 0

    stage.move(together=True, after=check)
    assert turns.count("draining a1, a2") == 5 if answered else turns.count("draining a1, a2") > 50
    assert stage.old[0].ended


def test_where_a_new_one_fails_nothing_is_changed(stage) -> None:
    stage.new[1].ready, stage.new[1].causes = False, (Cause(at="", cause="bert: wrong answer"),)
    with pytest.raises(ReloadFailed, match=r"^b2: bert: wrong answer$"):
        stage.move(together=True)
    assert stage.serving() == list(stage.instances) == ["a1", "a2"]
    assert all(one.ended for one in stage.new)
    assert stage.started_again == []


def test_with_memory_for_one_set_there_is_always_one_that_serves(stage) -> None:
    def check(_: str) -> None:
        assert stage.serving()
        assert len(stage.instances) <= 3

    stage.move(together=False, after=check)
    assert list(stage.instances) == ["b1", "b2"]


def test_one_after_the_other_what_ended_is_started_again_when_its_follower_fails(stage) -> None:
    stage.new[0].ready, stage.new[0].causes = False, (Cause(at="", cause="no"),)
    with pytest.raises(ReloadFailed):
        stage.move(together=False)
    assert [one.name for one in stage.started_again] == ["a1"]
    assert stage.instances == {"a1": stage.started_again[0], "a2": stage.old[1]}
    assert not stage.old[1].retired


def test_one_that_cannot_be_ended_in_order_is_asked_again(stage) -> None:
    stage.old[0].end = AsyncMock(side_effect=OSError(28, "No space left on device"))
    with pytest.raises(OSError, match="No space"):
        stage.move(together=True)
    assert stage.serving() == ["a1", "a2"]


def test_another_set_needs_as_much_as_the_running_one_and_a_tenth(stage) -> None:
    for available, limit, fits in (
        (2200, 9000, True), (2199, 9000, False),
        (9000, 4200, True), (9000, 4199, False),  # a container's limit: what runs is in it too
    ):  # fmt: skip
        assert fit_together(stage.instances, available, limit) is fits


def test_what_cannot_be_served_is_rejected_by_name_and_changes_nothing(stage, monkeypatch) -> None:
    monkeypatch.setattr(module, "_check", Mock(side_effect=ServerError("bert.mar: not as it was built")))
    assert stage.finish().startswith(f"{FAILED}bert.mar: not as it was built")
    assert stage.serving() == list(stage.instances) == ["a1", "a2"]


def test_the_plan_that_was_next_is_the_plan_and_the_token_is_read_again(stage, plan, monkeypatch) -> None:
    """As `make status` and `make verify` see it, too."""
    run, following = stage.run, replace(plan, generation="b")
    run.next.mkdir()
    (run.next / run.plan.name).write_text(following.to_json())
    (run.next / run.proxy_config.name).write_text("global\n")
    monkeypatch.setattr(module, "_check", lambda _: following)
    monkeypatch.setattr(module, "read_archives", lambda _: {})
    monkeypatch.setattr(module, "Instance", lambda name, *_: FakeInstance(name, ready=True))
    assert stage.finish() == DONE
    assert stage.reload.plan.to_json() == run.plan.read_text() == following.to_json()
    assert run.proxy_config.read_text() == "global\n"
    stage.proxy.change_token.assert_called_once_with()
