"""The entrypoint: codes, signals and causes, with small programs in the place of its parts."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from config.plan import Plan
from docker import entrypoint as module
from docker.entrypoint import Entrypoint, main, read_cause
from docker.lines import Speaker
from docker.settings import Settings
from server.rundir import RunDir
from server.state import Failure, write_state
from tests.server.fakes import RECORDED, read_recorded_plan

PLANS = f"""
import shutil, sys
shutil.copy({str(RECORDED / "plan.json")!r}, sys.argv[sys.argv.index("--run-dir") + 1])
print("planned")
"""
BOUND = f"memory: {read_recorded_plan().layout.memory_nodes.reason}"
WAITS = """
import pathlib, signal, sys, time
def end(*_):
    print("drained", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
run = pathlib.Path(sys.argv[sys.argv.index("--run-dir") + 1])
(run / "logs").mkdir()
(run / "logs" / "ts_log.log").write_text("2025-01-01T12:00:00,250 [ERROR] main a.B - bad\\n")
print("up", flush=True)
time.sleep(60)
"""
FAILS = "import sys; print('cause of it', file=sys.stderr); sys.exit(3)"


@pytest.fixture
def settings(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    return Settings(
        models=("a",),
        knobs={},
        tuned=True,
        run_dir=run,
        model_store=tmp_path,
        token_file=None,
        stop_seconds=45,
    )


@pytest.fixture
def restored():
    """Signal handlers as they were."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def use_programs(monkeypatch, **programs: str) -> None:
    """`python -m config` and `python -m server` run these instead."""
    popen = subprocess.Popen

    def start(command, **keywords):
        return popen([sys.executable, "-c", programs[command[2]], *command[3:]], **keywords)

    monkeypatch.setattr(module.subprocess, "Popen", start)


def run_and_read(settings) -> tuple[int, list[dict]]:
    stream = io.StringIO()
    code = Entrypoint(Speaker(stream=stream)).run(settings)
    return code, [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_plan_that_fails_ends_it_with_its_code(settings, monkeypatch, restored):
    use_programs(monkeypatch, config=FAILS)
    code, lines = run_and_read(settings)
    assert code == 3
    assert [(line["source"], line["level"], line["message"]) for line in lines] == [
        ("config", "error", "cause of it")
    ]


def test_a_server_that_fails_ends_it_with_its_code(settings, monkeypatch, restored):
    use_programs(monkeypatch, config=PLANS, server=FAILS)
    code, lines = run_and_read(settings)
    assert code == 3
    assert [line["message"] for line in lines] == ["planned", BOUND, "cause of it"]


class Signalling(io.StringIO):
    """Sends SIGTERM to this process when the server says that it is up."""

    def write(self, text: str) -> int:
        if '"up"' in text:
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
        return super().write(text)


def test_a_signal_reaches_the_server_and_its_last_words_are_heard(settings, monkeypatch, restored):
    use_programs(monkeypatch, config=PLANS, server=WAITS)
    stream = Signalling()
    assert Entrypoint(Speaker(stream=stream)).run(settings) == 0
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert {line["message"] for line in lines} == {"planned", BOUND, "up", "drained", "bad"}
    (logged,) = [line for line in lines if line["source"] == "torchserve"]
    assert (logged["level"], logged["time"]) == ("error", "2025-01-01T12:00:00.250Z")


def test_no_server_is_started_after_a_signal_while_planning(settings, monkeypatch, restored):
    signals_parent = (
        PLANS + "\nimport os, signal, time; os.kill(os.getppid(), signal.SIGTERM); time.sleep(60)"
    )
    use_programs(monkeypatch, config=signals_parent)
    code, _ = run_and_read(settings)
    assert code == 128 + signal.SIGTERM


def test_what_an_earlier_run_said_in_the_same_volume_is_gone_before_the_plan(settings, monkeypatch, restored):
    """Else the health check believes it, and a plan that fails is blamed on it."""
    run = RunDir.at(settings.run_dir)
    for file in (run.health, run.failure):
        file.write_text("ready\n")
    use_programs(monkeypatch, config=FAILS)
    run_and_read(settings)
    assert not run.health.exists()
    assert not run.failure.exists()


def test_it_keeps_to_the_cpus_of_the_server(settings, monkeypatch, restored):
    confined: list[Plan] = []
    monkeypatch.setattr(module, "confine", confined.append)
    use_programs(monkeypatch, config=PLANS, server=FAILS)
    run_and_read(settings)
    assert confined == [read_recorded_plan()]


def test_the_cause_is_what_the_server_wrote_down(tmp_path):
    run = RunDir.at(tmp_path)
    assert read_cause(run, "") == {}
    assert read_cause(run, "error: no") == {"cause": "error: no"}
    write_state(run.failure, Failure(model="bert", step="freeze", cause="planted", cure="unplant", log="x"))
    assert read_cause(run, "error: no") == {"cause": "bert: freeze: planted", "cure": "unplant"}


def test_a_wrong_environment_ends_it_with_the_cause(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setenv("MODEL_STORE", str(tmp_path))
    assert main() == 2
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["cause"].startswith(f"no archive in {tmp_path}")
