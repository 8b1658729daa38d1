"""Takes a server down whatever happened before, and empties its run directory of what the kit put there."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass

from config.folders import find_mark
from server.errors import ServerError
from server.launch import remove_temporary
from server.processes import Process, end_all, find_marked
from server.rundir import RunDir


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """What a stop did."""

    ended: tuple[Process, ...]  # processes that were running and no longer are

    def describe(self) -> str:
        """One line for a person."""
        counts = Counter(process.role for process in self.ended)
        plain = ("TorchServe", "HAProxy")
        parts = [f"{n} {role}{'s' if n > 1 and role not in plain else ''}" for role, n in counts.items()]
        return f"stopped {', '.join(parts)}" if parts else "nothing was running"


def stop(run: RunDir) -> Stopped:
    """End every process of this run directory and remove what only a running server needs."""
    # First: a start that goes on meanwhile sees by this that it was stopped, and ends itself.
    run.state.unlink(missing_ok=True)
    ended = end_all(run.path)
    if left := find_marked(run.path):
        pids = ", ".join(f"{process.pid} ({process.role})" for process in left)
        raise ServerError(
            f"still running after SIGKILL: {pids}; end them as their user or as root: kill -9 PID"
        )
    for folder in (*run.list_instances(), run):
        remove_traces(folder)
    return Stopped(ended=tuple(ended))


def remove_traces(run: RunDir) -> None:
    """What only a running server, or instance, needs."""
    remove_temporary(run)
    for file in (run.state, run.authorization, run.record):  # the state may have been written since
        file.unlink(missing_ok=True)


def clean(run: RunDir) -> str:
    """Delete the kit's files of a stopped server, then the folder if nothing is left; says what stays."""
    if not run.path.exists():
        return f"nothing to clean: {run.path} does not exist"
    # A folder of somebody else's may have a `logs` of its own.
    if find_mark(run.path) is None:
        return f"left alone: {run.path} holds no plan of the kit, so it is no run directory"
    for entry in run.list_own():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink(missing_ok=True)
    left = sorted(entry.name for entry in run.path.iterdir() if entry != run.tuned)
    others = f"; not the kit's and left alone: {', '.join(left)}" if left else ""
    if run.tuned.exists():
        return f"cleaned {run.path}; what make tune found stays: {run.tuned}{others}"
    if left:
        return f"cleaned {run.path}{others}"
    run.path.rmdir()
    return f"removed {run.path}"
