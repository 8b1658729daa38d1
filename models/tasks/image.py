"""Prepares torchvision classifiers: public pretrained, seeded random or a user's own weights."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torchvision.models import get_model, get_model_weights

from handlers.shared.outputs import choose_activation
from handlers.shared.preprocessing import make_preprocessing
from models.definition import ModelDefinition
from models.download import RETRY_SECONDS, check_offered, fetch_checkpoint, locate_checkpoint
from models.errors import BuildError
from models.example import stage_example
from models.files import find_labels_file, find_weights_file, hash_file
from models.labels import read_labels
from models.progress import say
from models.random_weights import SEED, make_random_classifier
from models.request import WeightsRequest
from models.state import State, load_state, read_checkpoint, save_weights, strip_prefix
from models.tasks.prepared import RANDOM_NOTE, Prepared, obtain

PRESET_FIELDS = {"size", "interpolation", "antialias", "mean", "std"}
"""How images are brought to a model."""
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
    model, labels, weights, notes = obtain(definition, request, _MAKERS)
    save_weights(model.state_dict(), staging)
    return Prepared(
        weights=weights,
        notes=notes,
        model={
            **read_preset(definition),
            "architecture": name_architecture(definition),
            "architecture_options": read_options(definition),
            "activation": choose_activation(definition.options.problem_type, len(labels)),
        },
        labels=labels,
        example=stage_example(definition, staging, takes="image"),
    )


def fetch_public(definition: ModelDefinition) -> None:
    """DownloadError, soon, where the weights cannot be had."""
    url = find_public(definition).url
    if not locate_checkpoint(url).is_file():
        check_offered(url, seconds=RETRY_SECONDS)
        fetch_checkpoint(url, sha256=definition.weights_sha256)


def name_architecture(definition: ModelDefinition) -> str:
    """As torchvision.models.get_model knows it."""
    return definition.architecture or definition.name


Source = tuple[torch.nn.Module, list[str], str, tuple[str, ...]]


def _from_random(definition: ModelDefinition, request: WeightsRequest) -> Source:
    labels = read_default_labels(definition)
    model = make_random_classifier(
        lambda: build_model(definition, len(labels)), size=make_preprocessing(read_preset(definition)).size
    )
    return model, labels, f"random (seed {SEED})", (RANDOM_NOTE,)


def _from_pretrained(definition: ModelDefinition, request: WeightsRequest) -> Source:
    weights = find_public(definition)
    check_preset(definition)
    file = fetch_checkpoint(weights.url, sha256=definition.weights_sha256)
    state, _ = read_checkpoint(file, allow_pickle=request.allow_pickle)
    labels = list(weights.meta["categories"])
    model = build_model(definition, len(labels)).eval()
    load_state(model, rename_old(state), source=f"torchvision {definition.public}")
    return model, labels, f"pretrained (torchvision {definition.public}, sha256:{hash_file(file)})", ()


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
        where = labels_file.name if labels_file else definition.path if definition.labels else "ImageNet"
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
        fix=f"is it a {name_architecture(definition)}, as {definition.path} has it?",
    )
    _tell_preset(definition)
    return model, labels, f"user ({file.name}, sha256:{hash_file(file)[:12]})", (note,) if note else ()


_MAKERS = {"pretrained": _from_pretrained, "random": _from_random, "path": _from_path}


def read_preset(definition: ModelDefinition) -> dict[str, Any]:
    """The definition's options, with what they do not say of preprocessing as the preset has it."""
    said = definition.options.model_dump(exclude_none=True, exclude={"preset"})
    if said.keys() >= PRESET_FIELDS:
        return said
    return {**_list_preset(find_preset(definition)), **said}


