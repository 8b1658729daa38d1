"""Processes are found by their mark and ended for certain, never another one's."""

from __future__ import annotations

import dataclasses
import errno
import os
import signal

import pytest

from server import processes
from server.processes import (
    end_all,
    find_marked,
    find_users_of,
    is_alive,
    read_process,
    send_signal,
    wait_for_child,
)
from server.rundir import MARK
from tests.server import fakes


def test_a_process_is_read_from_proc(proc):
    proc.add(7, command=("java", "-cp", "x", "org.pytorch.serve.ModelServer"), parent=3, start=55)
    process = read_process(7, proc.path)
    assert process == processes.Process(
        pid=7,
        start_ticks=55,
        parent_pid=3,
        command=("java", "-cp", "x", "org.pytorch.serve.ModelServer"),
    )
    assert process.role == "TorchServe"


def test_worker_and_launcher_are_told_apart(proc):
    script = "/kit/ts/model_service_worker.py"
    proc.add(7, command=("python", "-m", "torch.backends.xeon.run_cpu", "--rank", "0", script))
    proc.add(8, command=("python", "-u", script, "--sock-type", "unix"))
    proc.add(9, command=("python", "/kit/.venv/bin/torchserve", "--start"))
    roles = [process.role for pid in (7, 8, 9) if (process := read_process(pid, proc.path))]
    assert roles == ["launcher", "worker", "helper"]


def test_a_zombie_is_no_process(proc):
    proc.add(7, state="Z")
    assert read_process(7, proc.path) is None


def test_only_the_mark_of_exactly_this_run_directory_counts(proc, tmp_path):
    proc.add(7, environment={MARK: "/kit/run"})
    proc.add(8, environment={MARK: "/kit/run2"})
    proc.add(9, environment={"OTHER": "/kit/run"})
    proc.add(10, environment={f"X_{MARK}": "/kit/run"})
    proc.add(11, environment={"A": "b", MARK: "/kit/run"}, parent=1)
    assert [process.pid for process in find_marked("/kit/run", proc.path)] == [7, 11]


def test_the_same_path_in_another_container_is_another_run_directory(proc):
    proc.add(7, environment={MARK: "/kit/run"})
    proc.add(8, environment={MARK: "/kit/run"}, mounts="mnt:[2]")
    hidden = proc.add(9, environment={MARK: "/kit/run"})
    (hidden / "ns" / "mnt").unlink()
    assert [process.pid for process in find_marked("/kit/run", proc.path)] == [7]


def test_the_same_folder_in_another_namespace_is_the_same_run_directory(proc, run, tmp_path):
    """systemd's PrivateTmp=, ip netns exec: only what the path leads to there tells."""
    there = proc.add(7, environment={MARK: str(run.path)}, mounts="mnt:[2]")
    (there / "root").symlink_to("/")
    elsewhere = proc.add(8, environment={MARK: str(run.path)}, mounts="mnt:[3]")
    (tmp_path / "container" / run.path.relative_to("/")).mkdir(parents=True)
    (elsewhere / "root").symlink_to(tmp_path / "container")
    assert [process.pid for process in find_marked(run.path, proc.path)] == [7]


def test_users_of_an_environment_are_all_that_run_on_its_python(proc, tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    python = f"{real}/bin/python"
    proc.add(7, command=("java", processes.JAVA_MAIN, "--python", python))
    proc.add(8, command=(python, "-u", f"/x/{processes.WORKER_SCRIPT}"))
    proc.add(9, command=(python, "-m", "pytest"))
    proc.add(10, command=("java", processes.JAVA_MAIN, "--python", "/other/bin/python"))
    assert [process.pid for process in find_users_of(link, proc.path)] == [7, 8]


def test_we_and_our_parents_are_never_found(proc):
    proc.add(1, environment={MARK: "/kit/run"})
    proc.add(os.getpid(), environment={MARK: "/kit/run"}, parent=1)
    assert find_marked("/kit/run", proc.path) == []


def test_a_used_again_pid_is_another_process(dummy, run):
    process = read_process(dummy(run.path).pid)
    earlier = dataclasses.replace(process, start_ticks=process.start_ticks - 1)
    assert is_alive(process)
    assert not is_alive(earlier)
    send_signal(earlier, signal.SIGKILL)
    assert is_alive(process)


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="this Python was built without process handles")
def test_a_signal_goes_to_the_process_that_was_looked_at(dummy, run, monkeypatch):
    """Its id may be given to another process between the look and the signal: no signal by id alone."""
    process = dummy(run.path)
    monkeypatch.setattr(processes.os, "kill", lambda *_: pytest.fail("signalled by its id"))
    send_signal(read_process(process.pid), signal.SIGTERM)
    assert process.wait(60) == -signal.SIGTERM


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM])
def test_a_kernel_without_process_handles_is_served_too(dummy, run, monkeypatch, number):
    def refuse(_):
        raise OSError(number, "no handles")

    monkeypatch.setattr(processes.os, "pidfd_open", refuse, raising=False)
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
    end_all(lambda: find_marked(run.path))
    assert float(files[0].read_text()) < float(files[1].read_text())


def test_what_ignores_sigterm_is_killed(dummy, run, monkeypatch):
    monkeypatch.setattr(processes, "TERMINATE_SECONDS", 0.3)
    stubborn = dummy(run.path, processes.JAVA_MAIN, code=fakes.IGNORE_TERM)
    stubborn.stdout.readline()
    ended = end_all(lambda: find_marked(run.path), graceful_seconds=0.3)
    assert [process.pid for process in ended] == [stubborn.pid]
    assert stubborn.wait(60) == -signal.SIGKILL


@pytest.mark.parametrize("handles", [True, False])
def test_a_child_is_waited_for_until_it_ends_or_the_time_is_over(dummy, run, monkeypatch, handles):
    if not handles:
        monkeypatch.setattr(processes, "_open_handle", lambda _: None)
    child = dummy(run.path)
    wait_for_child(child, 0.01)
    assert child.poll() is None
    child.kill()
    wait_for_child(child, 60)
    assert child.poll() == -signal.SIGKILL
    wait_for_child(child, 60)  # it is there no more
