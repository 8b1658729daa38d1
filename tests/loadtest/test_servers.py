"""A server is started in a place of its own, halted by signals, and says what is known of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from loadtest.errors import LoadTestError, RejectedError
from loadtest.servers import base, kit
from loadtest.servers.base import Running, Testbed, kept_server, running_server
from loadtest.servers.kit import kit_server, read_start
from server.processes import LAUNCHER_MODULE, PROC, WORKER_SCRIPT, Process
from server.rundir import MARK, RunDir
from server.state import Cause, Failure, Part, Phase, Record, State, write_state
from server.verify import DIFFERS
from tests import plans

WORKER = (WORKER_SCRIPT, "--sock-type")


@pytest.fixture
def testbed(tmp_path):
    return Testbed(store=tmp_path / "store", folder=tmp_path, first_port=9000, say=lambda _: None)


@pytest.fixture
def marked(tmp_path):
    """A process of a server in `tmp_path`."""
    command = [sys.executable, "-c", "print(flush=True); import time; time.sleep(60)"]
    environment = {**os.environ, MARK: str(RunDir.at(tmp_path).path)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process
        process.kill()


def wait_for_state(process, wanted):
    """The kernel's letter: S sleeps, T is stopped."""
    deadline, state = time.monotonic() + 60, ""
    while state != wanted and time.monotonic() < deadline:
        state = (PROC / str(process.pid) / "stat").read_text().rpartition(")")[2].split()[0]
    return state == wanted


def make_plan(port=9000):
    model = plans.make_model("bert", precision="int8", workers=2, batch_size=16)
    instance = plans.make_instance(1, {"bert": model})
    return replace(plans.make_plan(proxy=plans.make_proxy(port=port)), instances={"a1": instance})


def test_a_halted_server_stands_still_until_it_is_resumed(marked, tmp_path):
    running = Running(name="kit", run=RunDir.at(tmp_path))
    running.halt()
    assert wait_for_state(marked, "T")
    with running.resumed():
        assert wait_for_state(marked, "S")
    assert wait_for_state(marked, "T")
    running.resume()
    with running.resumed(halted=False):
        pass
    Running(name="url", url="http://127.0.0.1:1").halt()
    Running(name="other", run=RunDir.at(tmp_path / "other")).halt()
    assert wait_for_state(marked, "S")


def test_who_watches_never_sees_the_others_stopped(monkeypatch, tmp_path):
    words = {1: ("-m", "server", "supervise"), 2: (WORKER_SCRIPT,)}
    known = [Process(pid=n, start_ticks=1, parent_pid=0, command=("python", *w)) for n, w in words.items()]
    signalled = []
    monkeypatch.setattr(base, "find_marked", lambda _: known)
    monkeypatch.setattr(base, "send_signal", lambda process, number: signalled.append((process.pid, number)))
    with Running(name="kit", run=RunDir.at(tmp_path)).resumed():
        pass
    stop, go_on = signal.SIGSTOP, signal.SIGCONT
    assert signalled == [(2, go_on), (1, go_on), (1, stop), (2, stop)]


def test_what_is_known_with_a_plan_and_without(tmp_path):
    run = RunDir.at(tmp_path)
    planned = Running(name="kit", models=("bert",), url="http://h:9000", run=run, plan=make_plan(9100))
    stock = Running(name="stock", models=("bert",), url="http://127.0.0.1:9000", run=run)
    other = Running(name="url", url="http://127.0.0.1:1")
    assert planned.client.inference_url == "http://127.0.0.1:9100"
    assert stock.client.management_url == "http://127.0.0.1:9001"
    assert (planned.client.token_file, stock.client.token_file) == (run.token, None)
    told = (planned.precision("bert"), planned.variant("bert"), planned.auto_users(("bert",)), planned.is_kit)
    assert told == ("int8", "ipex int8", 64, True)
    assert (other.precision("bert"), other.auto_users(("bert",))) == (base.UNKNOWN, base.USERS_WITHOUT_PLAN)
    assert (other.token(), other.list_workers()) == ("", {})
    assert other.verify() is stock.verify() is other.accuracy("bert") is None
    assert other.describe_workers() == stock.describe_workers() == []
    assert other.list_causes() == planned.list_causes() == ()
    ended = Part(causes=(Cause(at="2026-01-02T03:04:05+00:00", cause="TorchServe is gone (killed?)"),))
    run.record.parent.mkdir(exist_ok=True)
    write_state(run.record, Record(pid=1, phase=Phase.READY, since="", instances={"a1": ended}))
    assert planned.list_causes() == ("a1: TorchServe is gone (killed?)",)


ROWS = [{"name": "allocator", "model": "bert", "state": state} for state in (DIFFERS, "passed")]


@pytest.mark.parametrize(
    ("printed", "known"),
    [
        ('{"passed": true, "rows": []}', {"good": True, "findings": []}),
        (json.dumps({"passed": False, "rows": ROWS}), {"good": False, "findings": ROWS[:1]}),
        ("no server", {"good": False, "findings": [], "error": "it is down"}),
    ],
)
def test_verify_is_what_the_command_prints(monkeypatch, tmp_path, printed, known):
    asked = []

    def run(command, **_options):
        asked.append(" ".join(command[1:]))
        return SimpleNamespace(stdout=printed, stderr="it is down\n")

    monkeypatch.setattr(base.subprocess, "run", run)
    found = Running(name="kit", models=("bert",), run=RunDir.at(tmp_path), plan=make_plan()).verify()
    assert found == known
    assert asked == [f"-m server verify FORMAT=json RUN_DIR={tmp_path}"]


