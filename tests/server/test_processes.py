"""Processes are found by their mark and ended for certain, never another one's."""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from server import processes
from server.processes import (
    Activity,
    end_all,
    find_marked,
    is_alive,
    read_activity,
    read_age,
    read_anonymous_mib,
    read_process,
    reap_orphans,
    send_signal,
)
from server.rundir import MARK
from tests.server import fakes

SCRIPT = "/kit/ts/model_service_worker.py"


@pytest.mark.parametrize(
    ("words", "role"),
    [
        (("java", "-cp", "x", "org.pytorch.serve.ModelServer"), "TorchServe"),
        (("python", "-m", "torch.backends.xeon.run_cpu", "--rank", "0", SCRIPT), "launcher"),
        (("python", "-u", SCRIPT, "--sock-type", "unix"), "worker"),
        (("/usr/sbin/haproxy", "-db"), "HAProxy"),
        (("python", "-m", "server", "supervise"), "supervisor"),
        (("python", "/kit/.venv/bin/torchserve", "--start"), "helper"),
    ],
)
def test_a_process_is_read_from_proc_and_its_role_is_in_its_words(proc, words, role):
    proc.add(7, command=words, parent=3, start=55)
    process = read_process(7, proc.path)
    assert process == processes.Process(pid=7, start_ticks=55, parent_pid=3, command=words)
    assert process.role == role
    proc.add(8, state="Z")
    assert read_process(8, proc.path) is None


def test_only_the_mark_of_exactly_this_run_directory_counts(proc):
    ours = {MARK: "/kit/run"}
    for pid, environment in enumerate(
        (ours, {MARK: "/kit/run2"}, {"OTHER": "/kit/run"}, {f"X_{MARK}": "/kit/run"}, {"A": "b", **ours}), 7
    ):
        proc.add(pid, environment=environment)
    proc.add(12, environment={MARK: "/kit/run/instances/a1"})
    proc.add(13, environment=ours, mounts="mnt:[2]")  # another container's
    (proc.add(14, environment=ours) / "ns" / "mnt").unlink()
    proc.add(1, environment=ours)  # our parent
    proc.add(os.getpid(), environment=ours, parent=1)
    assert [process.pid for process in find_marked("/kit/run", proc.path)] == [7, 11, 12]


def test_the_same_folder_in_another_namespace_is_the_same_run_directory(proc, run, tmp_path):
    """systemd's PrivateTmp=, ip netns exec: only what the path leads to there tells."""
    there = proc.add(7, environment={MARK: str(run.path)}, mounts="mnt:[2]")
    (there / "root").symlink_to("/")
    elsewhere = proc.add(8, environment={MARK: str(run.path)}, mounts="mnt:[3]")
    (tmp_path / "container" / run.path.relative_to("/")).mkdir(parents=True)
    (elsewhere / "root").symlink_to(tmp_path / "container")
    assert [process.pid for process in find_marked(run.path, proc.path)] == [7]


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="this Python was built without process handles")
def test_a_signal_goes_to_the_process_that_was_looked_at(dummy, run, monkeypatch):
    """Its id may be given to another process between the look and the signal: no signal by id alone."""
    started = dummy(run.path)
    process = read_process(started.pid)
    earlier = dataclasses.replace(process, start_ticks=process.start_ticks - 1)
    monkeypatch.setattr(processes.os, "kill", lambda *_: pytest.fail("signalled by its id"))
    assert not is_alive(earlier)
    send_signal(earlier, signal.SIGKILL)
    assert is_alive(process)
    send_signal(process, signal.SIGTERM)
    assert started.wait(60) == -signal.SIGTERM


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM])
def test_a_kernel_without_process_handles_is_served_too(dummy, run, monkeypatch, number):
    def fail(_):
        raise OSError(number, "no handles")

    monkeypatch.setattr(processes.os, "pidfd_open", fail, raising=False)
    process = dummy(run.path)
    send_signal(read_process(process.pid), signal.SIGTERM)
    assert process.wait(60) == -signal.SIGTERM


