"""Prepares torchvision classifiers: public pretrained, seeded random or a user's own weights."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torchvision.models import get_model, get_model_weights

from handlers.shared.outputs import choose_activation
from handlers.shared.preprocessing import make_preprocessing
from models.canary import write_canary_image
from models.definition import PRESET_FIELDS, ModelDefinition
from models.download import fetch_checkpoint
from models.errors import BuildError
from models.files import find_labels_file, find_weights_file, hash_file
from models.kinds.prepared import Prepared, prefer_pretrained
from models.labels import read_labels
from models.progress import say
from models.random_weights import SEED, make_random_classifier
from models.request import WeightsRequest
from models.state import State, load_state, read_checkpoint, strip_prefix

CANARY = "canary.jpg"
SHOWN = 3
"""Keys named in an error."""
OWN_NORMALISATION = ("googlenet", "inception_v3")
"""Architectures that torchvision builds with `transform_input=True` for its pretrained weights alone."""
OLD_DENSENET = re.compile(
    r"(denselayer\d+\.(?:norm|relu|conv))\.([12]\.(?:weight|bias|running_mean|running_var))$"
)
"""As in torchvision.models.densenet."""


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
            **read_preset(definition),
            "architecture": definition.architecture,
            "architecture_options": read_options(definition),
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
        lambda: build_model(definition, len(labels)), size=make_preprocessing(read_preset(definition)).size
    )
    note = "random weights: the labels mean nothing; give WEIGHTS=pretrained or WEIGHTS=PATH for real answers"
    return model, labels, f"random (seed {SEED})", (note,)


def _from_pretrained(definition: ModelDefinition, request: WeightsRequest) -> Source:
    weights = find_pretrained(definition)
    check_preset(definition)
    file = fetch_checkpoint(weights.url, sha256=definition.pretrained_sha256)
    state, _ = read_checkpoint(file, allow_pickle=request.allow_pickle)
    labels = list(weights.meta["categories"])
    model = build_model(definition, len(labels)).eval()
    load_state(model, rename_old(state), source=f"torchvision {definition.pretrained}")
    return model, labels, f"pretrained (torchvision {definition.pretrained}, sha256:{hash_file(file)})", ()


def _from_auto(definition: ModelDefinition, request: WeightsRequest) -> Source:
    return prefer_pretrained(
        definition, lambda: _from_pretrained(definition, request), lambda: _from_random(definition, request)
    )


def _from_path(definition: ModelDefinition, request: WeightsRequest) -> Source:
    assert request.path is not None
    file = find_weights_file(request.path)
    state, note = read_checkpoint(file, allow_pickle=request.allow_pickle)
    # Only its keys are looked at; some architectures (regnet) cannot be built without memory.
    model = build_model(definition, classes=2)
    state = strip_prefix(rename_old(state), model, source=file.name)
    classes = _count_classes(definition, model, state, file)
    labels_file = find_labels_file(file.parent)
    labels = read_labels(labels_file) if labels_file else read_default_labels(definition)
    if len(labels) != classes:
        where = labels_file.name if labels_file else f"the definition ({definition.labels})"
        raise BuildError(
            f"{file.name} has {classes} classes, but {where} names {len(labels)}; "
            f"put labels.txt with {classes} lines beside the weights"
        )
    model = build_model(definition, len(labels)).eval()
    _check_colours(model, state, file)
    load_state(
        model,
        state,
        source=file.name,
        cure=f"is it a {definition.architecture}, as {definition.path} has it?",
    )
    _tell_preset(definition)
    return model, labels, f"user ({file.name}, sha256:{hash_file(file)[:12]})", (note,) if note else ()


_SOURCES = {"auto": _from_auto, "pretrained": _from_pretrained, "random": _from_random, "path": _from_path}


def read_preset(definition: ModelDefinition) -> dict[str, Any]:
    """The definition's `model` section, with what it does not say of preprocessing as torchvision's preset of
    `pretrained` has it."""
    said = {"preprocess": "fast", **definition.model}
    if all(field in said for field in PRESET_FIELDS):
        return said
    return {**_list_preset(find_pretrained(definition)), **said}


def _tell_preset(definition: ModelDefinition) -> None:
    """Nobody but its trainer knows what a model was trained to see."""
    preset = read_preset(definition)
    taken = ", ".join(f"{field} {preset[field]}" for field in PRESET_FIELDS if field not in definition.model)
    if taken:
        say(
            f"  {definition.name}: pictures are prepared as for {definition.pretrained} ({taken}); "
            f"if yours were not in training, say how in {definition.path}"
        )


def _list_preset(weights: Any) -> dict[str, Any]:
    """`weights.transforms()` by the names that model.yaml has; a list of one is the shorter side."""
    preset = weights.transforms()
    (resize,), (crop,) = preset.resize_size, preset.crop_size
    return {
        "size": {"resize": resize, "crop": crop},
        "interpolation": preset.interpolation.value,
        "antialias": preset.antialias,
        "mean": list(preset.mean),
        "std": list(preset.std),
    }


def check_preset(definition: ModelDefinition) -> None:
    """BuildError where a definition says other than the preset that public weights were made for."""
    wanted = _list_preset(find_pretrained(definition))
    wrong = {field: value for field, value in wanted.items() if definition.model.get(field, value) != value}
    if definition.architecture_options.get("transform_input") is False:
        raise BuildError(
            f"{definition.path}: architecture_options say transform_input: false; {definition.pretrained} of "
            f"{definition.architecture} was trained with true: write that"
        )
    if wrong:
        said = ", ".join(f"{field}: {definition.model[field]}" for field in wrong)
        right = ", ".join(f"{field}: {value}" for field, value in wrong.items())
        raise BuildError(
            f"{definition.path}: model says {said}; {definition.pretrained} of {definition.architecture} was "
            f"trained for {right}; leave these fields out: they are the preset's then"
        )


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
    _check_input_form(definition)
    options = read_options(definition)
    try:
        return get_model(definition.architecture, weights=None, num_classes=classes, **options)
    except (TypeError, ValueError) as error:
        raise BuildError(
            f"{definition.path}: torchvision cannot build {definition.architecture} with "
            f"architecture_options {options}: {error}"
        ) from error


def read_options(definition: ModelDefinition) -> dict[str, Any]:
    """The constructor's options: a vision transformer is built for the one size that it is given."""
    if not definition.architecture.startswith("vit_"):
        return definition.architecture_options
    side = make_preprocessing(read_preset(definition)).size.seen[0]
    return {"image_size": side, **definition.architecture_options}


