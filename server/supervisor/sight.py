"""What can be seen of an instance from outside within a second: its processes, and its keeper's last look."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from server.health import READY, ModelLook, parse_looks
from server.processes import PROC, Process, read_activity, read_anonymous_mib
from server.rundir import RunDir

RUNS, GONE, STOPPED = "runs", "is gone (killed?)", "is stopped (SIGSTOP)"


@dataclass(frozen=True, kw_only=True)
class Sight:
    """One instance at one time."""

    health: str = ""
    """The keeper's words: READY, or why not; empty before its first look."""
    stamp: int = 0
    """Another one with each look."""
    planned: Mapping[str, int] = field(default_factory=dict)
    """Model → workers there shall be."""
    serving: Mapping[str, int] = field(default_factory=dict)
    """Model → workers that were ready at the last look, and still live and run."""
    java: str = RUNS
    """How TorchServe itself is: RUNS, GONE, or STOPPED by a signal: then its sockets stay open."""
    ill: Mapping[int, str] = field(default_factory=dict)
    """Worker → why nothing can be expected of it."""
    anonymous_mib: Mapping[int, int] = field(default_factory=dict)
    """Process → memory that is its own; what several map would be counted several times."""

    @property
    def well(self) -> bool:
        """Whether all is as it shall be."""
        return self.health == READY and not self.ill and dict(self.serving) == dict(self.planned)


def look_at(run: RunDir, processes: Sequence[Process], *, launched: bool, proc: Path = PROC) -> Sight:
    """Read it; `processes` are its own; `launched`: each worker must have a launcher above it."""
    health, stamp = read_health(run.health)
    looks = read_looks(run.looks)
    workers = {process.pid: process for process in processes if process.is_worker}
    activities = {process.pid: read_activity(process.pid, proc) for process in processes}
    stopped = {pid for pid, activity in activities.items() if activity and activity.stopped}
    ill = {
        **{pid: "hangs" for look in looks.values() for pid in look.hanging if pid in workers},
        **{pid: "is stopped" for pid in workers if pid in stopped},
        **(_find_orphans(processes) if launched else {}),
    }
    return Sight(
        health=health,
        stamp=stamp,
        planned={model: look.planned for model, look in looks.items()},
        serving={
            model: sum(pid in workers and pid not in ill for pid in look.ready)
            for model, look in looks.items()
        },
        java=_find_java(processes, stopped),
        ill=ill,
        anonymous_mib={process.pid: read_anonymous_mib(process.pid, proc) or 0 for process in processes},
    )


def _find_java(processes: Sequence[Process], stopped: set[int]) -> str:
    java = [process.pid for process in processes if process.is_java]
    if not java:
        return GONE
    return STOPPED if stopped & set(java) else RUNS


def read_health(file: Path) -> tuple[str, int]:
    """What the keeper wrote, and when by its own clock, which may jump; "" where it has not yet."""
    try:
        return file.read_text(encoding="utf-8").strip(), file.stat().st_mtime_ns
    except OSError:
        return "", 0


def read_looks(file: Path) -> dict[str, ModelLook]:
    """The same by model; empty before the first look."""
    try:
        return parse_looks(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _find_orphans(processes: Sequence[Process]) -> dict[int, str]:
    """Workers whose launcher is gone: TorchServe cannot end them, and their pins are nobody's."""
    launchers = {process.pid for process in processes if process.is_launcher}
    return {
        process.pid: "has lost its launcher"
        for process in processes
        if process.is_worker and process.parent_pid not in launchers
    }
