"""One TorchServe behind the door, with nothing behind it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from server.health import READY
from server.rundir import RunDir
from server.supervisor import instance as module
from server.supervisor.instance import GENTLE, Instance, may_be_gentle, set_nice
from server.supervisor.sight import Sight
from tests.config.doors import plan_behind_door

WELL = Sight(health=READY, stamp=1, planned={"bert": 1}, serving={"bert": 1})
LOST = replace(WELL, serving={"bert": 0})


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Instance, list[str]]]:
    """Its keeper is a process that sleeps."""
    keepers, said = list[subprocess.Popen[bytes]](), list[str]()
    plan = plan_behind_door()

    def launch(_: Instance) -> subprocess.Popen[bytes]:
        keepers.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))
        return keepers[-1]

    monkeypatch.setattr(Instance, "_launch", launch)
    yield Instance("a1", RunDir.at(tmp_path), plan, tmp_path, {}, said.append), said
    for keeper in keepers:
        keeper.kill()
        keeper.wait()


def look(one: Instance, seen: Sight, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another instance serves."""
    monkeypatch.setattr(module, "look_at", lambda *_, **__: seen)
    one.look([], 100.0, others=True)


def test_one_that_is_to_be_replaced_serves_nobody_and_ends_when_it_acts(stage, monkeypatch):
    one, said = stage
    look(one, WELL, monkeypatch)  # is started
    look(one, WELL, monkeypatch)
    assert one.serving == {"bert": 1}
    look(one, replace(WELL, java="is stopped"), monkeypatch)
    assert (one.serving, said, one.has_ended()) == ({"bert": 0}, [], False)
    one.act()
    assert one.has_ended()
    assert said == ["a1: TorchServe is stopped; again at once"]
    one.act()
    assert len(said) == 1


def test_what_is_well_again_before_it_acts_stays(stage, monkeypatch):
    one, said = stage
    look(one, WELL, monkeypatch)
    look(one, LOST, monkeypatch)
    look(one, WELL, monkeypatch)
    one.act()
    assert (one.serving, said) == ({"bert": 1}, [])


def test_one_that_a_reload_retires_is_left_to_end_by_itself(stage, monkeypatch):
    one, said = stage
    look(one, WELL, monkeypatch)
    look(one, LOST, monkeypatch)
    one.retired = True
    one.act()
    assert (said, one.has_ended()) == ([], False)


@pytest.mark.skipif(not may_be_gentle(), reason="only root, or who has RLIMIT_NICE, can make it urgent again")
def test_a_process_is_made_gentle_and_urgent_again():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        for nice in (GENTLE, 0):
            set_nice([2**22 - 1, process.pid], nice)
            assert os.getpriority(os.PRIO_PROCESS, process.pid) == nice
