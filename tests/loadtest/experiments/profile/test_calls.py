"""System calls are counted by strace; a recorded summary, and a strace that only seems to look."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from loadtest.experiments.profile.calls import CALLS, COUNTED, MISSING, PROBLEM, parse_summary, watch_calls
from loadtest.systems.inprocess import InProcess

SUMMARY = """\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 80.62    0.026376          46       562           mmap
 11.71    0.003831          49        77         3 futex
  4.69    0.001534          61        25           read
------ ----------- ----------- --------- --------- ----------------
100.00    0.032718          47       664         3 total
"""
SEEMS = """#!{python}
import signal, sys, time
def end(*_):
    {said}
    sys.exit(0)
signal.signal(signal.SIGINT, end)
open({ready!r}, "w").close()
time.sleep(60)
"""
WRITES = 'open(sys.argv[sys.argv.index("-o") + 1], "w").write({summary!r})'
REFUSES = 'open(sys.argv[sys.argv.index("-o") + 1], "w"); print("strace: Operation not permitted")'
GIVES_BACK = """
import mmap
while True:
    one = mmap.mmap(-1, 1 << 20)
    one.madvise(mmap.MADV_DONTNEED)
    one.close()
"""


def watch(pid, wait):
    child = SimpleNamespace(process=SimpleNamespace(pid=pid))
    with watch_calls(SimpleNamespace(reference=InProcess(children=(child,)))) as seen:
        wait()
    return seen.cut(0.0, 1.0)


def test_a_summary_is_read():
    assert parse_summary(SUMMARY) == {"mmap": 562, "futex": 77}
    assert parse_summary("") == {}


@pytest.mark.parametrize(
    ("said", "seen"),
    [
        (WRITES.format(summary=SUMMARY), {CALLS: dict.fromkeys(COUNTED, 0) | {"mmap": 562, "futex": 77}}),
        (REFUSES, {PROBLEM: "strace: Operation not permitted"}),
    ],
)
def test_what_strace_wrote_when_it_was_ended_is_kept(tmp_path, monkeypatch, said, seen):
    ready = tmp_path / "ready"
    tool = tmp_path / "strace"
    tool.write_text(SEEMS.format(python=sys.executable, said=said, ready=str(ready)))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def wait():
        while not ready.exists():
            time.sleep(0.01)

    assert watch(os.getpid(), wait) == seen


def test_without_strace_the_page_will_say_so(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert watch(os.getpid(), lambda: None) == {PROBLEM: MISSING}


@pytest.mark.skipif(shutil.which("strace") is None, reason=MISSING)
def test_a_process_that_gives_memory_back_is_seen():
    process = subprocess.Popen([sys.executable, "-c", GIVES_BACK])
    try:
        seen = watch(process.pid, lambda: time.sleep(1.5))
    finally:
        process.kill()
        process.wait()
    if PROBLEM in seen:
        pytest.skip(f"no process may be traced here: {seen[PROBLEM]}")
    assert min(seen[CALLS][name] for name in ("madvise", "munmap", "mmap")) > 10
    assert seen[CALLS]["sched_yield"] == 0