def test_java_is_ended_first_and_gently(dummy, run):
    order = (
        "import signal, sys, time, pathlib\n"
        "def end(*_):\n pathlib.Path(sys.argv[1]).write_text(str(time.monotonic())); sys.exit()\n"
        "signal.signal(signal.SIGTERM, end); print('up', flush=True); time.sleep(60)"
    )
    files = [run.path / name for name in ("java", "worker")]
    words = [(str(files[0]), processes.JAVA_MAIN), (str(files[1]), processes.WORKER_SCRIPT)]
    for started in [dummy(run.path, *arguments, code=order) for arguments in words]:
        started.stdout.readline()
    end_all(run.path)
    assert float(files[0].read_text()) < float(files[1].read_text())


def test_what_ignores_sigterm_is_killed(dummy, run, monkeypatch):
    monkeypatch.setattr(processes, "TERMINATE_SECONDS", 0.3)
    stubborn = dummy(run.path, processes.JAVA_MAIN, code=fakes.IGNORE_TERM)
    stubborn.stdout.readline()
    other = dummy(run.path)
    ended = end_all(run.path, graceful_seconds=0.3)
    assert {process.pid for process in ended} == {stubborn.pid, other.pid}
    assert stubborn.wait(60) == -signal.SIGKILL


def test_what_came_under_us_is_reaped_once_it_has_ended_and_nothing_else(run, dummy):
    """As a worker does whose launcher was killed: the kernel gives orphans to us (PR_SET_CHILD_SUBREAPER)."""
    prctl = ctypes.CDLL(None).prctl
    prctl(36, 1, 0, 0, 0)
    try:
        orphan = fakes.start_orphan(run.path)
        reap_orphans([])
        assert is_alive(orphan)
        send_signal(orphan, signal.SIGKILL)
        fakes.wait_for(lambda: reap_orphans([]) or not Path(f"/proc/{orphan.pid}").exists())
        own = [
            subprocess.Popen([sys.executable, "-c", "exit(3)"], start_new_session=new)
            for new in (False, True)
        ]
        fakes.wait_for(lambda: not any(read_process(one.pid) for one in own))
        reap_orphans([own[1].pid])
        assert [one.wait() for one in own] == [3, 3]
    finally:
        prctl(36, 0, 0, 0, 0)


def test_what_a_process_does_is_read(proc):
    folder = proc.add(7, start=500, state="T")
    stat = (folder / "stat").read_text().split()
    stat[-50 + 11], stat[-50 + 12] = "250", "50"
    (folder / "stat").write_text(" ".join(stat))
    (folder / "status").write_text("Name:\tx\nvoluntary_ctxt_switches:\t30\nnonvoluntary_ctxt_switches:\t4\n")
    (folder / "statm").write_text(f"9000 {3 * 256} {256} 5 0 123 0\n")
    (proc.path / "uptime").write_text("65.0 1.0\n")
    ticks = os.sysconf("SC_CLK_TCK")
    assert read_activity(7, proc.path) == Activity(
        stopped=True, cpu_seconds=300 / ticks, start_ticks=500, switches=30
    )
    assert read_activity(7, proc.path, switches=False).switches == 0
    assert read_age(7, proc.path) == 65.0 - 500 / ticks
    assert read_anonymous_mib(7, proc.path) == 2 * 256 * os.sysconf("SC_PAGE_SIZE") >> 20
    assert (read_activity(8, proc.path), read_age(8, proc.path)) == (None, None)


def test_a_real_process_is_seen_to_stop_to_wake_and_to_age(dummy, run):
    process = dummy(run.path, code="import time\nwhile True:\n    time.sleep(0.05)")
    first = read_activity(process.pid)
    assert fakes.wait_for(lambda: read_activity(process.pid).switches > first.switches)
    assert 0 <= read_age(process.pid) < 60
    process.send_signal(signal.SIGSTOP)
    assert fakes.wait_for(lambda: read_activity(process.pid).stopped)
    before = read_activity(process.pid)
    time.sleep(0.2)
    assert read_activity(process.pid) == before
