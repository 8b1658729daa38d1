"""How long a start took is read from what the server and its workers leave behind."""

from __future__ import annotations

import os

import pytest

from loadtest.errors import LoadTestError
from loadtest.systems import kit
from loadtest.systems.kit import read_start
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


@pytest.mark.parametrize(("processes", "seconds"), [(PROCESSES, 25.5), (PROCESSES[::3], 24.5)])
def test_a_worker_is_born_with_its_launcher(monkeypatch, tmp_path, processes, seconds):
    monkeypatch.setattr(kit, "find_marked", lambda _: processes)
    system = System(name="kit", models=("bert",), run=RunDir.at(tmp_path))
    with pytest.raises(LoadTestError, match=r"kit: its server\.json does not say how long"):
        read_start(system)
    state = State(phase=READY, plan_sha256="", started_at="", seconds_to_ready=29.0)
    write_state(tmp_path / "server.json", state)
    assert read_start(system) == {"worker_seconds": seconds}
