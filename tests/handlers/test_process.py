"""A worker ends with its launcher, however that ends; without a launcher nothing is tied."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORKER = (
    f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
    "from handlers.shared.process import end_with_launcher\n"
    "import os, time\n"
    "print(os.getpid(), end_with_launcher(), flush=True); time.sleep(600)"
)
LAUNCHER = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]]).wait()"


def start(*words: str) -> tuple[subprocess.Popen[str], int, bool]:
    """A parent with these words in its command line, its child's pid, and what the child was told."""
    command = [sys.executable, "-c", LAUNCHER, WORKER, *words]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid, tied = parent.stdout.readline().split()
    return parent, int(pid), tied == "True"


def is_gone(pid: int, seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


@pytest.fixture
def left() -> Iterator[list[int]]:
    """Processes that a failed test would leave."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        if not is_gone(pid, 0.05):
            os.kill(pid, signal.SIGKILL)


def test_a_killed_launcher_takes_even_a_stopped_worker_along(left):
    launcher, worker, tied = start("-m", "torch.backends.xeon.run_cpu")
    left.append(worker)
    assert tied
    os.kill(worker, signal.SIGSTOP)
    launcher.kill()
    launcher.wait()
    assert is_gone(worker)


def test_another_parent_is_not_taken_for_a_launcher(left):
    parent, child, tied = start("org.pytorch.serve.ModelServer")
    left.append(child)
    assert not tied
    parent.kill()
    parent.wait()
    assert not is_gone(child, 0.3)
