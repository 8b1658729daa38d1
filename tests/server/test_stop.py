"""Stop leaves nothing behind, whatever happened before."""

from __future__ import annotations

import os
import signal

import pytest

from server import stop as stop_module
from server.errors import ServerError
from server.launch import remove_temporary
from server.processes import JAVA_MAIN, Process
from server.rundir import RunDir
from server.stop import stop
from tests.server import fakes


def test_what_runs_is_ended_orphans_too_and_the_state_is_not_read(dummy, run):
    run.state.write_text("{broken")
    process, orphan = dummy(run.path), fakes.start_orphan(run.path)
    stopped = stop(run)
    assert stopped.describe() == "stopped 2 helpers"
    assert {one.pid for one in stopped.ended} == {process.pid, orphan.pid}
    assert process.wait(60) == -signal.SIGTERM
    assert not run.state.exists()
    assert stop(run).describe() == "nothing was running"


def test_a_start_under_way_sees_the_stop_before_anything_ends(run, monkeypatch):
    run.state.write_text("{}")
    monkeypatch.setattr(
        stop_module, "end_all", lambda *_: [] if not run.state.exists() else pytest.fail("kept")
    )
    stop(run)


def test_what_cannot_be_ended_is_named(run, monkeypatch):
    undying = Process(pid=4242, start_ticks=1, parent_pid=1, command=(JAVA_MAIN,))
    monkeypatch.setattr(stop_module, "find_marked", lambda _: [undying])
    monkeypatch.setattr(stop_module, "end_all", lambda *_: [undying])
    with pytest.raises(ServerError, match=r"4242 \(TorchServe\)"):
        stop(run)


def test_a_long_run_directory_gets_a_short_temporary_folder(tmp_path):
    run = RunDir.at(tmp_path / ("x" * 90))
    assert len(os.fsencode(run.temporary / ".ts.sock.65535")) <= 107
    assert run.temporary != RunDir.at(tmp_path / ("x" * 91)).temporary
    odd = RunDir.at(tmp_path / "é, 'x'")
    assert odd.temporary.parent == run.temporary.parent
    short = RunDir.at("/kit/run")
    assert str(short.temporary) == "/kit/run/tmp"


def test_root_removes_the_temporary_folder_of_a_users_server(run, monkeypatch):
    run.temporary.mkdir()
    monkeypatch.setattr("server.launch.os.getuid", lambda: 4_000_000)
    remove_temporary(run)
    assert not run.temporary.exists()


@pytest.mark.parametrize("how", ["a link in its place", "another user's in the system's /tmp"])
def test_what_is_no_own_temporary_folder_is_not_removed(run, tmp_path, monkeypatch, how):
    elsewhere = tmp_path / "cpu-kit"
    elsewhere.mkdir()
    if how == "a link in its place":
        run.temporary.symlink_to(elsewhere)
    else:
        monkeypatch.setattr(RunDir, "temporary", elsewhere)
        monkeypatch.setattr("server.launch.os.getuid", lambda: 4_000_000)
    with pytest.raises(ServerError, match="must be an own folder"):
        remove_temporary(run)
    assert elsewhere.exists()
