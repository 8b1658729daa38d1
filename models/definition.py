"""Reads `models/<name>/model.yaml`, the one home of everything that depends on a model's mathematics."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from models.errors import BuildError

MODELS_FOLDER = Path(__file__).parent
KINDS = ("image", "text")


@dataclass(frozen=True, kw_only=True)
class ModelDefinition:
    """One model.yaml, checked."""

    name: str
    kind: str
    """`image` or `text`: which module of models/kinds builds it."""
    handler: str
    """The file in handlers/ that serves it, without `.py`."""
    default_build: bool
    """False: built only when it is named."""
    architecture: str
    """A torchvision model name, or a transformers model type."""
    architecture_options: dict[str, Any]
    """Passed to the architecture's constructor."""
    pretrained: str
    """A torchvision weights name, or a Hugging Face repository."""
    labels: str | tuple[str, ...]
    """`imagenet`, or the class names in order."""
    batch_sizes: tuple[int, ...]
    worker_memory_mib: dict[str, int]
    default_precision: str
    precisions: dict[str, dict[str, Any]]
    accuracy_gate: dict[str, float]
    """What a precision other than FP32 must reach to be served; see models/accuracy.py."""
    model: dict[str, Any]
    """What only the handler reads; packed as it is."""
    path: Path


def list_models(folder: Path = MODELS_FOLDER) -> list[str]:
    """Names of all models that have a definition, sorted."""
    return sorted(path.parent.name for path in folder.glob("*/model.yaml"))


def read_definition(name: str, folder: Path = MODELS_FOLDER) -> ModelDefinition:
    """Read and check one definition; BuildError names the file, the field and what is allowed."""
    path = folder / name / "model.yaml"
    if not path.is_file():
        raise BuildError(f"MODELS must be among {', '.join(list_models(folder))}: got {name}")
    raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    definition = _parse(raw, path)
    _check(definition, folder_name=name)
    return definition


def _parse(raw: dict[str, Any], path: Path) -> ModelDefinition:
    raw = {"architecture_options": {}, "accuracy_gate": {}, **raw, "path": path}
    fields = set(ModelDefinition.__dataclass_fields__)
    missing, unknown = fields - set(raw), set(raw) - fields
    if missing or unknown:
        raise BuildError(f"{path}: missing fields {sorted(missing)}, unknown fields {sorted(unknown)}")
    labels = raw["labels"] if isinstance(raw["labels"], str) else tuple(raw["labels"])
    return ModelDefinition(**{**raw, "labels": labels, "batch_sizes": tuple(raw["batch_sizes"])})


def _check(definition: ModelDefinition, *, folder_name: str) -> None:
    path, sizes = definition.path, definition.batch_sizes
    if definition.name != folder_name:
        raise BuildError(f"{path}: name must be that of its folder, {folder_name}: got {definition.name}")
    if definition.kind not in KINDS:
        raise BuildError(f"{path}: kind must be one of {', '.join(KINDS)}: got {definition.kind}")
    if not sizes or sizes[0] != 1 or list(sizes) != sorted(set(sizes)):
        raise BuildError(f"{path}: batch_sizes must ascend from 1: got {list(sizes)}")
    if definition.default_precision not in definition.precisions:
        allowed = ", ".join(definition.precisions)
        raise BuildError(
            f"{path}: default_precision must be one of {allowed}: got {definition.default_precision}"
        )
    if set(definition.worker_memory_mib) != set(definition.precisions):
        raise BuildError(f"{path}: worker_memory_mib must have one number for each precision")
