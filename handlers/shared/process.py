"""Ties a worker's life to its launcher's: TorchServe ends a hung worker by killing the launcher alone.

Without it the worker computes on beside its successor, with its memory and on its cores (WorkerLifeCycle.exit
in TorchServe 0.12 kills the process it started, and that is torch.backends.xeon.run_cpu).
"""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

LAUNCHER = b"torch.backends.xeon.run_cpu"
PR_SET_PDEATHSIG = 1
"""From <linux/prctl.h>: the signal this process gets when the thread that started it ends."""


def end_with_launcher(proc: Path = Path("/proc")) -> bool:
    """Let the kernel kill this process when the launcher ends; False where none started it.

    Not for a parent that is TorchServe itself (CPU launcher off): the signal comes when the *thread* that
    started the process ends. The launcher starts it from its main thread, Java from one of a pool. SIGKILL,
    because a process that is stopped or stuck in native code heeds nothing else.
    """
    parent = os.getppid()
    if not _is_launcher(parent, proc):
        return False
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it ended before the kernel knew
        os.kill(os.getpid(), signal.SIGKILL)
    return True


def _is_launcher(pid: int, proc: Path) -> bool:
    try:
        return LAUNCHER in (proc / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
