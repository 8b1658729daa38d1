"""Parses what a person asks for with MODELS=, WEIGHTS=, PRECISION=, CALIBRATION= and EVAL=.

The one parser of these values. Standard library only: they are validated before anything is installed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from handlers.backends import catalogue
from handlers.backends.catalogue import BASELINE
from models.errors import InputError
from models.files import find_weights_file
from models.names import list_models

NOT_GIVEN = ""
WORDS = ("auto", "pretrained", "random")
WEIGHTS_FORMS = "auto, pretrained, random, a path that exists, or MODEL=… for each model, separated by commas"
DATA_FORMS = "a path that exists, or MODEL=PATH for each model, separated by commas"
PRECISIONS = (BASELINE, "bf16", "int8")
"""As PRECISION= knows them; a test compares."""


@dataclass(frozen=True, kw_only=True)
class WeightsRequest:
    """Where one model's weights shall come from."""

    source: str
    """`auto`, `pretrained`, `random` or `path`; empty when WEIGHTS was not given for this model, which
    keeps what an archive was built with, and is `auto` where there is none."""
    path: Path | None = None
    allow_pickle: bool = False
    """ALLOW_PICKLE: read .pt, .pth and .bin in the build itself, with all its rights."""


@dataclass(frozen=True, kw_only=True)
class DataRequest:
    """A person's own inputs for one model; None takes synthetic ones."""

    calibration: Path | None = None
    """Inputs that INT8's scales are chosen by."""
    evaluation: Path | None = None
    """Held-out inputs, with labels or without, that the accuracy gate judges by."""


def parse_names(text: str, known: Sequence[str], default: Sequence[str]) -> list[str]:
    """The models named in MODELS, in order and once each; `default` where none is named."""
    names = list(dict.fromkeys(text.replace(",", " ").split())) or list(default)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InputError(f"MODELS must be one of {', '.join(known)}: got {' '.join(unknown)}")
    return names


def parse_weights(text: str, names: Sequence[str]) -> dict[str, WeightsRequest]:
    """One request for each named model; InputError when a path cannot be told apart or does not exist."""
    values = _assign("WEIGHTS", text, names, words=WORDS, forms=WEIGHTS_FORMS)
    return {name: _parse_one(values.get(name, NOT_GIVEN)) for name in names}


def parse_precisions(text: str) -> tuple[str, ...]:
    """PRECISION, which may name several; InputError when one is none."""
    asked = tuple(dict.fromkeys(text.replace(",", " ").split())) or (BASELINE,)
    if not {*asked} <= {*PRECISIONS}:
        raise InputError(f"PRECISION must be of {', '.join(PRECISIONS)}: got {text}")
    return asked


def parse_backend(text: str, names: Sequence[str], package_set: str) -> dict[str, str]:
    """Backend by model; InputError when it is none. A model that is not served, and a backend that
    is not installed, are the plan's to refuse."""
    try:
        chosen = catalogue.parse_backend(text)
    except ValueError as problem:
        raise InputError(str(problem)) from problem
    return {name: catalogue.find_asked(chosen, name, package_set) for name in names}


def parse_allow_pickle(text: str) -> bool:
    """ALLOW_PICKLE; InputError when it is neither 0 nor 1."""
    if text not in (NOT_GIVEN, "0", "1"):
        raise InputError(f"ALLOW_PICKLE must be one of 0, 1: got {text}")
    return text == "1"


def parse_paths(variable: str, text: str, names: Sequence[str]) -> dict[str, Path]:
    """`PATH` for one model or `MODEL=PATH,…`; models that are not named have none."""
    values = _assign(variable, text, names, words=(), forms=DATA_FORMS)
    return {name: Path(value).expanduser().resolve() for name, value in values.items()}


def check_used(precisions: Sequence[str], data: Iterable[DataRequest]) -> None:
    """InputError for data that would judge nothing: FP32 alone is what the others are compared with."""
    given = any(one != DataRequest() for one in data)
    if given and {*precisions} == {BASELINE}:
        raise InputError(
            f"CALIBRATION and EVAL are of precisions beside {BASELINE}: got PRECISION={BASELINE}; "
            "add PRECISION=int8 or bf16"
        )


def check_weights(requests: dict[str, WeightsRequest]) -> None:
    """InputError when a folder does not say which of its files holds the weights."""
    for request in requests.values():
        if request.path is not None:
            find_weights_file(request.path)


def _parse_one(value: str) -> WeightsRequest:
    if value in (NOT_GIVEN, *WORDS):
        return WeightsRequest(source=value)
    return WeightsRequest(source="path", path=Path(value).expanduser().resolve())


def _assign(
    variable: str, text: str, names: Sequence[str], *, words: Collection[str], forms: str
) -> dict[str, str]:
    """Value by model; every value is one of `words` or a path that exists."""
    values: dict[str, str] = {}
    for part in _split(text.strip(), names, words):
        targets, value = _read_part(variable, part, names, words)
        _check_value(variable, part, value, words=words, forms=forms, names=names)
        if value not in words and len(targets) > 1:
            raise InputError(
                f"{variable}={part} is a path for {len(targets)} models; "
                f"write {variable}={names[0]}={part} or MODELS={names[0]}"
            )
        for target in targets:
            if target in values:
                raise InputError(f"{variable} must have one value for each model: got two for {target}")
            values[target] = value
    return values


def _split(text: str, names: Sequence[str], words: Collection[str]) -> list[str]:
    """At the commas before a model's name and an equals sign: any other is part of a path."""
    if not text or _is_value(text, words):
        return [text] if text else []
    known = "|".join(map(re.escape, {*names, *list_models()}))
    return [part.strip() for part in re.split(f",(?=\\s*(?:{known})=)", text)]


def _read_part(
    variable: str, part: str, names: Sequence[str], words: Collection[str]
) -> tuple[list[str], str]:
    """(the models it is for, the value). What exists is a path, even with an equals sign in it."""
    name, separator, value = part.partition("=")
    if not separator or "/" in name or _is_value(part, words):
        return list(names), part
    if name not in names:
        raise InputError(
            f"{variable} names {name}, which is not among MODELS ({', '.join(names)}): got {part}"
        )
    return [name], value


def _check_value(
    variable: str, part: str, value: str, *, words: Collection[str], forms: str, names: Sequence[str]
) -> None:
    if not value:
        raise InputError(f"{variable} must be {forms}: got {part!r} without a value")
    if not _is_value(value, words):
        commas = f"; a comma ends it before MODEL= of {', '.join(names)}" if "," in value else ""
        raise InputError(f"{variable} must be {forms}: got {value}, which does not exist{commas}")


def _is_value(text: str, words: Collection[str]) -> bool:
    return text in words or (bool(text) and _exists(text))


def _exists(text: str) -> bool:
    try:
        return Path(text).expanduser().exists()
    except (OSError, RuntimeError):  # a name too long, or ~ of a user who is not there
        return False
