"""The command line: exit codes, errors in one line each, and how a server comes up."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from config.errors import ConfigError
from config.folders import hold_lock
from config.plan import write_plan
from config.planning import backends
from config.settings import Settings, read_settings
from server import cli, serve
from server.command import read_call
from server.errors import ServerError
from server.ready import StartFailed
from server.rundir import RunDir
from server.start import Interrupted
from server.state import Failure
from tests.plans import make_plan

SUPERVISOR = SimpleNamespace(is_supervisor=True, is_java=False, pid=42)


@pytest.fixture
def run(tmp_path, monkeypatch) -> RunDir:
    """A run directory that is not there yet; no kit.toml and no KIT_ variable counts."""
    for name in [one for one in os.environ if one.startswith("KIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return RunDir.at(tmp_path / "run")


@pytest.fixture
def kit(run, monkeypatch):
    """`serve` and `start` up to what other modules do, of which it writes down the order."""
    done: list[str] = []
    plan = make_plan(run_dir=run.path)

    def write(plan):
        assert locked(run)
        done.append("write")
        write_plan(plan, run.plan)

    def start(*_):
        assert locked(run)
        done.append("start")
        return SimpleNamespace(pid=1)

    job = SimpleNamespace(models={"bert": None}, to_json=lambda: "{}")
    facts = SimpleNamespace(model_store="/store")
    for name, fake in {
        "read_facts": lambda _: facts,
        "judge_tuned": lambda *_: (None, []),
        "make_profile_job": lambda *_: job,
        "make_plan": lambda *_, **how: done.append(f"plan {how['generation']}") or plan,
        "write_plan_files": write,
        "start": start,
        "summarize": lambda _: "a plan",
        "describe_plan": lambda _: "all of a plan",
        "render_calls": lambda *_, elsewhere: f"curl elsewhere={elsewhere}",
        "print_comparison": lambda *_: 0,
        "is_running": lambda *_: False,
        "find_marked": lambda _: [],
        "_call": lambda *words: done.append(" ".join(words[:2])),
    }.items():
        monkeypatch.setattr(serve, name, fake)
    for name in ("read_profile", "check_ports_free", "check_chosen", "confine", "list_server_cpus"):
        monkeypatch.setattr(serve, name, lambda *_: None)
    for name in ("read_archives", "read_archives_left"):
        monkeypatch.setattr(serve, name, lambda *_: {})
    monkeypatch.setattr(backends, "find_need", lambda *_: None)
    return done


def locked(run: RunDir) -> bool:
    try:
        with hold_lock(run.path):
            return False
    except ConfigError:
        return True


def call(command: str, run: RunDir, *words: str) -> int:
    return cli.main([command, f"RUN_DIR={run.path}", *words])


def fails(problem: BaseException) -> Callable[..., NoReturn]:
    def fail(*_: object) -> NoReturn:
        raise problem

    return fail


@pytest.fixture
def claimed(run) -> RunDir:
    """A run directory of the kit's, with a plan."""
    run.path.mkdir()
    write_plan(make_plan(run_dir=run.path), run.plan)
    (run.path / ".cpu-kit").touch()
    return run


def test_serve_builds_measures_plans_writes_and_starts_that_plan_in_this_order(kit, run, capsys):
    assert call("serve", run) == 0
    assert kit == ["models build", "models time", "plan a", "write", "start"]
    assert not locked(run)
    assert capsys.readouterr().out.splitlines()[0] == f"a plan → {run.plan}"
    assert (run.path.stat().st_mode & 0o777, run.plan.stat().st_mode & 0o777) == (0o700, 0o600)


def test_in_a_container_nothing_is_built_or_measured(kit, run, capsys):
    assert call("serve", run, "--built", "--hide-token") == 0
    assert kit == ["plan a", "write", "start"]
    assert "curl elsewhere=True" in capsys.readouterr().out


def test_a_build_that_fails_ends_it_with_its_code_and_starts_nothing(kit, run, monkeypatch):
    monkeypatch.setattr(serve, "_call", fails(cli.subprocess.CalledProcessError(7, "build")))
    assert call("serve", run) == 7
    assert kit == []


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ([], 0, "already running with these settings"),
        (["WEIGHTS=random"], 1, "other WEIGHTS; do: make reload, or make stop && make serve"),
        (["PORT=8090", "PRECISION=int8"], 1, "other PRECISION, PORT; do: make reload"),
        (["FOREGROUND=1"], 1, "in the background; for FOREGROUND=1 run `make stop` first"),
    ],
)
def test_a_server_that_runs_is_told_of_at_once(kit, claimed, monkeypatch, capsys, words, code, told):
    monkeypatch.setattr(serve, "find_marked", lambda _: [SUPERVISOR])
    monkeypatch.setattr(serve, "is_running", lambda *_: True)
    assert call("serve", claimed, *words) == code
    said = capsys.readouterr()
    assert told in said.out + said.err
    assert kit == []


