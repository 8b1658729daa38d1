"""How each kind of model gets its weights, labels and canary: one module a kind, one function `prepare`.

`prepare(definition, request, staging)` writes model.safetensors, labels.json, the canary's input
file and what else the handler of that kind reads into `staging`, and returns what it prepared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from models.definition import ModelDefinition
from models.request import WeightsRequest


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What a kind put into the staging folder, for the archive's definition.json and canary.json."""

    weights: str
    """Where the weights come from, as status and describe say it."""
    model: dict[str, Any]
    """The definition's `model` section with what only the build knows (class count, padding id …)."""
    canary_file: str
    canary_content_type: str
    distributions: tuple[str, ...]
    """What a worker must have installed to load the archive, besides torch and safetensors."""
    notes: tuple[str, ...] = field(default_factory=tuple)


Prepare = Callable[[ModelDefinition, WeightsRequest, Path], Prepared]


def find_kind(name: str) -> Prepare:
    """The `prepare` function of a kind; imported late, torchvision and transformers being slow to."""
    if name == "image":
        from models.kinds.image import prepare
    else:
        from models.kinds.text import prepare
    return prepare