def _check_input_form(definition: ModelDefinition) -> None:
    """BuildError where an architecture reads pictures in two ways and a state dict does not say which."""
    if definition.architecture in OWN_NORMALISATION and not isinstance(
        definition.architecture_options.get("transform_input"), bool
    ):
        raise BuildError(
            f"{definition.path}: {definition.architecture} needs architecture_options: "
            "{transform_input: true} or false: torchvision's pretrained weights, and what is fine-tuned from "
            "them, normalise once more within the model, others do not, and a file of weights does not say"
        )


def rename_old(state: State) -> State:
    """DenseNet's keys of before torch 0.4, which torchvision's own files have, by their names of today."""
    return {OLD_DENSENET.sub(r"\1\2", key): value for key, value in state.items()}


def _check_colours(model: torch.nn.Module, state: State, file: Path) -> None:
    """BuildError for a model of pictures in grey: its first layer has one channel."""
    key, own = next((key, value) for key, value in model.state_dict().items() if value.dim() == 4)
    if key in state and state[key].dim() == 4 and state[key].shape[1] != own.shape[1]:
        channels = state[key].shape[1]
        cure = (
            f"multiply {key} by torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1) for the same answers, "
            "with mean and std three times the same in model.yaml"
            if channels == 1
            else "train it on RGB"
        )
        raise BuildError(
            f"{file.name} takes pictures of {channels} channel{'s' if channels > 1 else ', grey'} ({key} is "
            f"{tuple(state[key].shape)}), and here models are given RGB; {cure}"
        )


def _count_classes(definition: ModelDefinition, model: torch.nn.Module, state: State, file: Path) -> int:
    key = _find_classifier(definition, model)
    if key not in state or state[key].dim() == 0:
        layer = key.split(".")[0]
        near = sorted(one for one in state if one.split(".")[0] == layer) or sorted(state)
        raise BuildError(
            f"{file.name} does not fit the model: it has no {key}, the classifier of "
            f"{definition.architecture}; it has {', '.join(near[:SHOWN])} …; name its architecture in "
            f"{definition.path}, or rename the keys of a classifier that is one linear layer"
        )
    return state[key].shape[0]


def _find_classifier(definition: ModelDefinition, model: torch.nn.Module) -> str:
    """Key of the last layer's weights; taken from a model, for files keep keys in any order."""
    modules = list(model.named_modules())
    # A few architectures (squeezenet) end in a convolution instead.
    for kind in (torch.nn.Linear, torch.nn.Conv2d):
        names = [name for name, module in modules if isinstance(module, kind)]
        if names:
            return f"{names[-1]}.weight"
    raise BuildError(f"{definition.architecture} has no layer that tells classes apart")