def _tell_preset(definition: ModelDefinition) -> None:
    """Nobody but its trainer knows what a model was trained to see."""
    preset, said = read_preset(definition), definition.options.model_dump(exclude_none=True)
    taken = ", ".join(f"{field} {preset[field]}" for field in sorted(PRESET_FIELDS - said.keys()))
    if taken:
        say(
            f"  {definition.name}: images are prepared as for {find_preset(definition).name} ({taken}); "
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
    wanted = _list_preset(find_public(definition))
    said = definition.options.model_dump(mode="json", exclude_none=True)
    wrong = {field: value for field, value in wanted.items() if said.get(field, value) != value}
    architecture = name_architecture(definition)
    if definition.architecture_options.get("transform_input") is False:
        raise BuildError(
            f"{definition.path}: architecture_options say transform_input: false; {definition.public} of "
            f"{architecture} was trained with true: write that"
        )
    if wrong:
        given = ", ".join(f"{field}: {said[field]}" for field in wrong)
        right = ", ".join(f"{field}: {value}" for field, value in wrong.items())
        raise BuildError(
            f"{definition.path}: options say {given}; {definition.public} of {architecture} was trained for "
            f"{right}; leave these fields out: they are the preset's then"
        )


def read_default_labels(definition: ModelDefinition) -> list[str]:
    """The definition's own, or the preset's, as torchvision ships them."""
    return list(definition.labels or find_preset(definition).meta["categories"])


def find_public(definition: ModelDefinition) -> Any:
    """torchvision's entry for the definition's weights: `url` and `meta`."""
    return _find_entry(definition, "weights", definition.public)


def find_preset(definition: ModelDefinition) -> Any:
    """The entry by which images are prepared."""
    if definition.options.preset:
        return _find_entry(definition, "options.preset", definition.options.preset)
    return find_public(definition) if definition.public else _find_entry(definition, "weights", "DEFAULT")


def _find_entry(definition: ModelDefinition, field: str, name: str) -> Any:
    try:
        known = get_model_weights(name_architecture(definition))
    except ValueError as error:
        raise BuildError(
            f"{definition.path}: architecture must be a classifier of torchvision.models: got {error}"
        ) from error
    if name not in {*known.__members__, "DEFAULT"}:
        allowed = ", ".join(known.__members__)
        raise BuildError(
            f"{definition.path}: {field} must be one of {allowed}, or a path: got {name or 'none'}"
        )
    return known[name]


def build_model(definition: ModelDefinition, classes: int) -> torch.nn.Module:
    """The architecture with the definition's options, as the worker builds it."""
    _check_input_form(definition)
    options = read_options(definition)
    try:
        return get_model(name_architecture(definition), weights=None, num_classes=classes, **options)
    except (TypeError, ValueError) as error:
        raise BuildError(
            f"{definition.path}: torchvision cannot build {name_architecture(definition)} with "
            f"architecture_options {options}: {error}"
        ) from error


def read_options(definition: ModelDefinition) -> dict[str, Any]:
    """The constructor's options: a vision transformer is built for the one size that it is given."""
    if not name_architecture(definition).startswith("vit_"):
        return definition.architecture_options
    side = make_preprocessing(read_preset(definition)).size.seen[0]
    return {"image_size": side, **definition.architecture_options}


def _check_input_form(definition: ModelDefinition) -> None:
    """BuildError where an architecture reads images in two ways and a state dict does not say which."""
    architecture = name_architecture(definition)
    if architecture in OWN_NORMALISATION and not isinstance(
        definition.architecture_options.get("transform_input"), bool
    ):
        raise BuildError(
            f"{definition.path}: {architecture} needs architecture_options: "
            "{transform_input: true} or false: torchvision's pretrained weights, and what is fine-tuned from "
            "them, normalise once more within the model, others do not, and a file of weights does not say"
        )


def rename_old(state: State) -> State:
    """DenseNet's keys of before torch 0.4, which torchvision's own files have, by their names of today."""
    return {OLD_DENSENET.sub(r"\1\2", key): value for key, value in state.items()}


def _check_colours(model: torch.nn.Module, state: State, file: Path) -> None:
    """BuildError for a model of images in grey: its first layer has one channel."""
    key, own = next((key, value) for key, value in model.state_dict().items() if value.dim() == 4)
    if key in state and state[key].dim() == 4 and state[key].shape[1] != own.shape[1]:
        channels = state[key].shape[1]
        fix = (
            f"multiply {key} by torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1) for the same answers, "
            "with mean and std three times the same in model.yaml"
            if channels == 1
            else "train it on RGB"
        )
        raise BuildError(
            f"{file.name} takes images of {channels} channel{'s' if channels > 1 else ', grey'} ({key} is "
            f"{tuple(state[key].shape)}), and here models are given RGB; {fix}"
        )


def _count_classes(definition: ModelDefinition, model: torch.nn.Module, state: State, file: Path) -> int:
    key = _find_classifier(definition, model)
    if key not in state or state[key].dim() == 0:
        layer = key.split(".")[0]
        near = sorted(one for one in state if one.split(".")[0] == layer) or sorted(state)
        raise BuildError(
            f"{file.name} does not fit the model: it has no {key}, the classifier of "
            f"{name_architecture(definition)}; it has {', '.join(near[:SHOWN])} …; name its architecture in "
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
    raise BuildError(f"{name_architecture(definition)} has no layer that tells classes apart")
