"""The batch profile: how long batches take here, with all workers busy alike.

`make serve` hands a job to `python -m models time`, which measures it and writes the figures
beside the settings that they were taken with. Both are plain data that cross between the two programs as
JSON.
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
FEW = (1, 4, 16)
FEW_TEXTS = (1, 8, 24)
"""The ends of a line and its middle."""
FEW_SECONDS = 2.5
BOUND_SECONDS = 10.0
"""Of a model, whatever its sizes take: what does not fit is left out, the largest first."""


@dataclass(frozen=True, kw_only=True)
class ModelJob:
    """What is to be timed of one model."""

    variant: str
    """Backend and precision (catalogue.name_variant)."""
    batches: tuple[int, ...]
    """How many requests in one, each number in turn."""


@dataclass(frozen=True, kw_only=True)
class ProfileJob:
    """What is to be timed, and how the workers would run."""

    settings: Mapping[str, Any]
    """What the figures depend on besides the archives: CPU, `slots` (the CPUs of each worker; all compute at
    once), `threads` of one, what is off, the worker's environment."""
    models: Mapping[str, ModelJob]
    """By model name; empty where there is nothing to time."""
    seconds: float = FEW_SECONDS
    """How long each size of batch is timed."""
    bound: float = BOUND_SECONDS
    """Seconds of one model, at most."""

    def to_json(self) -> str:
        """One line, to be handed to `python -m models time`."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))


@dataclass(frozen=True, kw_only=True)
class BatchProfile:
    """The figures of a file, or those of it that a plan goes by."""

    raw: Mapping[str, Any] = field(default_factory=dict)
    """As in the file; empty where there are none that hold."""
    source: str = "none was given"
    """The file, or why there are no figures."""

    def select(self, job: ProfileJob) -> BatchProfile:
        """The figures of the job's models; none where they are missing or of other settings."""
        if not self.raw:
            return BatchProfile(source=f"no batch profile of this machine ({self.source})")
        models = self.raw["models"]
        if missing := [name for name in job.models if name not in models]:
            return BatchProfile(source=f"no batch profile of {', '.join(missing)} ({self.source})")
        # As the job's settings come back from the file.
        taken, planned = self.raw["settings"], json.loads(json.dumps(job.settings))
        other = [name for name in sorted({*taken, *planned}) if taken.get(name) != planned.get(name)]
        for name, one in job.models.items():
            entry = models[name]["variants"].get(one.variant)
            if entry is None:
                other.append(f"backend or precision than {name} {one.variant}")
            elif "problem" not in entry:
                timed = {*entry.get("service", {}), *map(str, entry.get("skipped", ()))}
                other += [f"batch of {name} {one.variant}"] * (not {*map(str, one.batches)} <= timed)
        if other:
            return BatchProfile(source=f"the batch profile is of another {', '.join(other)} ({self.source})")
        # Without what stands beside: a plan must not change with what others were planned with.
        own = {
            name: {**models[name], "variants": {one.variant: models[name]["variants"][one.variant]}}
            for name, one in job.models.items()
        }
        return BatchProfile(raw={**self.raw, "models": own}, source=self.source)

    def find(self, model: str, variant: str) -> Mapping[str, Any]:
        """`service` is requests in a batch → what it takes a worker, or `problem` why there is none."""
        return dict(self.raw.get("models", {}).get(model, {}).get("variants", {}).get(variant, {}))


NO_PROFILE = BatchProfile()


def read_profile(file: Path | str) -> BatchProfile:
    """Empty where there is no file, or one of an earlier version of the kit; ConfigError for anything
    else."""
    do = "remove it and run `make serve`, which measures again"
    try:
        raw = json.loads(Path(file).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return BatchProfile(source=f"no {file}")
    except (OSError, ValueError) as problem:
        raise ConfigError(f"the batch profile cannot be read: {file}: {problem}; {do}") from problem
    if not isinstance(raw, dict) or not {"schema", "settings", "models"} <= {*raw}:
        raise ConfigError(
            f"the batch profile must be one of `python -m models time`: got something else ({file}); {do}"
        )
    return BatchProfile(raw=raw if raw["schema"] == SCHEMA else {}, source=f"{file}, schema {raw['schema']}")
