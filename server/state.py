"""What was started (server.json) and why a start failed (failure.json); damaged files count as absent."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter

from config.folders import write_text_atomically

STARTING, READY = "starting", "ready"


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


Kind = TypeVar("Kind", State, Failure)


def write_state(path: Path, state: State | Failure) -> None:
    """As JSON, whole or not at all."""
    write_text_atomically(path, json.dumps(dataclasses.asdict(state), indent=1) + "\n")


def _read(path: Path, kind: type[Kind]) -> Kind | None:
    try:
        return TypeAdapter(kind).validate_json(path.read_bytes())
    except (OSError, ValueError):
        return None


def read_state(path: Path) -> State | None:
    """Of server.json; None when there is none or it is damaged."""
    return _read(path, State)


def read_failure(path: Path) -> Failure | None:
    """Of failure.json; None when there is none or it is damaged."""
    return _read(path, Failure)