@pytest.mark.parametrize(
    ("where", "url", "path"),
    [("https://h:1/", "https://h:1", ""), ("http://h:1/v1/ask/?x=1", "http://h:1", "/v1/ask?x=1")],
)
def test_any_server_is_found_by_its_url_and_the_path_to_ask(testbed, where, url, path):
    server = running_server(where)
    with server.open(testbed) as found, running_server(where, "b").open(testbed) as named:
        assert (found.url, found.path, found.name) == (url, path, where)
        assert (found.run, found.plan, found.models, server.name, named.name) == (None, None, (), where, "b")


def test_one_that_ran_before_is_found_by_its_folder_and_goes_on_behind_an_error(
    testbed, marked, monkeypatch, tmp_path
):
    monkeypatch.setattr(base, "find_running", lambda where, name: Running(name=name, run=RunDir.at(where)))
    server = running_server(str(tmp_path))
    assert server.name == tmp_path.name
    with contextlib.suppress(LoadTestError), server.open(testbed) as up:
        up.halt()
        assert wait_for_state(marked, "T")
        raise LoadTestError("cut off")
    assert wait_for_state(marked, "S")


def test_a_folder_where_nothing_answers_and_a_kept_server_are_rejected(testbed, tmp_path):
    wanted = r"no server answers from .*; run `make serve` first"
    with pytest.raises(LoadTestError, match=wanted), running_server(str(tmp_path)).open(testbed):
        pass
    with pytest.raises(LoadTestError, match="old is known by its kept figures alone"):
        kept_server("old").open(testbed)


@pytest.fixture
def commands(monkeypatch):
    """What is called instead of the kit's commands; `start` fails as told."""
    log = SimpleNamespace(called=[], failure=None, stopped=[])

    def call(arguments):
        log.called.append(" ".join(arguments))
        if arguments[0] == "server" and log.failure:
            write_state(log.run / "failure.json", log.failure)
            raise LoadTestError("python -m server start failed")

    def make(name, run, _plan, *, how):
        log.run = run.path
        return Running(name=name, models=("bert",), run=run, how=how)

    monkeypatch.setattr(kit, "_call", call)
    monkeypatch.setattr(kit, "make_running", make)
    monkeypatch.setattr(kit, "read_start", lambda _: 1.5)
    monkeypatch.setattr(kit, "stop", lambda run: log.stopped.append(run.path))
    return log


@pytest.mark.parametrize("instances", [1, None])
def test_a_kit_server_is_planned_started_and_stopped(commands, testbed, monkeypatch, tmp_path, instances):
    planned: list[Any] = []
    monkeypatch.setattr(kit, "read_facts", planned.append)
    monkeypatch.setattr(kit, "make_plan", lambda *_, **how: None)
    monkeypatch.setattr(kit, "write_plan_files", lambda _: None)
    monkeypatch.setenv("KIT_BATCH", "7")  # of the person: what is compared is what is named
    server = kit_server("int8", ["bert", "resnet50"], ["PRECISION=int8"], instances=instances)
    with server.open(testbed) as running:
        assert not commands.stopped
        assert (running.name, running.how, running.start_s) == ("int8", "kit PRECISION=int8", 1.5)
    place, (settings,) = tmp_path / "kit-1", planned
    assert (settings.models, settings.port, settings.precision) == (("bert", "resnet50"), 9100, "int8")
    assert (settings.run_dir, settings.model_store) == (str(place), f"{tmp_path}/store")
    assert (settings.instances, settings.batch) == (instances, {})
    assert commands.called == [f"server start RUN_DIR={place}"]
    assert commands.stopped == [place]


def test_places_have_folders_and_ports_of_their_own(testbed):
    places = [testbed.place("kit") for _ in range(base.PLACES)]
    assert len({folder for folder, _ in places}) == len({port for _, port in places}) == base.PLACES


def test_a_start_that_fails_is_told_in_the_kits_own_words(commands, testbed, monkeypatch, tmp_path):
    commands.failure = Failure(cause="no memory for the shapes", step="trace")
    monkeypatch.setattr(kit, "write_plan", lambda *_, **how: None)
    with pytest.raises(RejectedError) as problem, kit_server("kit", ["bert"], []).open(testbed):
        pytest.fail("it must not come up")
    assert problem.value.reason == "trace: no memory for the shapes"
    assert commands.stopped == [tmp_path / "kit-1"]


def test_what_cannot_be_planned_is_rejected_before_any_start(testbed):
    server = kit_server("kit", ["bert"], ["PRECISION=int9"])
    with pytest.raises(RejectedError) as problem, server.open(testbed):
        pytest.fail("it must not come up")
    assert "int9" in problem.value.reason


BORN = {104.5: WORKER, 103.5: ("-m", LAUNCHER_MODULE, *WORKER), 101.0: ("java",), 100.0: ("serve",)}
TICKS = os.sysconf("SC_CLK_TCK")
PROCESSES = [Process(pid=1, start_ticks=round(at * TICKS), parent_pid=1, command=w) for at, w in BORN.items()]


@pytest.mark.parametrize(("processes", "seconds"), [(PROCESSES, 25.5), (PROCESSES[::3], 24.5)])
def test_a_start_begins_with_the_birth_of_a_worker_or_its_launcher(monkeypatch, tmp_path, processes, seconds):
    monkeypatch.setattr(kit, "find_marked", lambda _: processes)
    running = Running(name="kit", models=("bert",), run=RunDir.at(tmp_path))
    with pytest.raises(LoadTestError, match=r"kit: its server\.json does not say how long"):
        read_start(running)
    state = State(phase=Phase.READY, plan_sha256="", started_at="", seconds_to_ready=29.0)
    write_state(tmp_path / "server.json", state)
    assert read_start(running) == seconds
