"""A system is halted by signals to its very processes, and says what is known of it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from loadtest.errors import LoadTestError
from loadtest.systems import system as module
from loadtest.systems.fleet import Site
from loadtest.systems.running import find_system, running
from loadtest.systems.system import UNKNOWN, USERS_WITHOUT_PLAN, System
from server.processes import PROC, Process
from server.rundir import MARK, RunDir
from server.supervisor.record import Cause, Part, Record, write_record
from tests.loadtest.fake_server import serving


@pytest.fixture
def marked(tmp_path):
    """A process of a server in `tmp_path`."""
    run = RunDir.at(tmp_path)
    command = [sys.executable, "-c", "print(flush=True); import time; time.sleep(60)"]
    environment = {**os.environ, MARK: str(run.path)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process
        process.kill()


def wait_for_state(process, wanted):
    """The kernel's letter: S sleeps, T is stopped."""
    deadline, state = time.monotonic() + 60, ""
    while state != wanted and time.monotonic() < deadline:
        state = (PROC / str(process.pid) / "stat").read_text().rpartition(")")[2].split()[0]
    return state


def setting(value):
    return SimpleNamespace(value=value)


def make_plan(port=9000):
    model = SimpleNamespace(
        engine=setting("ipex"), precision=setting("int8"), workers=setting(2), batch_size=setting(16)
    )
    addresses = {"inference_address": port, "management_address": port + 1}
    properties = {name: setting(f"http://127.0.0.1:{number}") for name, number in addresses.items()}
    inputs = SimpleNamespace(tls_cert="")
    return SimpleNamespace(models={"bert": model}, instances={}, properties=properties, inputs=inputs)


def test_a_halted_system_stands_still_until_it_is_resumed(marked, tmp_path):
    system = System(name="kit", models=(), run=RunDir.at(tmp_path))
    system.halt()
    assert wait_for_state(marked, "T") == "T"
    with system.resumed():
        assert wait_for_state(marked, "S") == "S"
    assert wait_for_state(marked, "T") == "T"
    system.resume()
    assert wait_for_state(marked, "S") == "S"


def test_who_watches_never_sees_the_others_stopped(monkeypatch, tmp_path):
    commands = {
        1: ("python", "-m", "server", "supervise"),
        2: ("python", "model_service_worker.py"),
        3: ("python", "-m", "server", "keep"),
    }
    processes = [
        Process(pid=pid, start_ticks=1, parent_pid=0, command=words) for pid, words in commands.items()
    ]
    assert [one.role for one in processes] == ["supervisor", "worker", "keeper"]
    signalled = []
    monkeypatch.setattr(module, "find_marked", lambda path: processes)
    monkeypatch.setattr(
        module, "send_signal", lambda process, number: signalled.append((process.pid, number))
    )
    with System(name="kit", models=(), run=RunDir.at(tmp_path)).resumed():
        pass
    stop, go_on = signal.SIGSTOP, signal.SIGCONT
    assert signalled == [(2, go_on), (3, go_on), (1, go_on), (1, stop), (3, stop), (2, stop)]


def test_why_parts_were_started_again_is_the_supervisors_word(tmp_path):
    run = RunDir.at(tmp_path)
    system = System(name="kit", models=(), run=run)
    assert system.list_causes() == ()
    ended = Part(causes=(Cause(at="2026-01-02T03:04:05+00:00", cause="TorchServe is gone (killed?)"),))
    run.record.parent.mkdir(exist_ok=True)
    write_record(run.record, Record(pid=1, phase="ready", since="", instances={"a1": ended}))
    assert system.list_causes() == ("a1: TorchServe is gone (killed?)",)


def test_a_server_that_is_not_ours_is_left_alone(marked, tmp_path):
    System(name="url", models=(), url="http://127.0.0.1:1").halt()
    System(name="other", models=(), run=RunDir.at(tmp_path / "other")).halt()
    assert wait_for_state(marked, "S") == "S"


def test_one_that_ran_before_goes_on_afterwards(marked, tmp_path):
    system = System(name="kit", models=(), run=RunDir.at(tmp_path))
    site = Site(store=tmp_path, folder=tmp_path, first_port=9000, say=print)
    with contextlib.suppress(LoadTestError), running(system).open(site) as up:
        assert up is system
        up.halt()
        assert wait_for_state(marked, "T") == "T"
        raise LoadTestError("cut off")
    assert wait_for_state(marked, "S") == "S"


def test_where_workers_are_asked_about():
    run = RunDir.at("somewhere")
    planned = System(name="kit", models=("bert",), url="http://127.0.0.1:9000", run=run, plan=make_plan(9100))
    stock = System(name="stock", models=("bert",), url="http://127.0.0.1:9000", run=run)
    assert planned.client.inference_url == "http://127.0.0.1:9100"
    assert stock.client.management_url == "http://127.0.0.1:9001"
    assert (planned.client.token_file, stock.client.token_file) == (run.token, None)


def test_what_is_known_with_a_plan_and_without():
    planned = System(name="kit", models=("bert",), plan=make_plan())
    other = System(name="url", models=(), url="http://127.0.0.1:1")
    assert (planned.precision("bert"), planned.auto_users("bert"), planned.is_kit) == ("int8", 64, True)
    assert (other.precision("bert"), other.auto_users("bert")) == (UNKNOWN, USERS_WITHOUT_PLAN)
    assert (other.token(60), other.list_workers("bert"), other.verify()) == ("", [], None)
    assert other.accuracy("bert") is None


@pytest.mark.parametrize(
    ("printed", "found"),
    [
        ('{"good": true, "findings": []}', {"good": True, "findings": []}),
        ("no server", {"good": False, "findings": [], "error": "it is down"}),
    ],
)
def test_verify_is_what_the_command_prints(monkeypatch, tmp_path, printed, found):
    asked = []

    def run(command, **_options):
        asked.append(command[1:])
        return SimpleNamespace(stdout=printed, stderr="it is down\n")

    monkeypatch.setattr(module.subprocess, "run", run)
    system = System(name="kit", models=("bert",), run=RunDir.at(tmp_path), plan=make_plan())
    assert system.verify() == found
    (words,) = asked
    assert " ".join(words) == f"-m server verify --format json --run-dir {tmp_path}"


def test_a_server_is_found_by_its_url(tmp_path):
    with serving() as server:
        found = find_system(run_dir="run", url=f"{server.url}/")
    assert (found.url, found.plan, found.run, found.name) == (server.url, None, None, f"{server.url}/")
    assert find_system(run_dir="run", url="http://h:1", name="b").name == "b"