def test_what_counts_as_other_settings():
    def compare(then: list[str], now: list[str]) -> list[str]:
        before = read_settings(then, ()).model_dump(mode="json", exclude_defaults=True)
        return serve.list_changes(before, read_settings(now, ()))

    assert compare(["BATCH=4", "WEIGHTS=random", "VERBOSE=1", "RUN_DIR=x"], ["BATCH=4", "FOREGROUND=1"]) == []
    assert compare([], ["MODELS=resnet50 bert"]) == []
    assert compare(["BATCH=4"], ["BATCH=4,bert=8", "WEIGHTS=auto"]) == ["BATCH", "WEIGHTS"]
    assert compare(["HOST=127.0.0.2", "OFF=trace"], []) == ["HOST", "OFF"]


def test_what_an_earlier_start_left_is_ended(kit, claimed, monkeypatch, capsys):
    claimed.plan.unlink()
    monkeypatch.setattr(serve, "find_marked", lambda _: [SimpleNamespace(is_supervisor=False)])
    monkeypatch.setattr(serve, "stop", lambda _: SimpleNamespace(describe=lambda: "stopped 1 worker"))
    assert call("serve", claimed) == 0
    assert "an earlier start left 1 process(es) behind: stopped 1 worker" in capsys.readouterr().out


def test_a_second_start_in_a_run_directory_is_rejected(kit, claimed, capsys):
    with hold_lock(claimed.path):
        assert call("serve", claimed) == 2
    assert "another start is under way" in capsys.readouterr().err
    assert kit == []


def test_a_run_directory_of_others_is_rejected_before_anything_is_built(kit, run, capsys):
    run.path.mkdir()
    (run.path / "environment").write_text("PATH=/usr/bin")
    for command in ("serve", "check-serve"):
        assert call(command, run) == 2
    assert "RUN_DIR must be a new or empty folder, or one of the kit's" in capsys.readouterr().err
    assert [file.read_text() for file in run.path.iterdir()] == ["PATH=/usr/bin"]
    assert kit == []


def test_a_taken_port_is_found_from_the_settings_alone(kit, run, monkeypatch, capsys):
    monkeypatch.undo()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert call("serve", run, f"PORT={port - 2}") == 1
        assert f"port {port} (metrics) is taken by process " in capsys.readouterr().err
        assert not run.path.exists()
        run.path.mkdir()
        monkeypatch.setattr(serve, "find_marked", lambda _: [SUPERVISOR])  # they may be its own
        with pytest.raises(ServerError, match="but no plan"):
            serve.check_serve(read_call("check-serve", [f"RUN_DIR={run.path}", f"PORT={port}"]))


def test_a_precision_that_the_cpu_has_not_is_told_at_once(kit, run, monkeypatch, capsys):
    monkeypatch.setattr(backends, "find_need", lambda machine, backend, precision: f"a CPU for {backend}")
    assert call("serve", run, "PRECISION=bf16") == 2
    assert "PRECISION=bf16 needs a CPU for ipex; use PRECISION=fp32" in capsys.readouterr().err
    assert kit == []


def test_a_failed_start_prints_cause_and_fix(kit, run, monkeypatch, capsys):
    failure = Failure(model="bert", step="freeze", cause="planted", fix="unplant it", log="a.log")
    monkeypatch.setattr(serve, "start", fails(StartFailed(failure)))
    assert call("serve", run) == 1
    printed = capsys.readouterr().err
    told = ("start failed:", "bert", "freeze", "planted", "unplant it", "a.log")
    assert [text for text in told if text not in printed] == []


@pytest.fixture
def foreground(kit, monkeypatch):
    """What `end` and `stay` are called for."""
    ended: list[Path] = []
    monkeypatch.setattr(serve, "end", lambda run: ended.append(run.path))
    monkeypatch.setattr(serve, "stay", lambda *_: 0)
    return ended


