"""Prepares torchvision classifiers: public pretrained, seeded random or a user's own weights."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torchvision.models import get_model, get_model_weights

from models.canary import write_canary_image
from models.definition import ModelDefinition
from models.download import DownloadError, fetch_checkpoint
from models.errors import BuildError
from models.kinds import Prepared
from models.labels import find_labels_file, read_labels
from models.random_weights import SEED, make_random_classifier
from models.request import WeightsRequest
from models.state import find_weights_file, hash_file, load_state, read_state

CANARY = "canary.jpg"


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
        model={**definition.model, "architecture": definition.architecture},
        canary_file=CANARY,
        canary_content_type="image/jpeg",
        distributions=("torchvision", "pillow", "numpy"),
    )


Source = tuple[torch.nn.Module, list[str], str, tuple[str, ...]]


def _from_random(definition: ModelDefinition, request: WeightsRequest) -> Source:
    labels = read_default_labels(definition)
    model = make_random_classifier(
        definition.architecture, len(labels), crop=definition.model["size"]["crop"]
    )
    note = "random weights: the labels mean nothing; give WEIGHTS=pretrained or WEIGHTS=PATH for real answers"
    return model, labels, f"random (seed {SEED})", (note,)


def _from_pretrained(definition: ModelDefinition, request: WeightsRequest) -> Source:
    weights = get_model_weights(definition.architecture)[definition.pretrained]
    state = read_state(fetch_checkpoint(weights.url))
    labels = list(weights.meta["categories"])
    model = _build(definition, labels)
    load_state(model, state, source=f"torchvision {definition.pretrained}")
    return model, labels, f"pretrained (torchvision {definition.pretrained})", ()


def _from_auto(definition: ModelDefinition, request: WeightsRequest) -> Source:
    try:
        return _from_pretrained(definition, request)
    except DownloadError as error:
        print(f"  {definition.name}: pretrained weights cannot be had ({error})", flush=True)
        return _from_random(definition, request)


def _from_path(definition: ModelDefinition, request: WeightsRequest) -> Source:
    assert request.path is not None
    file = find_weights_file(request.path)
    state = read_state(file)
    classes = _count_classes(state, file)
    labels_file = find_labels_file(file.parent)
    labels = read_labels(labels_file) if labels_file else read_default_labels(definition)
    if len(labels) != classes:
        where = labels_file.name if labels_file else f"the definition ({definition.labels})"
        raise BuildError(
            f"{file.name} has {classes} classes, but {where} names {len(labels)}; "
            f"put labels.txt with {classes} lines beside the weights"
        )
    model = _build(definition, labels)
    load_state(model, state, source=file.name)
    return model, labels, f"user ({file.name}, sha256:{hash_file(file)[:12]})", ()


_SOURCES = {"auto": _from_auto, "pretrained": _from_pretrained, "random": _from_random, "path": _from_path}


def read_default_labels(definition: ModelDefinition) -> list[str]:
    """The definition's own labels, or ImageNet's names as torchvision ships them."""
    if definition.labels == "imagenet":
        weights = get_model_weights(definition.architecture)[definition.pretrained]
        return list(weights.meta["categories"])
    return list(definition.labels)


def _build(definition: ModelDefinition, labels: list[str]) -> torch.nn.Module:
    return get_model(
        definition.architecture, weights=None, num_classes=len(labels), **definition.architecture_options
    ).eval()


def _count_classes(state: dict[str, torch.Tensor], file: Path) -> int:
    # The classifier is the last matrix of every torchvision classification model.
    matrices = [value for key, value in state.items() if key.endswith("weight") and value.dim() == 2]
    if not matrices:
        raise BuildError(f"{file.name} has no classifier layer: no two-dimensional weight among its keys")
    return matrices[-1].shape[0]
