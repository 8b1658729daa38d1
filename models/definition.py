"""Reads `models/<name>/model.yaml`, the one home of everything that depends on a model's mathematics."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.errors import BuildError, InputError

MODELS_FOLDER = Path(__file__).parent
KINDS = {
    "image": ("top_k",),
    "text": ("token_lengths", "row_tokens", "tokens_per_run", "max_texts_per_request", "attention"),
}
"""Fields of `model` that the handler of each kind reads."""
PRESET_FIELDS = ("size", "interpolation", "antialias", "mean", "std")
"""How pictures are brought to a model; what is not said is that of the preset of `pretrained`."""
OPTIONAL_KIND_FIELDS = {"image": (*PRESET_FIELDS, "preprocess", "problem_type"), "text": ()}
PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "regression")
"""As handlers/shared/outputs.py knows them, which needs torch; a test compares."""
PREPROCESSINGS = ("fast", "reference")
INTERPOLATIONS = ("bilinear", "bicubic")
"""As handlers/shared/preprocessing.py knows them; a test compares."""
PRECISION_FIELDS = ("self_check_relative_error", "canary_relative", "canary_absolute")
OPTIONAL_PRECISION_FIELDS = ("backends",)
GATE_FIELDS = ("agreement", "labelled_loss_points")


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
    """A torchvision weights name, or a Hugging Face repository, better with its commit: NAME@REVISION."""
    pretrained_sha256: str
    """What the weights file must hash to, where that is known; empty: trusted when first used."""
    labels: str | tuple[str, ...]
    """`imagenet`, or the class names in order."""
    batch_sizes: tuple[int, ...]
    worker_memory_mib: dict[str, int]
    request_memory_mib: int
    """What the worst batch of requests adds to a worker; the plan counts it."""
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


def list_default_models(folder: Path = MODELS_FOLDER) -> list[str]:
    """Names of the models with `default_build: true`."""
    # Without a YAML reader, which may not be installed yet.
    default = re.compile(r"^default_build:\s*true\b", re.MULTILINE)
    files = {name: folder / name / "model.yaml" for name in list_models(folder)}
    return [name for name, file in files.items() if default.search(file.read_text(encoding="utf-8"))]


def read_definition(name: str, folder: Path = MODELS_FOLDER) -> ModelDefinition:
    """Read and check one definition; BuildError names the file, the field and what is allowed."""
    path = folder / name / "model.yaml"
    if not path.is_file():
        raise InputError(f"MODELS must be one of {', '.join(list_models(folder))}: got {name}")
    definition = _parse(_read_yaml(path), path)
    _check(definition, folder_name=name)
    _check_precisions(definition)
    _check_sections(definition)
    return definition


def _read_yaml(path: Path) -> dict[str, Any]:
    # Imported late: names are judged before anything is installed.
    import yaml

    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BuildError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(raw, dict):
        raise BuildError(f"{path} must hold fields and values: got {type(raw).__name__}")
    return raw


def _parse(raw: dict[str, Any], path: Path) -> ModelDefinition:
    raw = {"architecture_options": {}, "accuracy_gate": {}, "pretrained_sha256": "", **raw, "path": path}
    fields = set(ModelDefinition.__dataclass_fields__)
    missing, unknown = fields - set(raw), set(raw) - fields
    if missing or unknown:
        raise BuildError(f"{path}: missing fields {sorted(missing)}, unknown fields {sorted(unknown)}")
    labels, sizes = raw["labels"], raw["batch_sizes"]
    if not isinstance(labels, (str, list)) or not isinstance(sizes, list):
        raise BuildError(
            f"{path}: batch_sizes must be a list, labels a list or imagenet: got {sizes}, {labels}"
        )
    labels = labels if isinstance(labels, str) else tuple(str(label) for label in labels)
    return ModelDefinition(**{**raw, "labels": labels, "batch_sizes": tuple(sizes)})


def _check(definition: ModelDefinition, *, folder_name: str) -> None:
    path, sizes = definition.path, definition.batch_sizes
    if definition.name != folder_name:
        raise BuildError(f"{path}: name must be that of its folder, {folder_name}: got {definition.name}")
    if definition.kind not in KINDS:
        raise BuildError(f"{path}: kind must be one of {', '.join(KINDS)}: got {definition.kind}")
    if not re.fullmatch(r"([0-9a-f]{64})?", str(definition.pretrained_sha256)):
        raise BuildError(
            f"{path}: pretrained_sha256 must be 64 hexadecimal digits: got {definition.pretrained_sha256}"
        )
    if not sizes or sizes[0] != 1 or list(sizes) != sorted(set(sizes)):
        raise BuildError(f"{path}: batch_sizes must ascend from 1: got {list(sizes)}")


def _check_precisions(definition: ModelDefinition) -> None:
    path, precisions = definition.path, definition.precisions
    for name, recipe in precisions.items():
        where = f"{path}: precisions.{name}"
        _check_fields(where, recipe, PRECISION_FIELDS, optional=OPTIONAL_PRECISION_FIELDS)
        for field in PRECISION_FIELDS:
            _check_number(f"{where}.{field}", recipe[field])
    if definition.default_precision not in precisions:
        allowed = ", ".join(precisions)
        raise BuildError(
            f"{path}: default_precision must be one of {allowed}: got {definition.default_precision}"
        )
    if set(definition.worker_memory_mib) != set(precisions):
        raise BuildError(f"{path}: worker_memory_mib must have one number for each precision")
    mib = definition.request_memory_mib
    if not isinstance(mib, int) or isinstance(mib, bool) or mib < 1:
        raise BuildError(f"{path}: request_memory_mib must be a whole number above 0: got {mib!r}")


def _check_sections(definition: ModelDefinition) -> None:
    path = definition.path
    _check_fields(f"{path}: accuracy_gate", definition.accuracy_gate, (), optional=GATE_FIELDS)
    for field, value in definition.accuracy_gate.items():
        _check_number(f"{path}: accuracy_gate.{field}", value)
    kind, model = definition.kind, definition.model
    _check_fields(f"{path}: model", model, KINDS[kind], optional=OPTIONAL_KIND_FIELDS[kind])
    (_check_image if kind == "image" else _check_text)(path, model)


def _check_image(path: Path, model: dict[str, Any]) -> None:
    if "size" in model:
        _check_size(path, model["size"])
    allowed = {
        "preprocess": PREPROCESSINGS,
        "interpolation": INTERPOLATIONS,
        "antialias": (True, False),
        "problem_type": PROBLEM_TYPES,
    }
    for field, values in allowed.items():
        if field in model and model[field] not in values:
            named = ", ".join(str(value).lower() for value in values)
            raise BuildError(f"{path}: model.{field} must be one of {named}: got {model[field]}")
    for field in ("mean", "std"):
        levels = model.get(field, [0.5] * 3)
        if not isinstance(levels, list) or len(levels) != 3:
            raise BuildError(
                f"{path}: model.{field} must be a number for each of red, green, blue: got {levels}"
            )
        for level in levels:
            _check_number(f"{path}: model.{field}", level)
        if max(levels) > 1 or (field == "std" and min(levels) == 0):
            raise BuildError(
                f"{path}: model.{field} must be of levels from 0 to 1: got {levels}; of levels from 0 to 255 "
                "it is divided by 255"
            )


def _check_size(path: Path, size: Any) -> None:
    _check_fields(f"{path}: model.size", size, ("resize",), optional=("crop",))
    resize, crop = size["resize"], size.get("crop", size["resize"])
    for field, side in (("resize", resize), ("crop", crop)):
        sides = side if isinstance(side, list) else [side] * 2
        if len(sides) != 2 or not all(type(one) is int and one > 0 for one in sides):
            raise BuildError(
                f"{path}: model.size.{field} must be one number of pixels, or [height, width]: got {side}"
            )
    if "crop" not in size and not isinstance(resize, list):
        raise BuildError(
            f"{path}: model.size must have a crop beside resize: {resize}, the shorter side; or "
            f"resize: [{resize}, {resize}], which resizes both sides, whatever the picture's shape"
        )
    least, sides = ([one] * 2 if isinstance(one, int) else one for one in (resize, crop))
    if any(side > most for side, most in zip(sides, least, strict=True)):
        raise BuildError(f"{path}: model.size.crop must be at most resize, {resize}: got {crop}")


def _check_text(path: Path, model: dict[str, Any]) -> None:
    lengths = model["token_lengths"]
    if not isinstance(lengths, list) or not lengths or lengths != sorted(set(lengths)):
        raise BuildError(f"{path}: model.token_lengths must be a list that ascends: got {lengths}")
    _check_number(f"{path}: model.tokens_per_run", model["tokens_per_run"])
    row = model["row_tokens"]
    if row not in lengths or row > model["tokens_per_run"]:
        raise BuildError(
            f"{path}: model.row_tokens must be one of token_lengths, {lengths}, and at most tokens_per_run, "
            f"{model['tokens_per_run']}: got {row!r}"
        )


def _check_fields(where: str, value: Any, wanted: tuple[str, ...], *, optional: tuple[str, ...] = ()) -> None:
    if not isinstance(value, dict):
        raise BuildError(f"{where} must hold {', '.join(wanted or optional)}: got {value!r}")
    missing, unknown = set(wanted) - set(value), set(value) - {*wanted, *optional}
    if missing or unknown:
        raise BuildError(f"{where}: missing fields {sorted(missing)}, unknown fields {sorted(unknown)}")


def _check_number(where: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
        raise BuildError(f"{where} must be a number, 0 or more: got {value!r}")
