"""A start finds what is there before it, and leaves nothing when it fails or is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from server import start as start_module
from server.errors import ServerError
from server.processes import JAVA_MAIN, find_marked
from server.start import Interrupted, catch_signals, digest_plan, find_death, hold_lock, is_running, stay
from server.state import READY, STARTING, State, read_failure, write_state
from tests.server.fakes import RECORDED


@pytest.fixture
def planned(run):
    """A run directory with a plan."""
    run.plan.write_bytes((RECORDED / "plan.json").read_bytes())
    return run


@pytest.fixture
def lines():
    return []


def write(run, phase, digest=None):
    write_state(run.state, State(phase=phase, plan_sha256=digest or digest_plan(run), started_at="now"))


def test_nothing_runs_in_a_fresh_run_directory(planned, lines):
    assert is_running(planned, lines.append) is False


def test_the_same_plan_is_already_running(planned, lines, dummy):
    dummy(planned.path, JAVA_MAIN)
    write(planned, READY)
    assert is_running(planned, lines.append) is True


@pytest.mark.parametrize("digest", ["another", None])
def test_another_or_unknown_plan_is_not_touched(planned, lines, dummy, digest):
    java = dummy(planned.path, JAVA_MAIN)
    if digest:
        write(planned, READY, digest)
    with pytest.raises(ServerError, match=r"a server with another plan runs from .*; run `make stop` first"):
        is_running(planned, lines.append)
    assert java.poll() is None


@pytest.mark.parametrize("words", [(JAVA_MAIN,), ("model_service_worker.py",)])
def test_leftovers_of_a_killed_start_are_ended(planned, lines, dummy, words):
    left = dummy(planned.path, *words)
    write(planned, STARTING)
    assert is_running(planned, lines.append) is False
    assert left.wait(5) == -signal.SIGTERM
    assert lines[0].startswith("an earlier start left 1 process(es) behind: stopped 1 ")


def test_workers_without_java_are_leftovers_too(planned, lines, dummy):
    left = dummy(planned.path, "model_service_worker.py")
    write(planned, READY)
    assert is_running(planned, lines.append) is False
    assert left.wait(5) == -signal.SIGTERM


def test_two_starts_at_once_are_refused(planned):
    expected = pytest.raises(ServerError, match="another start is under way")
    with hold_lock(planned), expected, hold_lock(planned):
        pass
    with hold_lock(planned):
        pass


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_become_interrupted_and_handlers_come_back(number):
    before = signal.getsignal(number)
    with pytest.raises(Interrupted) as interrupted, catch_signals():
        os.kill(os.getpid(), number)
    assert interrupted.value.exit_code == 128 + number
    assert signal.getsignal(number) is before


def fail_with(problem):
    def wait(*_):
        raise problem

    return wait


def prepare_start(run, monkeypatch, plan, problem):
    """A start whose TorchServe is a dummy process and whose wait fails."""
    environment = {**os.environ, "CPU_KIT_RUN": str(run.path)}
    command = [sys.executable, "-c", "import time; time.sleep(60)", JAVA_MAIN]
    monkeypatch.setattr(start_module, "read_archives", lambda *_: {})
    monkeypatch.setattr(start_module, "check_machine", lambda *_: None)
    monkeypatch.setattr(start_module, "check_ports_free", lambda *_: None)
    monkeypatch.setattr(start_module, "make_allocator_link", lambda *_: None)
    monkeypatch.setattr(
        start_module, "launch", lambda *_: subprocess.Popen(command, env=environment, start_new_session=True)
    )
    monkeypatch.setattr(start_module, "wait_until_ready", fail_with(problem))


def test_a_failed_start_leaves_its_cause_and_no_process(planned, plan, monkeypatch, lines, tmp_path):
    failure = start_module.Failure(model="bert", step="freeze", cause="planted")
    prepare_start(planned, monkeypatch, plan, start_module.StartFailed(failure))
    with pytest.raises(start_module.StartFailed):
        start_module.start(planned, tmp_path, lines.append)
    assert read_failure(planned.failure) == failure
    assert find_marked(planned.path) == []
    assert not planned.state.exists()
    assert lines == ["stopped 1 TorchServe"]


@pytest.mark.parametrize("problem", [Interrupted(signal.SIGTERM), KeyboardInterrupt(), RuntimeError("bug")])
def test_an_interrupted_start_leaves_no_process(planned, plan, monkeypatch, lines, tmp_path, problem):
    prepare_start(planned, monkeypatch, plan, problem)
    with pytest.raises(type(problem)):
        start_module.start(planned, tmp_path, lines.append)
    assert find_marked(planned.path) == []
    assert not planned.temporary.exists()


def test_a_good_start_records_itself_and_forgets_the_last_failure(
    planned, plan, monkeypatch, lines, tmp_path
):
    planned.failure.write_text("{}")
    prepare_start(planned, monkeypatch, plan, None)
    monkeypatch.setattr(start_module, "wait_until_ready", lambda *_: 1.0)
    process = start_module.start(planned, tmp_path, lines.append)
    state = start_module.read_state(planned.state)
    assert (state.phase, state.plan_sha256) == (READY, digest_plan(planned))
    assert not planned.failure.exists()
    assert process.poll() is None
    start_module.stop(planned)
    process.wait(5)


def test_foreground_ends_with_a_server_that_was_stopped_from_elsewhere(planned, dummy, lines):
    process = dummy(planned.path)
    process.kill()
    assert stay(process, planned, lines.append) == 0
    assert lines == ["stopped from elsewhere"]


def test_foreground_fails_when_torchserve_dies(planned, dummy, lines):
    write(planned, READY)
    planned.logs.mkdir()
    planned.console_log.write_text("java.lang.OutOfMemoryError: Java heap space\n")
    process, orphan = dummy(planned.path), dummy(planned.path, "model_service_worker.py")
    process.kill()
    process.wait()
    assert stay(process, planned, lines.append) == 1
    assert (
        read_failure(planned.failure).cause == "TorchServe ended: java.lang.OutOfMemoryError: Java heap space"
    )
    assert orphan.wait(5) == -signal.SIGTERM


def test_a_stop_from_elsewhere_ends_a_start_with_that_reason(planned, dummy):
    process = dummy(planned.path)
    assert find_death(process, planned) is None
    process.kill()
    process.wait()
    assert find_death(process, planned).cause == "stopped from elsewhere (make stop) while it was starting"
