"""A start finds what is there before it, and leaves nothing when it fails or is interrupted."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys

import pytest

from server import keeper
from server.archives import read_archive
from server.errors import ServerError
from server.keeper import find_death, stay
from server.processes import JAVA_MAIN, find_marked
from server.ready import StartFailed
from server.running import digest_plan
from server.start import Interrupted, catch_signals
from server.state import READY, STARTING, Failure, read_failure, read_state
from server.stop import stop
from tests.server.fakes import make_archive, shown, write_running

STOPPED = "stopped from elsewhere (make stop) while it was starting"


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


def fail_with(problem):
    def wait(*_):
        raise problem

    return wait


def prepare_start(run, monkeypatch, plan, problem):
    """A start whose TorchServe is a dummy process and whose wait fails."""
    environment = {**os.environ, "CPU_KIT_RUN": str(run.path)}
    command = [sys.executable, "-c", "import time; time.sleep(60)", JAVA_MAIN]
    monkeypatch.setattr(keeper, "read_archives", lambda *_: {})
    monkeypatch.setattr(keeper, "check_machine", lambda *_: None)
    monkeypatch.setattr(keeper, "check_ports_free", lambda *_: None)
    monkeypatch.setattr(keeper, "make_allocator_link", lambda *_: None)
    monkeypatch.setattr(
        keeper,
        "launch",
        lambda *_: shown(subprocess.Popen(command, env=environment, start_new_session=True)),
    )
    monkeypatch.setattr(keeper, "wait_until_ready", fail_with(problem))


def test_a_failed_start_leaves_its_cause_and_no_process(planned, plan, monkeypatch, lines, tmp_path):
    failure = Failure(model="bert", step="freeze", cause="planted")
    prepare_start(planned, monkeypatch, plan, StartFailed(failure))
    with pytest.raises(StartFailed):
        keeper.start_torchserve(plan, planned, tmp_path, lines.append)
    assert read_failure(planned.failure) == failure
    assert find_marked(planned.path) == []
    assert not planned.state.exists()
    assert lines == ["stopped 1 TorchServe"]


@pytest.mark.parametrize("problem", [Interrupted(signal.SIGTERM), KeyboardInterrupt(), RuntimeError("bug")])
def test_an_interrupted_start_leaves_no_process(planned, plan, monkeypatch, lines, tmp_path, problem):
    prepare_start(planned, monkeypatch, plan, problem)
    with pytest.raises(type(problem)):
        keeper.start_torchserve(plan, planned, tmp_path, lines.append)
    assert find_marked(planned.path) == []
    assert not planned.temporary.exists()


def test_a_good_start_records_itself_and_forgets_the_last_failure(
    planned, plan, monkeypatch, lines, tmp_path
):
    planned.failure.write_text("{}")
    planned.properties.write_text("a=b\n")
    prepare_start(planned, monkeypatch, plan, None)

    def log_at_ready(*_):
        planned.server_log.write_text("Torchserve version: 0.12.0\nModel API enabled: false\n")

    monkeypatch.setattr(keeper, "wait_until_ready", log_at_ready)
    archives = {"bert": read_archive(make_archive(tmp_path / "echo.mar"))}
    monkeypatch.setattr(keeper, "read_archives", lambda *_: archives)
    process = keeper.start_torchserve(plan, planned, tmp_path, lines.append)
    state = read_state(planned.state)
    assert (state.phase, state.plan_sha256) == (READY, digest_plan(planned))
    assert state.properties_sha256 == hashlib.sha256(b"a=b\n").hexdigest()
    assert state.configuration == {"Torchserve version": "0.12.0", "Model API enabled": "false"}
    assert state.archives == {"bert": archives["bert"].archive_id}
    assert not planned.failure.exists()
    assert process.poll() is None
    stop(planned)
    process.wait(60)


def test_foreground_ends_with_a_server_that_was_stopped_from_elsewhere(planned, dummy, lines):
    process = dummy(planned.path)
    process.kill()
    assert stay(process, planned, lines.append) == 0
    assert lines == ["stopped from elsewhere"]


def test_foreground_fails_when_torchserve_dies(planned, dummy, lines):
    write_running(planned, READY)
    planned.logs.mkdir()
    planned.console_log.write_text("java.lang.OutOfMemoryError: Java heap space\n")
    process, orphan = dummy(planned.path), dummy(planned.path, "model_service_worker.py")
    process.kill()
    process.wait()
    assert stay(process, planned, lines.append) == 1
    assert (
        read_failure(planned.failure).cause == "TorchServe ended: java.lang.OutOfMemoryError: Java heap space"
    )
    assert orphan.wait(60) == -signal.SIGTERM


def test_a_stop_from_elsewhere_ends_a_start_with_that_reason(planned, dummy):
    process = dummy(planned.path)
    write_running(planned, STARTING)
    assert find_death(process, planned) is None
    stop(planned)
    process.wait(60)
    assert find_death(process, planned).cause == STOPPED


def test_a_stop_that_came_before_torchserve_ends_the_start_too(planned, plan, monkeypatch, lines, tmp_path):
    prepare_start(planned, monkeypatch, plan, None)
    launch = keeper.launch

    def launch_after_a_stop(*arguments):
        assert stop(planned).ended == ()
        return launch(*arguments)

    monkeypatch.setattr(keeper, "launch", launch_after_a_stop)
    monkeypatch.setattr(keeper, "wait_until_ready", lambda _plan, _archives, around: ready(around))
    with pytest.raises(StartFailed, match=re.escape(STOPPED)):
        keeper.start_torchserve(plan, planned, tmp_path, lines.append)
    assert find_marked(planned.path) == []


def ready(around):
    """The wait's first look; nothing is waited for."""
    failure = around.find_death()
    if failure:
        raise StartFailed(failure)


def test_an_archive_that_is_not_as_built_does_not_start(planned, plan, tmp_path, monkeypatch):
    archive = read_archive(make_archive(tmp_path / "echo.mar"))
    make_archive(tmp_path / "echo.mar", text="another")
    monkeypatch.setattr(keeper, "read_archives", lambda *_: {"bert": archive})
    monkeypatch.setattr(keeper, "launch", lambda *_: pytest.fail("launched"))
    with pytest.raises(ServerError, match=r"echo\.mar: not as it was built: SHA256SUMS has .*canary"):
        keeper.start_torchserve(plan, planned, tmp_path, pytest.fail)
