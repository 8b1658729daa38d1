"""How long a start took is read from what the server and its workers leave behind."""

from __future__ import annotations

import os

import pytest

from loadtest.errors import LoadTestError
from loadtest.systems import starts
from loadtest.systems.starts import find_worker_birth, read_start
from loadtest.systems.system import System
from server.processes import LAUNCHER_MODULE, WORKER_SCRIPT, Process
from server.rundir import RunDir
from server.state import READY, State, write_state

WORKER = (WORKER_SCRIPT, "--sock-type")


def make_process(start_seconds, *words):
    ticks = round(start_seconds * os.sysconf("SC_CLK_TCK"))
    return Process(pid=1, start_ticks=ticks, parent_pid=1, command=words)


PROCESSES = [
    make_process(104.5, "python", *WORKER),
    make_process(103.5, "python", "-m", LAUNCHER_MODULE, *WORKER),
    make_process(101.0, "java"),
    make_process(100.0, "torchserve"),
]


class Described(System):
    """Its workers need no server."""

    def describe_workers(self, model):
        return [{"load_seconds": 20.0}, {"load_seconds": 21.0}]


def test_a_worker_is_born_with_its_launcher():
    assert find_worker_birth(PROCESSES) == 3.5
    assert find_worker_birth([PROCESSES[0], PROCESSES[3]]) == 4.5


def test_a_server_without_workers_is_said():
    with pytest.raises(LoadTestError, match="no worker process"):
        find_worker_birth([make_process(100.0, "torchserve")])


def test_a_start_is_told_in_plain_values(monkeypatch, tmp_path):
    monkeypatch.setattr(starts, "find_marked", lambda _: PROCESSES)
    system = Described(name="kit", models=("bert",), run=RunDir.at(tmp_path))
    state = State(phase=READY, plan_sha256="", started_at="", seconds_to_ready=29.0)
    write_state(tmp_path / "server.json", state)
    assert read_start(system, ("--precision", "int8")) == {
        "arguments": ["--precision", "int8"],
        "server_seconds": 29.0,
        "worker_seconds": 25.5,
        "load_seconds": [20.0, 21.0],
    }


def test_a_start_that_is_not_over_is_said(tmp_path):
    with pytest.raises(LoadTestError, match=r"kit: its server\.json does not say how long"):
        read_start(Described(name="kit", models=("bert",), run=RunDir.at(tmp_path)), ())
