"""How urgent processes are (sched(7)): a load beside those that serve shall only take what they leave.

Where the kernel groups processes by session (sched_autogroup_enabled), nice values count within a session
only, and the group has one of its own in /proc/PID/autogroup.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterable
from pathlib import Path

from server.processes import PROC

GENTLE = 19
_LEAST_LIMIT = 20
"""RLIMIT_NICE with which a process may go back to nice 0."""


def may_be_gentle() -> bool:
    """Whether what is made less urgent can be made urgent again: root's right, or a limit's."""
    return os.geteuid() == 0 or resource.getrlimit(resource.RLIMIT_NICE)[0] >= _LEAST_LIMIT


def set_nice(pids: Iterable[int], nice: int, proc: Path = PROC) -> None:
    """Of all their threads, and of the sessions they lead; those that have ended are passed over."""
    for pid in pids:
        with contextlib.suppress(OSError):
            for task in (proc / str(pid) / "task").iterdir():
                os.setpriority(os.PRIO_PROCESS, int(task.name), nice)
        with contextlib.suppress(OSError):
            if os.getsid(pid) == pid:
                (proc / str(pid) / "autogroup").write_text(str(nice))
