"""The command line: exit codes, and errors in one line."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import pytest

from config.plan import write_plan
from server import cli
from server.processes import JAVA_MAIN
from server.ready import StartFailed
from server.start import Interrupted
from server.state import READY, Failure
from server.tokens import write_private
from tests.server.fakes import as_whole, make_archive, read_recorded_plan, write_running

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folders(run, tmp_path):
    """Arguments for a run directory with a plan and a model store with archives."""
    write_plan(as_whole(read_recorded_plan()), run.plan)
    write_private(run.token, "a-token-of-letters")
    for name in ("bert", "resnet50"):
        make_archive(tmp_path / f"{name}.mar", name=name)
    return ["--run-dir", str(run.path), "--model-store", str(tmp_path)]


def test_wrong_usage_exits_2():
    for arguments in ([], ["fly"], ["verify", "--format", "xml"]):
        with pytest.raises(SystemExit) as error:
            cli.main(arguments)
        assert error.value.code == 2


@pytest.mark.parametrize("command", ["start", "verify"])
def test_without_a_plan_the_command_says_what_to_run(command, run, capsys):
    assert cli.main([command, "--run-dir", str(run.path)]) == 1
    assert capsys.readouterr().err.startswith(f"error: no plan: {run.plan}")


def test_verify_of_nothing_is_a_difference(folders, capsys):
    assert cli.main(["verify", *folders, "--format", "json"]) == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert "supervisor" in [one["item"] for one in findings if one["state"] == "DIFFERS"]


def raising(problem):
    def run(*_):
        raise problem

    return run


def replace_start(monkeypatch, outcome):
    def start(*_):
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    monkeypatch.setattr(cli, "start", start)


def test_a_failed_start_prints_cause_and_cure(folders, monkeypatch, capsys):
    failure = Failure(model="bert", step="freeze", cause="planted", cure="unplant it", log="a.log")
    replace_start(monkeypatch, StartFailed(failure))
    assert cli.main(["start", *folders]) == 1
    printed = capsys.readouterr().err
    assert all(text in printed for text in ("bert", "freeze", "planted", "unplant it", "a.log"))


@pytest.fixture
def foreground(folders, run, monkeypatch, dummy):
    """`start --foreground` of a dummy that verify finds good; the arguments, and the process."""
    started = dummy(run.path, JAVA_MAIN)
    monkeypatch.setattr(cli, "is_running", lambda *_: False)
    replace_start(monkeypatch, started)
    monkeypatch.setattr(cli, "render_calls", lambda *_, **__: "curl …")
    monkeypatch.setattr(cli, "_sum_up", lambda *_: 0)
    return [["start", *folders, "--foreground"], started]


def test_foreground_stops_at_a_signal(foreground, monkeypatch):
    arguments, started = foreground
    monkeypatch.setattr(cli, "stay", raising(Interrupted(15)))
    assert cli.main(arguments) == 0
    assert started.wait(60) == -signal.SIGTERM


def test_foreground_does_not_stay_with_a_server_that_differs(foreground, monkeypatch, capsys):
    arguments, started = foreground
    monkeypatch.setattr(cli, "_sum_up", lambda *_: 1)
    monkeypatch.setattr(cli, "stay", lambda *_: pytest.fail("stayed"))
    assert cli.main(arguments) == 1
    assert "not as asked for" in capsys.readouterr().err
    assert started.wait(60) == -signal.SIGTERM


def test_foreground_refuses_a_server_that_runs_in_the_background(foreground, monkeypatch, capsys):
    arguments, started = foreground
    monkeypatch.setattr(cli, "is_running", lambda *_: True)
    assert cli.main(arguments) == 1
    assert "in the background; for FOREGROUND=1 run `make stop` first" in capsys.readouterr().err
    assert started.poll() is None
    assert cli.main(arguments[:-1]) == 0  # without --foreground


def test_check_plan_takes_the_arguments_of_config(run, dummy, capsys):
    assert cli.main(["check-plan", "--models", "nothing", "--run-dir", str(run.path)]) == 0
    dummy(run.path, JAVA_MAIN)
    run.state.write_text("{}")
    run.plan.write_text("{}")
    write_running(run, READY)
    memory = {"ipex fp32": {"worker_mib": 500, "request_mib": 100}}
    store = make_archive(run.path.parent / "echo.mar", memory=memory).parent
    machine = str(ROOT / "tests/config/machines/two-cores")
    words = ["--models", "echo", "--model-store", str(store), "--topology", machine]
    assert cli.main(["check-plan", *words, "--run-dir", str(run.path)]) == 1
    assert "it has another plan; run `make stop` first" in capsys.readouterr().err
    assert run.plan.read_text() == "{}"


@pytest.mark.parametrize("command", ["stop", "status", "verify", "start"])
def test_what_the_system_refuses_is_a_sentence(command, folders, run, monkeypatch, capsys):
    refused = PermissionError(13, "Permission denied", str(run.plan))
    monkeypatch.setitem(cli._COMMANDS, command, raising(refused))
    assert cli.main([command, *folders]) == 1
    assert capsys.readouterr().err.startswith(f"error: Permission denied: {run.plan} (asked as ")


def test_a_start_in_another_users_run_directory_touches_nothing(folders, run, monkeypatch, capsys):
    (run.path / "logs").mkdir()
    monkeypatch.setattr("config.folders.os.geteuid", lambda: 4_000_000)
    replace_start(monkeypatch, None)
    assert cli.main(["start", *folders]) == 1
    assert "RUN_DIR must be of the user who runs this, user 4000000" in capsys.readouterr().err
    assert sorted(file.name for file in run.path.iterdir()) == ["logs", "plan.json", "token"]


def test_a_start_writes_for_this_user_alone_and_gives_the_umask_back(folders, run, monkeypatch):
    def write(*_):
        (run.path / "written").touch()
        raise Interrupted(2)

    monkeypatch.setattr(cli, "start", write)
    before = os.umask(0o022)
    try:
        assert cli.main(["start", *folders]) == 130
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
    assert (run.path / "written").stat().st_mode & 0o777 == 0o600


def test_a_taken_port_is_found_from_the_values_alone(run, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ["check-ports", "--port", str(port - 2), "--run-dir", str(run.path)]
        assert cli.main(words) == 1
    assert f"port {port} (metrics) is taken by process " in capsys.readouterr().err


def test_the_ports_of_the_own_server_are_no_obstacle(run, dummy):
    """`make serve` again: whether it is the same server is check-plan's to judge."""
    dummy(run.path, JAVA_MAIN)
    with socket.create_server(("127.0.0.1", 0)) as own:
        words = ["check-ports", "--port", str(own.getsockname()[1]), "--run-dir", str(run.path)]
        assert cli.main(words) == 0


def test_a_reload_of_nothing_is_told_before_anything_is_installed(folders, capsys):
    assert cli.main(["check-reload", *folders]) == 1
    assert "no server runs from" in capsys.readouterr().err
