"""Empties a run directory of what the kit put there, and of nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

from config.folders import find_mark
from server.rundir import RunDir


def clean(run: RunDir) -> str:
    """Delete the kit's files of a stopped server, then the folder if nothing is left; says what stays."""
    if not run.path.exists():
        return f"nothing to clean: {run.path} does not exist"
    # A folder of somebody else's may have a `logs` of its own.
    if find_mark(run.path) is None:
        return f"left alone: {run.path} holds no plan of the kit, so it is no run directory"
    for entry in run.list_own():
        _delete(entry)
    left = sorted(entry.name for entry in run.path.iterdir() if entry != run.tuned)
    if run.tuned.exists():
        kept = f"cleaned {run.path}; kept what make tune found: {run.tuned}"
        return f"{kept}; not the kit's and left alone: {', '.join(left)}" if left else kept
    if left:
        return f"cleaned {run.path}; not the kit's and left alone: {', '.join(left)}"
    run.path.rmdir()
    return f"removed {run.path}"


def _delete(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry)
    else:
        entry.unlink(missing_ok=True)
