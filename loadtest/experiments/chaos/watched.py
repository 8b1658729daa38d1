"""All that chaos knows of the server behind a door: its processes, what its supervisor says, who is a stray.

The supervisor keeps supervisor.json in the run directory; each instance has a run directory of its own in
instances/, whose path marks its processes.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from config.errors import ConfigError
from config.plan import Plan, read_plan
from loadtest.errors import LoadTestError
from loadtest.experiments.chaos.row import Look
from server.activity import read_activity
from server.call import make_client
from server.errors import ApiError
from server.processes import PROC, Process, find_marked, is_alive, read_process
from server.rundir import RunDir

INSTANCES, SUPERVISOR_FILE = "instances", "supervisor.json"
READY = "ready"
GONE = "ended"
"""An instance of the set before a reload."""
LOOK_S, ASK_S = 0.5, 1.0
DOOR = "haproxy"


@dataclass(frozen=True, kw_only=True)
class Marked:
    """A process of the server."""

    place: str
    """Its instance; empty for those of the whole."""
    process: Process
    stopped: bool
    """By a signal."""
    ancestors: tuple[int, ...]
    """Process ids, the parent first."""

    @property
    def is_door(self) -> bool:
        return bool(self.process.command) and Path(self.process.command[0]).name == DOOR

    @property
    def name(self) -> str:
        role = "door" if self.is_door else self.process.role
        return " ".join(word for word in (self.place, role, str(self.process.pid)) if word)


@dataclass(frozen=True, kw_only=True)
class Supervisor:
    """What it says of itself."""

    pid: int = 0
    phase: str = ""
    instances: Mapping[str, str] = field(default_factory=dict)
    """Name → phase."""
    restarts: int = 0
    causes: tuple[str, ...] = ()
    """Why parts were started again."""


NOBODY = Supervisor()


def parse_supervisor(text: str) -> Supervisor:
    """NOBODY for what cannot be read."""
    try:
        raw: dict[str, Any] = json.loads(text)
        parts = {"door": raw["door"], **raw["instances"]}
        return Supervisor(
            pid=int(raw["pid"]),
            phase=str(raw["phase"]),
            instances={name: str(one["phase"]) for name, one in raw["instances"].items()},
            restarts=sum(int(one["restarts"]) for one in parts.values()),
            causes=tuple(f"{name}: {one['cause']}" for name, part in parts.items() for one in part["causes"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return NOBODY


def read_supervisor(run: RunDir) -> Supervisor:
    """NOBODY where there is none."""
    try:
        return parse_supervisor((run.path / SUPERVISOR_FILE).read_text(encoding="utf-8"))
    except OSError:
        return NOBODY


def find_places(run: RunDir) -> dict[str, RunDir]:
    """The whole, under an empty name, and each instance."""
    folders = sorted(one for one in (run.path / INSTANCES).glob("*") if one.is_dir())
    return {"": run, **{one.name: RunDir.at(one) for one in folders}}


def find_all(run: RunDir) -> list[Marked]:
    """Every process of the server, each with its instance; none of any other server."""
    # Those of an instance may be found for the whole, too: the instance comes later, and counts.
    places = find_places(run).items()
    found = {one.pid: (place, one) for place, folder in places for one in find_marked(folder.path)}
    marked = [_look_at(place, process) for place, process in found.values()]
    return sorted(marked, key=lambda one: (one.place, one.process.pid))


def _look_at(place: str, process: Process) -> Marked:
    activity = read_activity(process.pid)
    return Marked(
        place=place,
        process=process,
        stopped=bool(activity and activity.stopped),
        ancestors=tuple(list_ancestors(process.pid)),
    )


def list_ancestors(pid: int, proc: Path = PROC) -> Iterator[int]:
    """Upwards; marked or not."""
    while (process := read_process(pid, proc)) and process.parent_pid > 0:
        pid = process.parent_pid
        yield pid


def find_strays(marked: Sequence[Marked], supervisor: int) -> tuple[str, ...]:
    """Those that do not descend from the supervisor: nobody waits for them, or would end them."""
    owned = {supervisor}
    return tuple(
        one.name for one in marked if one.process.pid not in owned and not owned.intersection(one.ancestors)
    )


def count_up(marked: Sequence[Marked], ready: Mapping[str, Sequence[int]]) -> int:
    """Workers that TorchServe says are ready (place → process ids) and that live, run and have a parent."""
    pids = {one.process.pid for one in marked}
    return sum(
        one.process.is_worker
        and not one.stopped
        and one.process.parent_pid in pids
        and one.process.pid in ready.get(one.place, ())
        for one in marked
    )


def make_look(
    supervisor: Supervisor, marked: Sequence[Marked], ready: Mapping[str, Sequence[int]], planned: int,
    *, supervised: bool, at: float = 0.0,
) -> Look:  # fmt: skip
    """What there is, and whether nothing is missing; pure."""
    door = any(one.is_door and not one.stopped for one in marked)
    workers = count_up(marked, ready)
    phases = [phase for phase in supervisor.instances.values() if phase != GONE]
    well = supervisor.phase == READY and door and bool(phases) and set(phases) == {READY}
    return Look(
        at=at,
        phase=supervisor.phase,
        instances=supervisor.instances,
        door=door,
        workers=workers,
        planned=planned,
        strays=find_strays(marked, supervisor.pid) if supervised else (),
        restarts=supervisor.restarts,
        full=(well or not supervised) and workers >= planned > 0,
    )


class Watched:
    """One server, from outside."""

    def __init__(self, run: RunDir, *, supervised: bool) -> None:
        self.run, self.supervised = run, supervised

    def look(self) -> Look:
        """Now."""
        supervisor, marked = read_supervisor(self.run), find_all(self.run)
        ready = {place: self._ask(folder) for place, folder in find_places(self.run).items()}
        living = supervisor if read_process(supervisor.pid) else replace(supervisor, phase="")
        planned = _count_planned(self.run)
        return make_look(living, marked, ready, planned, supervised=self.supervised, at=time.time())

    def _ask(self, place: RunDir) -> list[int]:
        """Process ids of the workers that are ready, by the place's own TorchServe."""
        plan = _read_plan(place)
        if plan is None or (self.supervised and place == self.run):
            return []
        client, found = make_client(plan, place), []
        for model in plan.models:
            try:
                described = client.describe(model, timeout_s=ASK_S)
            except ApiError:
                return []
            found += [one["pid"] for one in described.get("workers", []) if one.get("status") == "READY"]
        return found

    def list_java(self) -> list[Process]:
        return [one.process for one in find_all(self.run) if one.process.is_java]

    def list_launchers(self) -> list[Process]:
        return [one.process for one in find_all(self.run) if one.process.is_launcher]

    def list_workers(self) -> list[Process]:
        return [one.process for one in find_all(self.run) if one.process.is_worker]

    def list_doors(self) -> list[Process]:
        return [one.process for one in find_all(self.run) if one.is_door]

    def wait_until_full(self, seconds: float) -> bool:
        """Whether nothing is missing any more by then, no stray included."""
        deadline = time.monotonic() + seconds
        while not ((look := self.look()).full and not look.strays):
            if time.monotonic() > deadline:
                return False
            time.sleep(LOOK_S)
        return True


def take_first(what: str, processes: Sequence[Process]) -> Process:
    """Of the first instance; LoadTestError when there is none."""
    if not processes:
        raise LoadTestError(f"the server must have a {what}: got none")
    return processes[0]


def is_gone(process: Process) -> bool:
    return not is_alive(process)


def _read_plan(place: RunDir) -> Plan | None:
    with contextlib.suppress(ConfigError, OSError):
        return read_plan(place.plan)
    return None


def _count_planned(run: RunDir) -> int:
    plan = _read_plan(run)
    return sum(int(model.workers.value) for model in plan.models.values()) if plan else 0


@contextlib.contextmanager
def watching(watched: Watched) -> Iterator[list[Look]]:
    """Looks, twice a second, until the end of the block; times are seconds since the epoch."""
    looks, ended = [watched.look()], threading.Event()

    def go_on() -> None:
        while not ended.wait(LOOK_S):
            looks.append(watched.look())

    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    try:
        yield looks
    finally:
        ended.set()
        thread.join()
        looks.append(watched.look())
