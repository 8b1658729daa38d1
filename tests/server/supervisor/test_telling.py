"""The health file says what /ready says, and that it still is so."""

from __future__ import annotations

from pathlib import Path

from server.health import LOOK_SECONDS
from server.supervisor.telling import Telling
from tests.server.fakes import Clock


def make_telling(file: Path) -> tuple[Telling, Clock, list[str]]:
    clock, said = Clock(), list[str]()
    return Telling(file, said.append, clock), clock, said


def test_it_is_written_when_it_changes_and_every_few_seconds(tmp_path):
    file = tmp_path / "health"
    telling, clock, _ = make_telling(file)
    telling.tell("ready")
    assert file.read_text() == "ready\n"
    telling.tell("not ready: stopping")
    assert file.read_text() == "not ready: stopping\n"
    file.unlink()
    telling.tell("not ready: stopping")
    assert not file.exists()
    clock.now += LOOK_SECONDS
    telling.tell("not ready: stopping")
    assert file.exists()


def test_a_disk_that_does_not_take_it_is_said_once_and_tried_again(tmp_path):
    file = tmp_path / "folder" / "health"
    telling, _, said = make_telling(file)
    telling.tell("ready")
    telling.tell("ready")
    assert len(said) == 1
    assert said[0].startswith("health: cannot be written, so it counts as not ready in a minute: ")
    file.parent.mkdir()
    telling.tell("ready")
    assert file.read_text() == "ready\n"
