"""A running server is told from leftovers, and no other plan or archive passes for its own; the start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from server import start as module
from server.archives import read_archive
from server.errors import ServerError
from server.processes import JAVA_MAIN, find_marked
from server.ready import StartFailed
from server.rundir import MARK
from server.serve import check_reloadable, check_same_proxy, is_running
from server.start import Interrupted, catch_signals, count_told, start, stay
from server.state import (
    Failure,
    Phase,
    Record,
    digest_plan,
    identify_archives,
    read_failure,
    read_state,
    write_state,
)
from server.stop import stop
from tests.plans import make_instance, make_model
from tests.server.fakes import SLEEP, make_archive, shown, write_running


@pytest.fixture
def supervised(planned, tmp_path):
    """A process that looks like the supervisor."""
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "__main__.py").write_text(SLEEP)
    command = [sys.executable, "-m", "server", "supervise"]
    process = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, MARK: str(planned.path)})
    yield shown(process)
    process.kill()
    process.wait()


def archives_of(folder, note):
    return {"bert": read_archive(make_archive(folder / "bert.mar", name="bert", note=note))}


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ("as planned", ""),
        ("none", r"server\.json is missing or damaged"),
        ("another plan", "has another plan"),
        ("rebuilt", "archives of bert were rebuilt"),
    ],
)
def test_a_server_that_runs_is_the_planned_one_or_called_another_and_not_touched(
    planned, plan, supervised, tmp_path, state, why
):
    archives = archives_of(tmp_path, "as started")
    known = {"plan_sha256": digest_plan(plan), "archives": identify_archives(plan, archives)}
    if state != "none":
        write_running(planned, Phase.READY, **known)
    if state == "rebuilt":
        archives = archives_of(tmp_path, "built again")
    check_reloadable(planned)
    if why:
        with pytest.raises(ServerError, match=f"already runs from .*{why}.*; run `make stop` first"):
            is_running(planned, replace(plan, slo_p99_ms=1) if "plan" in state else plan, archives)
    else:
        assert is_running(planned, plan, archives)
    assert supervised.poll() is None


def test_leftovers_of_a_killed_start_are_ended(planned, plan, dummy, capsys):
    left = dummy(planned.path, JAVA_MAIN)
    write_running(planned, Phase.STARTING)
    assert not is_running(planned, plan, {})
    assert left.wait(60) == -signal.SIGTERM
    assert "an earlier start left 1 process(es) behind: stopped 1 TorchServe" in capsys.readouterr().out
    with pytest.raises(ServerError, match="no server runs"):
        check_reloadable(planned)


FIXED = {
    "HOST": "0.0.0.0", "PORT": 1, "CORS_ORIGIN": "https://a", "TLS_CERT": "/c.pem", "TLS_KEY": "/k.pem",
}  # fmt: skip


@pytest.mark.parametrize("name", [*FIXED, "MODELS", "package set"])
def test_what_the_running_server_has_for_good_is_rejected(plan, name):
    check_same_proxy(plan, replace(plan, slo_p99_ms=1, generation="b"))
    if name in FIXED:
        following = replace(plan, proxy=replace(plan.proxy, **{name.lower(): FIXED[name]}))
    elif name == "MODELS":
        following = replace(plan, instances={"a1": make_instance(1, {"bert": make_model("bert")})})
    else:
        following = replace(plan, package_set="current")
    with pytest.raises(ServerError, match=f"a reload cannot change {name}: got "):
        check_same_proxy(plan, following)


@pytest.fixture
def heeded():
    """SIGHUP is not ignored, as it is where these tests run under nohup."""
    outside = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, outside)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_become_interrupted_and_handlers_come_back(heeded, number):
    before = signal.getsignal(number)
    with pytest.raises(Interrupted) as interrupted, catch_signals():
        os.kill(os.getpid(), number)
    assert interrupted.value.exit_code == 128 + number
    assert signal.getsignal(number) is before


def test_under_nohup_the_end_of_the_terminal_is_still_ignored(heeded):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with catch_signals():
        os.kill(os.getpid(), signal.SIGHUP)


@pytest.fixture
def begin(planned, plan, monkeypatch, lines, tmp_path, dummy):
    """A start whose supervisor is a process that sleeps, after `do` was called with it."""
    archives = archives_of(tmp_path, "as planned")
    planned.proxy_config.write_text("global\n")
    for name in ("check_ports_free", "check_configuration"):
        monkeypatch.setattr(module, name, lambda *_: None)
    monkeypatch.setattr(module, "read_archives", lambda _: archives)
    monkeypatch.setattr(module, "POLL_S", 0.01)

    def go(do):
        def launch(run):
            process = dummy(run.path)
            run.supervisor_log.touch()
            do(process)
            return process

        monkeypatch.setattr(module, "_launch", launch)
        return start(planned, plan, lines.append)

    return go


def test_a_good_start_records_itself_and_forgets_the_last_failure(begin, planned, plan, lines):
    planned.failure.write_text("{}")

    def be_ready(process):
        planned.supervisor_log.write_text("a1: ready\n")
        write_state(planned.record, Record(pid=process.pid, phase=Phase.READY, since="now"))

    process = begin(be_ready)
    state = read_state(planned.state)
    assert (state.phase, state.plan_sha256) == (Phase.READY, digest_plan(plan))
    assert (set(state.archives), lines) == ({"bert"}, ["a1: ready"])
    assert state.properties_sha256
    assert not planned.failure.exists()
    assert planned.token.exists()
    process.kill()
    process.wait()
    with pytest.raises(ServerError, match="ended with status -9"):
        stay(process, planned, lines.append, count_told(planned.supervisor_log))
    planned.state.unlink()
    assert stay(process, planned, lines.append, 0) == 0  # stopped by another command


FAILED = Failure(model="bert", step="freeze", cause="planted")


@pytest.mark.parametrize("how", ["failed", "silent", "stopped", "interrupted", "bug"])
def test_a_start_that_does_not_succeed_leaves_its_cause_and_no_process(begin, planned, monkeypatch, how):
    def end(process):
        if how == "stopped":  # before the supervisor had its mark: it found nothing to end
            monkeypatch.setattr("server.stop.find_marked", lambda _: [])
            monkeypatch.setattr("server.stop.end_all", lambda _: [])
            stop(planned)
            monkeypatch.undo()
        elif how in ("interrupted", "bug"):
            raise Interrupted(signal.SIGTERM) if how == "interrupted" else RuntimeError("bug")
        else:
            process.kill()
            process.wait()
        if how == "failed":
            write_state(planned.failure, FAILED)

    problems = {"interrupted": Interrupted, "bug": RuntimeError}
    with pytest.raises(problems.get(how, StartFailed)) as caught:
        begin(end)
    assert find_marked(planned.path) == []
    assert not planned.state.exists()
    assert not planned.temporary.exists()
    causes = {"failed": "planted", "silent": "ended with status -9", "stopped": "stopped by another"}
    if how in causes:
        assert causes[how] in read_failure(planned.failure).cause
        assert causes[how] in caught.value.failure.cause


def test_the_supervisor_gets_its_mark_and_little_of_the_shell(planned, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/stray")
    monkeypatch.setenv("NOTIFY_SOCKET", "/systemd")
    made = []
    monkeypatch.setattr(module, "spawn", lambda *words: made.append(words))
    module._launch(planned)
    command, _, environment, log = made[0]
    assert command[1:] == ["-m", "server", "supervise", f"RUN_DIR={planned.path}"]
    assert {name: environment.get(name) for name in (MARK, "PYTHONPATH", "NOTIFY_SOCKET")} == {
        MARK: str(planned.path), "PYTHONPATH": None, "NOTIFY_SOCKET": "/systemd"
    }  # fmt: skip
    assert log == planned.supervisor_log
