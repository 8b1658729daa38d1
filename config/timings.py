"""What batches are planned by: the job that says what shall be timed, and the timings of it.

The rules say how the workers would run; `python -m models time` measures that and writes the figures beside
the settings they were taken with. Here both are plain data that cross between the two programs as JSON.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from config.errors import ConfigError

SCHEMA = 5
CURE = "run `make plan` with the same values, which takes them"


@dataclass(frozen=True, kw_only=True)
class ModelJob:
    """What shall be timed of one model."""

    variant: str
    """Backend and precision (catalogue.name_variant)."""
    batches: tuple[int, ...]
    """How many requests in one, each number in turn."""


@dataclass(frozen=True, kw_only=True)
class TimingJob:
    """What shall be timed, and how the workers would run."""

    settings: Mapping[str, Any]
    """What the figures depend on besides the archives: CPU, `slots` (the CPUs of each worker; all compute at
    once), `threads` of one, what is off, the worker's environment."""
    models: Mapping[str, ModelJob]
    """By model name."""
    seconds: float
    """How long each size of batch is timed."""
    bound: float
    """Seconds of one model, at most."""

    def to_json(self) -> str:
        """One line, to be handed to `python -m models time`."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))


@dataclass(frozen=True, kw_only=True)
class Timed:
    """The timings that a plan goes by."""

    raw: Mapping[str, Any] = field(default_factory=dict)
    """Those of its models, as in the file; empty where there are none that hold."""
    lack: str
    """Of what there are none then, and what was got."""

    def find(self, model: str, variant: str) -> Mapping[str, Any]:
        """`service` is requests in a batch → what it takes a worker, or `problem` why there is none."""
        return dict(self.raw.get("models", {}).get(model, {}).get("variants", {}).get(variant, {}))


@dataclass(frozen=True, kw_only=True)
class Timings:
    """A file of timings."""

    source: str
    """The file, named in errors."""
    raw: Mapping[str, Any]
    """What it holds; empty when there is no such file, or one of an earlier version of the kit."""

    def select(self, job: TimingJob | None) -> Timed:
        """The timings of the job's models; none, and of what, when they are missing or of other settings.
        Where there are none at all no job is needed."""
        if job is None or not self.raw:
            return Timed(lack=f"of this machine: got none ({self.source})")
        lack = self._find_lack(job)
        if lack:
            return Timed(lack=f"{lack} ({self.source})")
        # Without what stands beside: a plan must not change with what others were planned with.
        own = {name: self.raw["models"][name] for name in job.models}
        for name, one in job.models.items():
            own[name] = {**own[name], "variants": {one.variant: own[name]["variants"][one.variant]}}
        return Timed(raw={**self.raw, "models": own}, lack="")

    def _find_lack(self, job: TimingJob) -> str:
        models = self.raw["models"]
        missing = [name for name in job.models if name not in models]
        if missing:
            return f"of {', '.join(missing)}: got those of {', '.join(models) or 'none'}"
        taken = self.raw["settings"]
        names = [
            name for name in sorted({*taken, *job.settings}) if taken.get(name) != job.settings.get(name)
        ]
        other = [
            *(name.replace("_", " ") for name in names),
            *_list_other_variants(models, job),
            *_list_missing_batches(models, job),
        ]
        return f"of what is planned: got those of another {', '.join(other)}" if other else ""


NO_TIMINGS = Timings(source="--timings was not given", raw={})
NOT_TIMED = NO_TIMINGS.select(None)


def read_timings(file: Path | str) -> Timings:
    """The file's timings; none when it is not there."""
    try:
        raw = json.loads(Path(file).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Timings(source=str(file), raw={})
    except (OSError, ValueError) as problem:
        raise ConfigError(f"timings cannot be read: {file}: {problem}; {CURE}") from problem
    fields = {"schema", "settings", "models"}
    if not isinstance(raw, dict) or not fields <= set(raw):
        raise ConfigError(
            f"timings must be those of `python -m models time`: got something else ({file}); {CURE}"
        )
    if raw["schema"] != SCHEMA:
        return Timings(source=f"{file}, schema {raw['schema']}", raw={})
    return Timings(source=str(file), raw=raw)


def _list_other_variants(models: Mapping[str, Any], job: TimingJob) -> list[str]:
    return [
        f"backend or precision than {name} {model.variant}"
        for name, model in job.models.items()
        if model.variant not in models[name]["variants"]
    ]


def _list_missing_batches(models: Mapping[str, Any], job: TimingJob) -> list[str]:
    """A variant that could not be timed has none."""
    return [
        f"batch of {name} {model.variant}"
        for name, model in job.models.items()
        if not _covers(models[name]["variants"].get(model.variant, {"problem": "not there"}), model)
    ]


def _covers(entry: Mapping[str, Any], model: ModelJob) -> bool:
    timed = {*entry.get("service", {}), *map(str, entry.get("left_out", ()))}
    return "problem" in entry or {*map(str, model.batches)} <= timed
