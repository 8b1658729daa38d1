"""Prepares a model with its own handler: the files beside model.yaml, and a state dict or random weights."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from models.definition import ModelDefinition
from models.errors import BuildError
from models.example import stage_example
from models.files import find_labels_file, find_weights_file, hash_file, list_travelling
from models.handlers import load_handler
from models.labels import read_labels
from models.random_weights import SEED
from models.request import WeightsRequest
from models.state import read_checkpoint, save_weights
from models.tasks.prepared import Prepared


def prepare(definition: ModelDefinition, request: WeightsRequest, staging: Path) -> Prepared:
    """Fill `staging`; BuildError when the weights asked for cannot be read. Whether they fit is seen when the
    handler loads them."""
    weights, notes = f"random (seed {SEED})", ["random weights: the answers mean nothing"]
    if request.path is not None:
        file = find_weights_file(request.path)
        state, note = read_checkpoint(file, allow_pickle=request.allow_pickle)
        save_weights(state, staging)
        weights, notes = f"user ({file.name}, sha256:{hash_file(file)[:12]})", [note] if note else []
    elif request.source != "random" and (definition.public or request.source == "pretrained"):
        raise BuildError(
            f"{definition.path}: the weights of a handler of your own must be a path that exists: got "
            f"{definition.public or request.source}"
        )
    _copy(definition.folder, staging)
    labels = find_labels_file(definition.folder)
    return Prepared(
        weights=weights,
        notes=tuple(notes),
        model=dict(definition.options),
        labels=definition.labels or (read_labels(labels) if labels else ()),
        example=stage_example(definition, staging),
    )


def _copy(folder: Path, staging: Path) -> None:
    for one in list_travelling(folder):
        if (staging / one.name).exists() or one.name == "handlers":
            raise BuildError(f"{one}: the archive has a {one.name} of its own; give yours another name")
        (shutil.copytree if one.is_dir() else shutil.copy)(one, staging / one.name)


def fetch_public(definition: ModelDefinition) -> None:
    """There are none."""


def fill_weights(staging: Path) -> None:
    """Keep the random ones that the staged handler's model comes with."""
    torch.manual_seed(SEED)
    handler = load_handler(staging)
    setattr(handler, "load_weights", lambda model: model.eval())  # noqa: B010  there are none yet
    save_weights(handler.load_model().state_dict(), staging)
