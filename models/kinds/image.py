"""Prepares torchvision classifiers: public pretrained, seeded random or a user's own weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torchvision.models import get_model, get_model_weights

from handlers.shared.outputs import choose_activation
from handlers.shared.preprocessing import ImageSize
from models.canary import write_canary_image
from models.definition import ModelDefinition
from models.download import fetch_checkpoint
from models.errors import BuildError
from models.files import find_labels_file, find_weights_file, hash_file
from models.kinds import Prepared, prefer_pretrained
from models.labels import read_labels
from models.random_weights import SEED, make_random_classifier
from models.request import WeightsRequest
from models.state import load_state, read_state

CANARY = "canary.jpg"
SHOWN = 3
"""Keys named in an error."""


def prepare(definition: ModelDefinition, request: WeightsRequest, staging: Path) -> Prepared:
    """Fill `staging`; BuildError when the weights asked for cannot be had or do not fit."""
    model, labels, weights, notes = _SOURCES[request.source](definition, request)
    tensors = {key: value.contiguous() for key, value in model.state_dict().items()}
    save_file(tensors, staging / "model.safetensors")
    (staging / "labels.json").write_text(json.dumps(labels, ensure_ascii=False), encoding="utf-8")
    write_canary_image(staging / CANARY)
    return Prepared(
        weights=weights,
        notes=notes,
        model={
            **definition.model,
            "architecture": definition.architecture,
            "architecture_options": definition.architecture_options,
            "activation": choose_activation(definition.model.get("problem_type"), len(labels)),
        },
        canary_file=CANARY,
        canary_content_type="image/jpeg",
        distributions=("torchvision", "pillow", "numpy"),
    )


Source = tuple[torch.nn.Module, list[str], str, tuple[str, ...]]


def _from_random(definition: ModelDefinition, request: WeightsRequest) -> Source:
    labels = read_default_labels(definition)
    model = make_random_classifier(
        lambda: build_model(definition, len(labels)), size=ImageSize(**definition.model["size"])
    )
    note = "random weights: the labels mean nothing; give WEIGHTS=pretrained or WEIGHTS=PATH for real answers"
    return model, labels, f"random (seed {SEED})", (note,)


def _from_pretrained(definition: ModelDefinition, request: WeightsRequest) -> Source:
    weights = find_pretrained(definition)
    file = fetch_checkpoint(weights.url, sha256=definition.pretrained_sha256)
    state = read_state(file, allow_pickle=request.allow_pickle)
    labels = list(weights.meta["categories"])
    model = build_model(definition, len(labels)).eval()
    load_state(model, state, source=f"torchvision {definition.pretrained}")
    return model, labels, f"pretrained (torchvision {definition.pretrained}, sha256:{hash_file(file)})", ()


def _from_auto(definition: ModelDefinition, request: WeightsRequest) -> Source:
    return prefer_pretrained(
        definition, lambda: _from_pretrained(definition, request), lambda: _from_random(definition, request)
    )


def _from_path(definition: ModelDefinition, request: WeightsRequest) -> Source:
    assert request.path is not None
    file = find_weights_file(request.path)
    state = read_state(file, allow_pickle=request.allow_pickle)
    classes = _count_classes(definition, state, file)
    labels_file = find_labels_file(file.parent)
    labels = read_labels(labels_file) if labels_file else read_default_labels(definition)
    if len(labels) != classes:
        where = labels_file.name if labels_file else f"the definition ({definition.labels})"
        raise BuildError(
            f"{file.name} has {classes} classes, but {where} names {len(labels)}; "
            f"put labels.txt with {classes} lines beside the weights"
        )
    model = build_model(definition, len(labels)).eval()
    load_state(model, state, source=file.name)
    return model, labels, f"user ({file.name}, sha256:{hash_file(file)[:12]})", ()


_SOURCES = {"auto": _from_auto, "pretrained": _from_pretrained, "random": _from_random, "path": _from_path}


def read_default_labels(definition: ModelDefinition) -> list[str]:
    """The definition's own labels, or ImageNet's names as torchvision ships them."""
    if definition.labels == "imagenet":
        return list(find_pretrained(definition).meta["categories"])
    return list(definition.labels)


def find_pretrained(definition: ModelDefinition) -> Any:
    """torchvision's entry for the definition's weights: `url` and `meta`."""
    try:
        known = get_model_weights(definition.architecture)
    except ValueError as error:
        raise BuildError(
            f"{definition.path}: architecture must be a classifier of torchvision.models: got {error}"
        ) from error
    if definition.pretrained not in known.__members__:
        allowed = ", ".join(known.__members__)
        raise BuildError(
            f"{definition.path}: pretrained must be one of {allowed}: got {definition.pretrained}"
        )
    return known[definition.pretrained]


def build_model(definition: ModelDefinition, classes: int) -> torch.nn.Module:
    """The architecture with the definition's options, as the worker builds it."""
    try:
        return get_model(
            definition.architecture, weights=None, num_classes=classes, **definition.architecture_options
        )
    except (TypeError, ValueError) as error:
        raise BuildError(
            f"{definition.path}: torchvision cannot build {definition.architecture} with "
            f"architecture_options {definition.architecture_options}: {error}"
        ) from error


def _count_classes(definition: ModelDefinition, state: dict[str, torch.Tensor], file: Path) -> int:
    key = _find_classifier(definition)
    if key not in state or state[key].dim() == 0:
        raise BuildError(
            f"{file.name} does not fit the model: it has no {key}, the classifier of "
            f"{definition.architecture}; its keys are {', '.join(sorted(state)[:SHOWN])} …"
        )
    return state[key].shape[0]


def _find_classifier(definition: ModelDefinition) -> str:
    """Key of the last layer's weights; taken from a model, for files keep keys in any order."""
    with torch.device("meta"):
        model = build_model(definition, classes=2)
    modules = list(model.named_modules())
    # A few architectures (squeezenet) end in a convolution instead.
    for kind in (torch.nn.Linear, torch.nn.Conv2d):
        names = [name for name, module in modules if isinstance(module, kind)]
        if names:
            return f"{names[-1]}.weight"
    raise BuildError(f"{definition.architecture} has no layer that tells classes apart")
