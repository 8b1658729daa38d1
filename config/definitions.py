"""Reads of models/<name>/model.yaml what planning needs: kind, batch sizes, memory, precisions.

How a model computes stays in its definition; here only its size counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from config.errors import ConfigError, must_be_one_of

DEFINITION_FILE = "model.yaml"

KINDS = {
    bool: "true or false",
    dict: "a mapping that is not empty",
    list: "a list that is not empty",
    int: "a whole number above 0",
    str: "a text",
}


@dataclass(frozen=True, kw_only=True)
class ModelDefinition:
    """One model, as far as planning needs to know it."""

    name: str
    """The folder's name, and the model's in every URL."""
    kind: str
    """What it takes: image or text; others have no limits of a request."""
    batch_sizes: tuple[int, ...]
    """Batch sizes the handler warms when it loads, ascending."""
    worker_memory_mib: Mapping[str, int]
    """Precision → resident memory of one worker, measured."""
    request_memory_mib: int
    """What the worst batch of requests adds to that beside its bodies, measured."""
    precisions: tuple[str, ...]
    """Precisions the archive can serve."""
    default_build: bool
    """False: only served when named."""
    token_lengths: tuple[int, ...] = ()
    """Widths of rows of texts; empty where all inputs have one size."""
    tokens_per_run: int | None = None
    """Rows × width that a run of more than one row may have; None is no limit."""
    max_texts_per_request: int = 1
    """Texts that one request may hold."""

    def count_shapes(self) -> int:
        """The most shapes of the input that a worker warms (handlers/shared/shapes.py): with a row for each
        text, as a model is served that cannot be packed."""
        return sum(
            rows == 1 or self.tokens_per_run is None or rows * length <= self.tokens_per_run
            for length in self.token_lengths or (0,)
            for rows in self.batch_sizes
        )


def list_models(models_dir: Path) -> tuple[str, ...]:
    """Names of the folders that hold a definition."""
    return tuple(sorted(file.parent.name for file in models_dir.glob(f"*/{DEFINITION_FILE}")))


def read_definitions(models_dir: Path, names: Sequence[str] = ()) -> tuple[ModelDefinition, ...]:
    """The named models, or those that are built by default, in alphabetical order."""
    available = list_models(models_dir)
    if not available:
        raise ConfigError(f"no model below {models_dir}: a model is a folder with {DEFINITION_FILE}")
    for name in names:
        if name not in available:
            raise must_be_one_of("MODELS", name, available)
    definitions = [
        read_definition(models_dir / name / DEFINITION_FILE) for name in sorted(set(names) or available)
    ]
    chosen = tuple(model for model in definitions if names or model.default_build)
    if not chosen:
        raise ConfigError(
            f"no model below {models_dir} has default_build: true; name some of {', '.join(available)}"
        )
    return chosen


def read_definition(file: Path) -> ModelDefinition:
    """One definition; a missing or wrong field is named with its file."""
    raw = _read_yaml(file)
    name = _field(raw, "name", str, file)
    if name != file.parent.name:
        raise ConfigError(f"name must be its folder's, {file.parent.name}: got {name} ({file})")
    return ModelDefinition(
        name=name,
        kind=_field(raw, "kind", str, file),
        batch_sizes=_parse_batch_sizes(_field(raw, "batch_sizes", list, file), file),
        worker_memory_mib={
            precision: _parse_positive(f"worker_memory_mib.{precision}", mib, file)
            for precision, mib in _field(raw, "worker_memory_mib", dict, file).items()
        },
        request_memory_mib=_parse_positive(
            "request_memory_mib", _field(raw, "request_memory_mib", int, file), file
        ),
        precisions=tuple(sorted(_field(raw, "precisions", dict, file))),
        default_build=_field(raw, "default_build", bool, file),
        **_parse_lengths(raw.get("model") or {}, file),
    )


def _read_yaml(file: Path) -> dict[str, Any]:
    import yaml  # here, because set-up imports this package before PyYAML is installed

    try:
        raw = yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.YAMLError as problem:
        raise ConfigError(f"not YAML: {file}: {problem}") from problem
    if not isinstance(raw, dict):
        raise ConfigError(f"a definition is a mapping of fields: got {type(raw).__name__} ({file})")
    return raw


def _field(raw: Mapping[str, Any], name: str, kind: type, file: Path) -> Any:
    if name not in raw:
        raise ConfigError(f"field {name} is missing: add it ({file})")
    if not isinstance(raw[name], kind) or not (raw[name] or kind is bool):
        raise ConfigError(f"{name} must be {KINDS[kind]}: got {raw[name]!r} ({file})")
    return raw[name]


def _parse_batch_sizes(sizes: list[Any], file: Path) -> tuple[int, ...]:
    if not all(_is_positive(size) for size in sizes):
        raise ConfigError(f"batch_sizes must be whole numbers above 0: got {sizes} ({file})")
    return tuple(sorted(sizes))


def _parse_lengths(model: Any, file: Path) -> dict[str, Any]:
    """Of the section the handler reads; models of images have none of these."""
    fields = model if isinstance(model, dict) else {}
    lengths, per_run = fields.get("token_lengths", []), fields.get("tokens_per_run")
    if not isinstance(lengths, list) or not all(_is_positive(length) for length in lengths):
        raise ConfigError(f"model.token_lengths must be whole numbers above 0: got {lengths!r} ({file})")
    texts = fields.get("max_texts_per_request", 1)
    return {
        "token_lengths": tuple(sorted(lengths)),
        "tokens_per_run": None if per_run is None else _parse_positive("model.tokens_per_run", per_run, file),
        "max_texts_per_request": _parse_positive("model.max_texts_per_request", texts, file),
    }


def _parse_positive(field: str, number: Any, file: Path) -> int:
    if not _is_positive(number):
        raise ConfigError(f"{field} must be a whole number above 0: got {number!r} ({file})")
    return int(number)


def _is_positive(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number > 0
