"""The archive's own description of its model, `definition.json`, as frozen settings.

The file is written by `models/` when the archive is built. Everything here depends on the model's
mathematics alone; what depends on the machine arrives through `options.py`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from handlers.shared.errors import LoadError

DEFINITION_FILE = "definition.json"
WEIGHTS_FILE = "model.safetensors"
LABELS_FILE = "labels.json"
CANARY_FILE = "canary.json"
BUILD_AGAIN = (
    "build the archive again with `make models`; if that says it is up to date, what was unpacked has "
    "changed: make stop && make serve"
)
"""`make models` looks at the content and at the versions it was built with."""
SUMS_FILE = "SHA256SUMS"
"""The hash of every other file packed; only a folder that is not packed yet has none."""


@dataclass(frozen=True, kw_only=True)
class PrecisionRecipe:
    """How one precision is reached and how closely it must follow FP32 eager."""

    self_check_relative_error: float
    """Largest ||optimised − eager|| / ||eager|| over centred logits that a load accepts."""
    backends: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Backend → what only that backend's load reads."""


@dataclass(frozen=True, kw_only=True)
class Definition:
    """One model as its archive describes it."""

    name: str
    archive_id: str
    """SHA-256 of SHA256SUMS, which is of everything packed: two archives with one id hold the same bytes.
    Empty for a folder that is not packed yet."""
    weights: str
    """Where the weights come from, e.g. `random (seed 0)`."""
    notes: tuple[str, ...]
    """What a person must know of this archive, e.g. a stand-in vocabulary."""
    batch_sizes: tuple[int, ...]
    """The batch sizes that are warmed and served, ascending, starting at 1."""
    precisions: dict[str, PrecisionRecipe]
    refused: dict[str, str]
    """Variants (backends.name_variant) that failed the accuracy gate at build, and by how much."""
    not_built: dict[str, str]
    """Variants that could not be built where the archive was built, and why; another CPU may."""
    asked: frozenset[str]
    """Variants that the archive was asked for, whatever became of them; no other was judged."""
    accuracy: dict[str, Any]
    """By variant: how it compared with FP32 eager on held-out inputs at build."""
    default_precision: str
    model: dict[str, Any]
    """What only the handler of this kind of model reads."""
    directory: Path

    @property
    def labels(self) -> list[str]:
        """Class names in the order of the model's outputs."""
        return list(json.loads((self.directory / LABELS_FILE).read_text(encoding="utf-8")))

    @property
    def canary(self) -> dict[str, Any]:
        """The sample request that proves a worker right, with the answer FP32 eager gave at build."""
        return dict(json.loads((self.directory / CANARY_FILE).read_text(encoding="utf-8")))


def read_definition(directory: Path) -> Definition:
    """Read `definition.json` in an unpacked archive; LoadError when it is missing or not of this kit."""
    path = directory / DEFINITION_FILE
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LoadError(
            f"{DEFINITION_FILE} cannot be read from the archive: {error}",
            cure=BUILD_AGAIN,
        ) from error
    return parse_definition(raw, directory=directory)


def parse_definition(raw: dict[str, Any], *, directory: Path) -> Definition:
    """Check and freeze the parsed JSON; LoadError names the missing field."""
    try:
        return Definition(
            name=raw["name"],
            archive_id=_identify(directory / SUMS_FILE),
            weights=raw["weights"],
            notes=tuple(raw["notes"]),
            batch_sizes=tuple(raw["batch_sizes"]),
            precisions={name: PrecisionRecipe(**recipe) for name, recipe in raw["precisions"].items()},
            refused=raw["refused"],
            not_built={name: one["cause"] for name, one in raw["not_built"].items()},
            asked=frozenset(raw["judged_with"]),
            accuracy=raw["accuracy"],
            default_precision=raw["default_precision"],
            model=raw["model"],
            directory=directory,
        )
    except (KeyError, TypeError) as error:
        raise LoadError(
            f"{DEFINITION_FILE} does not fit this handler: {error!r}",
            cure=BUILD_AGAIN,
        ) from error


def _identify(sums: Path) -> str:
    return hashlib.sha256(sums.read_bytes()).hexdigest() if sums.exists() else ""
