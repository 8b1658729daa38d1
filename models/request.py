"""Parses what a person asks for with WEIGHTS=, CALIBRATION= and EVAL=, for one model or for each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from models.errors import BuildError

WORDS = ("auto", "pretrained", "random")
FORMS = "auto, pretrained, random, a path, or MODEL=… for each model, separated by commas"


@dataclass(frozen=True, kw_only=True)
class WeightsRequest:
    """Where one model's weights shall come from."""

    source: str
    """`auto`, `pretrained`, `random` or `path`."""
    path: Path | None = None


@dataclass(frozen=True, kw_only=True)
class DataRequest:
    """A person's own inputs for one model; None takes synthetic ones."""

    calibration: Path | None = None
    """Inputs that INT8's scales are chosen by."""
    evaluation: Path | None = None
    """Held-out inputs, with labels or without, that the accuracy gate judges by."""


def parse_paths(variable: str, text: str, names: list[str]) -> dict[str, Path]:
    """`PATH` for one model or `MODEL=PATH,…`; BuildError when a path is missing or fits several models."""
    paths: dict[str, Path] = {}
    for part in (part.strip() for part in text.split(",")):
        if not part:
            continue
        name, separator, value = part.partition("=")
        if not separator and len(names) > 1:
            raise BuildError(
                f"{variable}={part} is for {len(names)} models; write {variable}={names[0]}={part}"
            )
        target, path = (name, Path(value)) if separator else (names[0], Path(part))
        if target not in names:
            raise BuildError(f"{variable} names {target}, which is not among MODELS ({', '.join(names)})")
        if not path.expanduser().exists():
            raise BuildError(f"{variable} must be a path that exists: got {path}")
        paths[target] = path.expanduser().resolve()
    return paths


def parse_weights(text: str, names: list[str]) -> dict[str, WeightsRequest]:
    """One request for each named model; BuildError when a path cannot be told apart or does not exist."""
    parts = [part.strip() for part in text.split(",") if part.strip()] or ["auto"]
    requests: dict[str, WeightsRequest] = {}
    for part in parts:
        name, separator, value = part.partition("=")
        targets = [name] if separator else names
        _check_target(part, targets, names, value=value if separator else part)
        for target in targets:
            requests[target] = _parse_one(value if separator else part)
    return {name: requests.get(name, WeightsRequest(source="auto")) for name in names}


def _check_target(part: str, targets: list[str], names: list[str], *, value: str) -> None:
    unknown = [target for target in targets if target not in names]
    if unknown:
        raise BuildError(
            f"WEIGHTS names {unknown[0]}, which is not among MODELS ({', '.join(names)}): got {part}"
        )
    if value not in WORDS and len(targets) > 1:
        raise BuildError(
            f"WEIGHTS={part} is a path for {len(targets)} models; "
            f"write WEIGHTS={names[0]}={part} or MODELS={names[0]}"
        )


def _parse_one(value: str) -> WeightsRequest:
    if value in WORDS:
        return WeightsRequest(source=value)
    path = Path(value).expanduser()
    if not path.exists():
        raise BuildError(f"WEIGHTS must be {FORMS}: got {value}, which does not exist")
    return WeightsRequest(source="path", path=path)
