"""What precision auto goes by: the job that says what shall be timed, and the timings that came of it.

The rules say how a worker would run; `python -m models time` measures that and writes the figures beside the
settings they were taken with. Here both are plain data that cross between the two programs as JSON.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from config.errors import TimingsError

SCHEMA = 1
CURE = "run `make config PRECISION=auto`, which takes them"


@dataclass(frozen=True, kw_only=True)
class ModelJob:
    """What shall be timed of one model."""

    batch_sizes: Mapping[str, int]
    """Precision → requests in a batch, the most exact precision first."""
    impossible: Mapping[str, str]
    """Precision → why it cannot be served here, so that it need not be tried."""


@dataclass(frozen=True, kw_only=True)
class TimingJob:
    """What shall be timed, and how a worker would run."""

    cpu: int
    """The one CPU to time on."""
    settings: Mapping[str, Any]
    """What the figures depend on besides the archives: CPU, IPEX, what is off, the worker's environment."""
    models: Mapping[str, ModelJob]
    """By model name."""

    def to_json(self) -> str:
        """One line, to be handed to `python -m models time`."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))


@dataclass(frozen=True, kw_only=True)
class Timings:
    """A file of timings."""

    source: str
    """The file, named in errors."""
    raw: Mapping[str, Any]
    """What it holds; empty when there is no such file."""

    def select(self, job: TimingJob) -> dict[str, Any]:
        """The timings of the job's models; TimingsError when they are missing or of other settings."""
        if not self.raw:
            raise TimingsError(f"PRECISION=auto needs timings of this host: got none ({self.source}); {CURE}")
        models = self.raw["models"]
        missing = [name for name in job.models if name not in models]
        if missing:
            raise TimingsError(
                f"PRECISION=auto needs timings of {', '.join(missing)}: "
                f"got those of {', '.join(models) or 'none'} ({self.source}); {CURE}"
            )
        other = [*_list_other_settings(self.raw["settings"], job), *_list_other_batches(models, job)]
        if other:
            raise TimingsError(
                f"PRECISION=auto needs timings of what is planned: got those of another "
                f"{', '.join(other)} ({self.source}); {CURE}"
            )
        return {**self.raw, "models": {name: models[name] for name in job.models}}


def read_timings(file: Path | str) -> Timings:
    """The file's timings; none when it is not there."""
    try:
        raw = json.loads(Path(file).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Timings(source=str(file), raw={})
    except (OSError, ValueError) as problem:
        raise TimingsError(f"timings cannot be read: {file}: {problem}; {CURE}") from problem
    fields = {"settings", "models"}
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA or not fields <= set(raw):
        raise TimingsError(
            f"timings must be those of `python -m models time`: got something else ({file}); {CURE}"
        )
    return Timings(source=str(file), raw=raw)


def _list_other_settings(taken: Mapping[str, Any], job: TimingJob) -> list[str]:
    names = sorted({*taken, *job.settings})
    return [name.replace("_", " ") for name in names if taken.get(name) != job.settings.get(name)]


def _list_other_batches(models: Mapping[str, Any], job: TimingJob) -> list[str]:
    """A precision that could not be timed has no batch."""
    return [
        f"batch size for {name} {precision}"
        for name, model in job.models.items()
        for precision, size in model.batch_sizes.items()
        if models[name]["precisions"].get(precision, {}).get("batch_size", size) != size
    ]
