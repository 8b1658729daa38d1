"""What the supervisor says in run/supervisor.json: what runs, how often it was restarted, and why."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import Any

from config.folders import write_text_atomically

SCHEMA = 2
CAUSES_KEPT = 5


class Phase(str, Enum):
    """Of a part: starting, ready, unwell, backing off or ended; of the server all but unwell and backing off."""

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
class Cause:
    """Why something was started again."""

    at: str
    """UTC, ISO 8601."""
    cause: str


@dataclass(frozen=True, kw_only=True)
class Part:
    """HAProxy, or an instance."""

    phase: Phase = Phase.STARTING
    pid: int | None = None
    """Of HAProxy, or of the `torchserve` command; None while it does not run."""
    restarts: int = 0
    """How often it was started again since the supervisor began."""
    causes: tuple[Cause, ...] = ()
    """The last ones, the newest at the end."""
    health: str = ""
    """Of an instance: "ready", or what is wrong; empty while it starts."""
    since: str = ""
    """When the phase began: UTC, ISO 8601."""
    models: Mapping[str, int] = field(default_factory=dict)
    """Of an instance: model → workers that serve."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """The whole file."""

    schema: int = SCHEMA
    pid: int
    """The supervisor's."""
    phase: Phase
    since: str
    """When the phase began: UTC, ISO 8601."""
    proxy: Part = field(default_factory=Part)
    instances: Mapping[str, Part] = field(default_factory=dict)
    """By name."""
    reload: str = ""
    """Of the last one, what is done just now, "done", or "failed: " and why; empty before the first."""
    reloads: int = 0
    """How many have ended, well or not."""
    message: str = ""
    """Why the phase is what it is, where that needs words."""


def tell_time() -> str:
    """Now, as the record has it."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def write_record(path: Path, record: Record) -> None:
    """As JSON, whole or not at all."""
    write_text_atomically(path, json.dumps(dataclasses.asdict(record), indent=1) + "\n", mode=0o600)


def read_record(path: Path) -> Record | None:
    """The record; None when there is none, or it is damaged or of another kit."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw["schema"] != SCHEMA:
            return None
        parts = {name: _parse_part(part) for name, part in raw["instances"].items()}
        proxy, phase = _parse_part(raw["proxy"]), Phase(raw["phase"])
        return Record(**{**raw, "phase": phase, "proxy": proxy, "instances": parts})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _parse_part(raw: Mapping[str, Any]) -> Part:
    causes = tuple(Cause(**cause) for cause in raw["causes"])
    return Part(**{**raw, "phase": Phase(raw["phase"]), "causes": causes})