def test_in_the_foreground_the_end_of_the_program_is_the_servers(foreground, run, monkeypatch):
    assert call("serve", run, "FOREGROUND=1") == 0
    assert foreground == [run.path]
    monkeypatch.setattr(serve, "stay", fails(Interrupted(signal.SIGTERM)))
    assert call("start", run, "FOREGROUND=1") == 0
    assert foreground == [run.path] * 2


def test_in_the_foreground_a_server_that_differs_is_ended(foreground, run, monkeypatch, capsys):
    monkeypatch.setattr(serve, "print_comparison", lambda *_: 1)
    monkeypatch.setattr(serve, "stay", lambda *_: pytest.fail("stayed"))
    assert call("serve", run, "FOREGROUND=1") == 1
    assert "the server differs from its plan" in capsys.readouterr().err
    assert foreground == [run.path]


def test_a_signal_ends_a_start_and_the_umask_is_given_back(kit, run, monkeypatch):
    def write(plan):
        run.plan.touch()
        raise Interrupted(2)

    monkeypatch.setattr(serve, "write_plan_files", write)
    before = os.umask(0o022)
    try:
        assert call("serve", run) == 130
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
    assert run.plan.stat().st_mode & 0o777 == 0o600


def test_start_takes_the_plan_that_is_there(kit, claimed):
    assert call("start", claimed) == 0
    assert kit == ["start"]
    claimed.plan.unlink()
    assert call("start", claimed) == 2


def test_plan_prints_all_and_writes_nothing(kit, run, capsys):
    assert call("plan", run) == 0
    assert capsys.readouterr().out == "all of a plan\n"
    assert kit == ["plan a"]
    assert not run.path.exists()


@pytest.fixture
def running(kit, claimed, monkeypatch):
    """A server that can be reloaded; the generations that it moved from and to."""
    moved: list[tuple[str, str]] = []
    monkeypatch.setattr(serve, "check_reloadable", lambda _: None)
    monkeypatch.setattr(serve, "reload", lambda run, now, following, _: moved.append((now, following)) or 0)
    return moved


def test_a_reload_builds_and_plans_the_other_generation(kit, running, run):
    assert call("reload", run, "PRECISION=int8") == 0
    assert kit == ["models build", "plan b"]
    assert len(running) == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["PORT=8090", "PRECISION=int8"], "a reload cannot change PORT; leave it"),
        (["MODELS=bert"], "a reload cannot change MODELS; leave it"),
        (["BACKEND=openvino"], "a reload cannot change the package set of BACKEND"),
    ],
)
def test_what_a_reload_cannot_change_is_told_before_anything_is_built(kit, running, run, capsys, words, told):
    for command in ("reload", "check-reload"):
        assert call(command, run, *words) == 1
        assert told in capsys.readouterr().err
    assert (kit, running) == ([], [])


def test_a_reload_of_nothing_is_told_first(run, capsys):
    assert call("check-reload", run) == 1
    assert "no server runs from" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["fly"], ["verify", "FORMAT=xml"], ["status", "PRECISON=1"]])
def test_wrong_usage_is_code_2(run, words, capsys):
    assert cli.main([*words]) == 2
    assert capsys.readouterr().err


def test_a_command_of_make_rejects_what_it_does_not_read(run, capsys):
    assert cli.main(["stop", "--goals=stop", "USERS=3"]) == 2
    assert capsys.readouterr().err.startswith("error: USERS is read by make loadtest, ")
    assert cli.main(["stop", "--goals=stop serve", "PRECISION=int8", f"RUN_DIR={run.path}"]) == 0


def test_no_slip_keeps_a_server_from_being_stopped(run, tmp_path, monkeypatch):
    (tmp_path / "kit.toml").write_text("broken")
    monkeypatch.setenv("KIT_PRECISON", "int8")
    assert call("stop", run) == 0
    assert call("serve", run) == 2


def test_what_the_system_rejects_is_a_sentence(run, monkeypatch, capsys):
    monkeypatch.setattr(cli, "run", fails(PermissionError(13, "Permission denied", str(run.plan))))
    for command in ("stop", "status", "verify", "serve"):
        assert call(command, run) == 1
        assert capsys.readouterr().err.startswith(f"error: Permission denied: {run.plan} (as ")


def test_the_supervisor_goes_by_its_arguments_alone(run, tmp_path, monkeypatch):
    (tmp_path / "kit.toml").write_text("broken")
    monkeypatch.setenv("KIT_RUN_DIR", "/other")
    given = read_call("supervise", [f"RUN_DIR={run.path}"])
    assert (given.run.path, given.settings.model_copy(update={"run_dir": "run"})) == (run.path, Settings())
