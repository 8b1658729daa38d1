"""What a run directory says of its server: what was started (server.json), why a start failed (failure.json),
what runs and was restarted (supervisor.json). Damaged files count as absent."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import TypeAdapter

from config.folders import write_text_atomically
from config.plan import Plan

if TYPE_CHECKING:
    from handlers.definition import Packed


class Phase(str, Enum):
    """Of a part: starting, ready, unwell, backing off; of the server all but unwell and backing off."""

    STARTING = "starting"
    READY = "ready"
    UNWELL = "unwell"
    BACKING_OFF = "backing off"
    DEGRADED = "degraded"
    STOPPING = "stopping"
    FAILED = "failed"
    ENDED = "ended"

    __str__ = str.__str__


@dataclass(frozen=True, kw_only=True)
class State:
    """One started server, or one of its instances; digests are sha256."""

    phase: str  # STARTING, or READY once every model answered its smoke request
    plan_sha256: str  # of the plan.json it was started from
    started_at: str  # UTC, ISO 8601
    properties_sha256: str | None = None  # of its config.properties, or haproxy.cfg
    configuration: dict[str, str] = field(default_factory=dict)
    """What TorchServe made of it, as it logged at its start; its log may be gone by the time one asks."""
    archives: dict[str, str] = field(default_factory=dict)  # model → id of the archive it serves
    seconds_to_ready: float | None = None  # from the start to the last right answer to a smoke request
    throttled_at_start: dict[str, dict[str, float]] = field(default_factory=dict)
    """What control groups had counted (server.throttling) before the start."""
    throttled_when_ready: dict[str, dict[str, float]] = field(default_factory=dict)
    """The same when ready: loading may use more threads than serving, so serving is compared with this."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a start failed."""

    cause: str
    model: str | None = None  # whose worker failed; None when TorchServe itself did
    step: str | None = None  # of the load
    fix: str | None = None  # what to install or change
    log: str | None = None  # file to read more in
    lines: tuple[str, ...] = ()  # the last ones of the log that show it

    def describe(self) -> str:
        """Where and why."""
        return ": ".join(part for part in (self.model, self.step, self.cause) if part)


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Why something was started again."""

    at: str  # UTC, ISO 8601
    cause: str


@dataclass(frozen=True, kw_only=True)
class Part:
    """HAProxy, or an instance."""

    phase: Phase = Phase.STARTING
    pid: int | None = None  # of HAProxy, or of the `torchserve` command; None while it does not run
    restarts: int = 0  # since the supervisor began
    causes: tuple[Cause, ...] = ()  # the last ones, the newest at the end
    health: str = ""  # of an instance: "ready", or what is wrong; empty while it starts
    since: str = ""  # when the phase began: UTC, ISO 8601
    models: Mapping[str, int] = field(default_factory=dict)  # of an instance: model → workers that serve


@dataclass(frozen=True, kw_only=True)
class Record:
    """What the supervisor says."""

    schema: Literal[2] = 2
    pid: int  # the supervisor's
    phase: Phase
    since: str  # when the phase began: UTC, ISO 8601
    proxy: Part = field(default_factory=Part)
    instances: Mapping[str, Part] = field(default_factory=dict)
    reload: str = ""
    """Of the last one, what is done just now, "done", or "failed: " and why; empty before the first."""
    reloads: int = 0  # how many have ended, well or not
    message: str = ""  # why the phase is what it is, where that needs words


def tell_time() -> str:
    """Now, as these files have it."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def write_state(path: Path, state: State | Failure | Record) -> None:
    """As JSON for this user alone, whole or not at all."""
    write_text_atomically(path, json.dumps(dataclasses.asdict(state), indent=1) + "\n", mode=0o600)


_adapt = functools.cache(TypeAdapter)


def _read(path: Path, kind: type) -> Any:
    try:
        return _adapt(kind).validate_json(path.read_bytes())
    except (OSError, ValueError):
        return None


def read_state(path: Path) -> State | None:
    """Of server.json; None when there is none or it is damaged."""
    return _read(path, State)


def read_failure(path: Path) -> Failure | None:
    """Of failure.json."""
    return _read(path, Failure)


def read_record(path: Path) -> Record | None:
    """Of supervisor.json; None also when it is another kit's."""
    return _read(path, Record)


def digest_plan(plan: Plan) -> str:
    """Digest of its plan.json, to see whether a running server was started from it."""
    return hashlib.sha256(plan.to_json().encode()).hexdigest()


def digest_file(file: Path) -> str | None:
    """Of a configuration; None where there is none."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except FileNotFoundError:
        return None


def identify_archives(plan: Plan, archives: Mapping[str, Packed]) -> dict[str, str]:
    """Model → archive id, as server.json has it; of archives that others made size and time of each."""
    found = {name: archive.archive_id for name, archive in archives.items()}
    for name, model in plan.models.items():
        if not model.kit:
            files = [(Path(plan.model_store) / file).stat() for file in model.archives.values()]
            found[name] = " ".join(f"{file.st_size}-{file.st_mtime_ns}" for file in files)
    return found


def begin_state(plan: Plan, archives: Mapping[str, Packed], configuration: Path) -> State:
    """What is known of a start before anything runs, of the server or of an instance."""
    return State(
        phase=Phase.STARTING,
        plan_sha256=digest_plan(plan),
        properties_sha256=digest_file(configuration),
        archives=identify_archives(plan, archives),
        started_at=tell_time(),
    )
