"""What each fault does, to processes, files and servers that stand in for the real ones."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from loadtest.errors import LoadTestError
from loadtest.experiments.chaos import clock, crowds, memory, processes, surroundings, volume
from loadtest.experiments.chaos.registry import FAULTS, choose, list_names
from loadtest.experiments.chaos.stage import NotDoneError, Stage, list_differences
from loadtest.payloads.payload import Payload
from server.activity import read_activity
from server.processes import is_alive, read_process
from server.rundir import RunDir
from tests.server.fakes import shown, wait_for


class FakeWatched:
    """A server of one process, which is all roles at once."""

    def __init__(self, pid):
        self.all = [read_process(pid)]

    def __getattr__(self, name):
        if name.startswith("list_"):
            return lambda: [one for one in self.all if is_alive(one)]
        raise AttributeError(name)

    def wait_until_full(self, _seconds):
        return True


@pytest.fixture
def victim():
    process = shown(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def stage(victim, tmp_path):
    payload = Payload(name="x", body=b"x", content_type="image/jpeg", model="resnet50")
    target = SimpleNamespace(url="http://127.0.0.1:1", token="t", payloads=[payload])
    return Stage(
        system=SimpleNamespace(url=target.url),
        run=RunDir.at(tmp_path),
        watched=FakeWatched(victim.pid),
        target=target,
        store=tmp_path,
        asked=(),
    )


def test_names_are_those_of_the_issue_and_all_have_words():
    assert list_names() == [
        "overload", "worker-kill", "jvm-stop", "clock", "jvm-kill", "door-kill", "reload", "reload-bad",
        "worker-stop", "launcher-kill", "worker-memory", "crash-loop", "archive", "disk-full", "idle",
        "slow-bodies", "stop",
    ]  # fmt: skip
    assert all(fault.title for fault in FAULTS)
    no_failure = {fault.name for fault in FAULTS if fault.promise.failed == 0}
    assert no_failure == {"worker-kill", "jvm-kill", "reload", "reload-bad", "stop"}
    assert all(fault.promise.unanswered == 0 for fault in FAULTS if fault.front == "haproxy")


def test_one_name_is_enough_and_overload_comes_with_its_other_half():
    assert [fault.name for fault in choose(["stop", "worker-kill"])] == ["worker-kill", "stop"]
    assert [fault.front for fault in choose(["overload"])] == ["haproxy", "none"]
    with pytest.raises(LoadTestError, match=r"EXPERIMENT must be one of overload, .*, stop: got earthquake"):
        choose(["earthquake"])


@pytest.mark.parametrize("do", [processes.kill_worker, processes.kill_java, processes.kill_launcher])
def test_a_kill_ends_one_and_says_which(stage, victim, do):
    do(stage)
    assert victim.wait(60) == -signal.SIGKILL
    assert str(victim.pid) in stage.notes[0]
    with pytest.raises(LoadTestError, match=r"the server must have a .*: got none"):
        do(stage)


def test_a_halted_process_goes_on_in_any_case(stage, victim):
    with stage.undo:
        processes.halt_worker(stage)
        assert wait_for(lambda: read_activity(victim.pid).stopped)
    assert wait_for(lambda: not read_activity(victim.pid).stopped)


def test_a_crash_loop_kills_for_a_while(stage, victim, monkeypatch):
    monkeypatch.setattr(processes, "LOOP_S", 0.3)
    processes.kill_all_workers_again_and_again(stage)
    assert victim.wait(60) == -signal.SIGKILL
    assert stage.notes == ["SIGKILL to 1 workers in 0.3 s"]


def test_without_a_control_group_a_plain_kill_stands_in_and_says_so(stage, victim, monkeypatch):
    monkeypatch.setattr(processes, "find_own_group", lambda: None)
    processes.use_up_memory(stage)
    assert victim.wait(60) == -signal.SIGKILL
    assert "stand-in: no memory cgroup can be made here" in stage.notes[1]


@pytest.mark.skipif(not memory.find_own_group(), reason="no memory cgroup here")
def test_a_control_group_ends_who_takes_more(tmp_path):
    eater = "import sys; input(); x = bytearray(400 << 20); print(len(x))"
    with memory.small_group(memory.find_own_group()) as group:
        if group is None:
            pytest.skip("no memory cgroup can be made here")
        process = subprocess.Popen([sys.executable, "-c", eater], stdin=subprocess.PIPE)
        memory.move(process.pid, group)
        process.communicate(b"\n")
        assert process.returncode == -signal.SIGKILL
        assert memory.count_kills(group) == 1
    assert not group.exists()


@pytest.mark.parametrize(
    ("lines", "folder"),
    [
        ("4:memory:/a/b\n0::/\n", "memory/a/b"),
        ("9:cpu,memory:/a/b\n", "memory/a/b"),
        ("0::/a/b\n", "a/b"),
        ("4:memory:/gone\n3:cpuset:/\n", None),
    ],
)
def test_the_own_group_is_found_in_either_hierarchy(tmp_path, lines, folder):
    (tmp_path / "memory/a/b").mkdir(parents=True)
    (tmp_path / "cgroup.controllers").touch()
    membership = tmp_path / "cgroup"
    membership.write_text(lines)
    found = memory.find_own_group(tmp_path, membership)
    assert found == (tmp_path / folder if folder else None)


def test_a_group_that_cannot_be_limited_is_none(tmp_path):
    with memory.small_group(tmp_path) as group:  # no control group: the limit's file does not appear in it
        assert group is None
    with memory.small_group(None) as group:
        assert group is None


def test_a_damaged_archive_is_whole_again_afterwards(stage, victim):
    whole = os.urandom(50_000)
    stage.archive.write_bytes(whole)
    with stage.undo:
        surroundings.damage_archive(stage)
        damaged = stage.archive.read_bytes()
        assert len(damaged) == len(whole)
        assert sum(a != b for a, b in zip(damaged, whole, strict=True)) == surroundings.DAMAGED_BYTES
        assert victim.wait(60) == -signal.SIGKILL
    assert stage.archive.read_bytes() == whole


@pytest.fixture
def small(tmp_path):
    with volume.Volume.mounted(tmp_path / "run") as mounted:
        if mounted is None:
            pytest.skip("tmpfs cannot be mounted here")
        yield mounted


def test_a_disk_is_full_and_then_has_room_again(stage, small, tmp_path, monkeypatch):
    stage.volume, stage.run = small, RunDir.at(small.path)
    (small.path / "data").write_bytes(b"1" * 5000)
    full = []
    looking = SimpleNamespace(sleep=lambda _: full.append(surroundings.prove_full(stage)))
    monkeypatch.setattr(surroundings, "time", looking)
    surroundings.need_volume(stage)
    with stage.undo:
        surroundings.fill_disk(stage)
    assert stage.problems == []
    assert len(full) == 1
    assert "SIGKILL" in stage.notes.pop()
    assert {*stage.notes, *full} == {"a write in the run directory failed with ENOSPC"}
    (small.path / "more").write_bytes(b"1" * 500_000)
    assert (small.path / "data").read_bytes() == b"1" * 5000


def test_logs_are_kept_when_the_small_file_system_goes(tmp_path):
    with volume.Volume.mounted(tmp_path / "run") as mounted:
        if mounted is None:
            pytest.skip("tmpfs cannot be mounted here")
        for folder in ("logs", "instances/a1/logs"):
            (mounted.path / folder).mkdir(parents=True)
            (mounted.path / folder / "x.log").write_text(folder)
    assert (tmp_path / "run-logs/instances/a1/logs/x.log").read_text() == "instances/a1/logs"
    assert not any((tmp_path / "run").iterdir())


def test_a_disk_that_is_not_full_is_no_fault(stage):
    surroundings.prove_full(stage)
    assert stage.problems == ["the disk was not full: the fault did not happen"]


def test_what_a_machine_cannot_do_is_said(stage):
    with pytest.raises(NotDoneError, match="tmpfs"):
        surroundings.need_volume(stage)
    with pytest.raises(NotDoneError, match="apt-get install faketime"):
        surroundings.take_clock(stage)


def test_a_java_before_the_real_one_sets_the_clock_where_the_file_is(tmp_path, monkeypatch):
    real = tmp_path / "java"
    real.write_text('#!/bin/sh\necho "${LD_PRELOAD:-none} $*"\n')
    real.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(clock, "find_library", lambda: "/lib/faketime.so")
    monkeypatch.setattr(clock, "build_forget", lambda folder: folder / "forget.so")

    def run():
        done = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True)
        return done.stdout

    with clock.wrapped_java(tmp_path / "wrapped") as now:
        assert run() == "none -version\n"
        now.write_text("+0\n")
        assert run() == f"/lib/faketime.so {tmp_path / 'wrapped' / 'forget.so'} -version\n"
    assert os.environ["PATH"] == f"{tmp_path}:/usr/bin:/bin"


@pytest.mark.skipif(not (clock.find_library() and shutil.which("cc")), reason="no libfaketime, or no cc")
def test_the_real_library_sets_a_clock_and_is_seen(tmp_path, monkeypatch):
    show = "import os, time; input(); print(time.time(), os.environ.get('LD_PRELOAD'))"
    monkeypatch.setattr(clock, "find_java", lambda: os.path.realpath(sys.executable))
    with clock.wrapped_java(tmp_path) as now:
        now.write_text("+2h\n")
        process = subprocess.Popen(
            ["java", "-c", show], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        while not (seen := clock.has_library(process.pid)) and process.poll() is None:
            time.sleep(0.01)
        said, _ = process.communicate("\n", timeout=30)
    assert seen
    shown, inherited = said.split()
    assert float(shown) == pytest.approx(time.time() + 7200, abs=60)
    assert inherited == "None"
    assert not clock.has_library(os.getpid())


def test_without_the_library_there_is_no_clock(tmp_path, monkeypatch):
    assert clock.find_library(tmp_path) is None
    monkeypatch.setattr(clock, "find_library", lambda: None)
    with clock.wrapped_java(tmp_path / "wrapped") as now:
        assert now is None
        assert str(tmp_path) not in os.environ["PATH"]


def test_a_command_that_does_not_end_is_a_problem_and_no_end(stage, monkeypatch):
    monkeypatch.setattr("loadtest.experiments.chaos.stage.COMMAND_S", 0.01)
    surroundings.stop(stage)
    assert stage.problems == ["stop failed: `server stop` did not end within 0.01 s"]


def answer(*, code=0, said=""):
    return lambda *_: SimpleNamespace(returncode=code, stdout="", stderr=said)


def test_a_reload_that_fails_is_a_problem_and_one_that_is_not_there_is_not_done(stage, monkeypatch):
    monkeypatch.setattr(Stage, "command", answer())
    surroundings.reload(stage)
    assert stage.problems == []
    monkeypatch.setattr(Stage, "command", answer(code=1, said="error: no room"))
    surroundings.reload(stage)
    assert stage.problems == ["reload failed: error: no room"]
    monkeypatch.setattr(Stage, "command", answer(code=2, said="invalid choice: 'reload'"))
    with pytest.raises(NotDoneError):
        surroundings.reload(stage)


@pytest.mark.parametrize(
    ("code", "said", "problem"),
    [
        (1, "resnet50.mar: a hash differs", None),
        (0, "done", "a reload with a damaged archive must be refused"),
        (1, "something went wrong", "the refusal must name the archive"),
    ],
)
def test_a_bad_archive_must_be_refused_by_name(stage, monkeypatch, code, said, problem):
    stage.archive.write_bytes(b"1" * 10_000)
    monkeypatch.setattr(Stage, "command", answer(code=code, said=said))
    with stage.undo:
        surroundings.reload_with_bad_archive(stage)
    assert [text[: len(problem)] for text in stage.problems] == [problem] if problem else not stage.problems


def test_idle_connections_are_held_and_those_that_were_closed_are_counted(stage, monkeypatch):
    monkeypatch.setattr(crowds, "HOLD_S", 0.5)
    monkeypatch.setattr(crowds, "IDLE", 50)
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        stage.system.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        crowds.hold_idle_connections(stage)
    assert stage.notes == ["50 of 50 connections held for 0.5 s; 0 were closed meanwhile"]


def test_slow_bodies_never_become_whole_and_answers_are_counted(stage, monkeypatch):
    monkeypatch.setattr(crowds, "HOLD_S", 0.8)
    monkeypatch.setattr(crowds, "DRIP_S", 0.05)
    with contextlib.ExitStack() as held:
        listener = held.enter_context(socket.create_server(("127.0.0.1", 0), backlog=100))
        stage.system.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        crowds.send_slow_bodies(stage)
        link = held.enter_context(listener.accept()[0])
        received = link.recv(10_000)
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"Content-Length: 1000000" in head
    assert 1 < len(body) < 20
    assert "60 bodies of 1000000 bytes" in stage.notes[0]
    assert "0 were ended" in stage.notes[0]


def test_only_what_differs_is_told_of_verify():
    finding = {"model": "resnet50", "pid": 7, "item": "cpus", "asked": "0", "got": "1", "state": "DIFFERS"}
    found = {"findings": [finding, {**finding, "state": "ok"}]}
    assert list(list_differences(found)) == ["resnet50 7: cpus: asked 0, got 1"]
    assert list(list_differences({"error": "no server"})) == ["no server"]
