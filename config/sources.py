"""Where settings come from: kit.toml and the environment, and how texts are read."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from config.errors import ConfigError

ALL = "*"
"""Whose value is that of every model that has none of its own."""
BY_MODEL = ("batch", "delay_ms", "backend", "weights", "calibration", "eval")
PATHS_BY_MODEL = ("WEIGHTS", "CALIBRATION", "EVAL")
"""Their values may hold blanks and commas, and a `~`, which no shell expands behind `MODEL=`."""
PREFIX, FILE, FILE_VARIABLE = "KIT_", "kit.toml", "KIT_FILE"
OF_CHILDREN = re.compile(r"KIT_(FILE|LISTENER|STATE_\w+)")
"""Variables that are no settings: the file's name, and what haproxy.cfg reads."""
CHECKOUT = Path(__file__).resolve().parent.parent


def read_sources() -> dict[str, dict[str, Any]]:
    """Source → values by name, the weakest first."""
    variables = {
        name.removeprefix(PREFIX): value
        for name, value in os.environ.items()
        if name.startswith(PREFIX) and not OF_CHILDREN.fullmatch(name)
    }
    return {**_read_file(), " (environment)": variables}


def _read_file() -> dict[str, dict[str, Any]]:
    """Of kit.toml or the file that KIT_FILE names; a table in `models` is of one
    model, and its settings are by model. ConfigError for what is none; {} where there is no kit.toml."""
    file = Path(os.environ.get(FILE_VARIABLE) or FILE)
    if not os.environ.get(FILE_VARIABLE) and not file.exists():
        return {}
    # 0.15 s, which most commands need not spend
    from pydantic_settings import BaseSettings, TomlConfigSettingsSource

    try:
        file.open().close()  # the source takes a file that is not there for an empty one
        raw = TomlConfigSettingsSource(BaseSettings, file).toml_data
    except (OSError, ValueError) as problem:
        raise ConfigError(f"{file} must be a file in TOML: got {problem}") from problem
    found = {key.upper(): value for key, value in raw.items()}
    if isinstance(tables := raw.get("models"), dict):
        found["MODELS"] = [*tables]
        for model_name, table in tables.items():
            other = [key for key in table if key not in BY_MODEL] if isinstance(table, dict) else [table]
            if other:
                forms = f"[models.{model_name}] must have {', '.join(BY_MODEL)}"
                raise ConfigError(f"{forms}: got {', '.join(map(str, other))} ({file})")
            for name, value in ((key.upper(), value) for key, value in table.items()):
                of_all = found.get(name, {})
                of_all = of_all if isinstance(of_all, dict) else {ALL: of_all}
                found[name] = {**of_all, model_name: value}
    return {f" ({file})": found}


def parse_by_model(name: str, value: Any, served: Sequence[str]) -> dict[str, Any]:
    """`8`, or `bert=8,resnet50=4`; of paths a comma counts before a model's name and `=` only."""
    if isinstance(value, dict):  # kit.toml has tables of models that are not served now, too
        return {model: own for model, own in value.items() if model in (ALL, *served)}
    if not isinstance(value, str):
        return {ALL: value}
    found: dict[str, Any] = {}
    paths = name in PATHS_BY_MODEL
    for part in _split_paths(value, served) if paths else value.replace(",", " ").split():
        model, separator, own = part.partition("=")
        if not separator or (paths and ("/" in model or exists(part))):
            model, own = ALL, part
        if not model or not own or model in found:
            raise ConfigError(f"{name} must have one value for each model: got {value}")
        found[model] = own
    return found


def join_by_model(values: Mapping[str, Any]) -> str:
    """Back, as the command line takes it."""
    words = (f"{value}" if model == ALL else f"{model}={value}" for model, value in sorted(values.items()))
    return ",".join(words)


def _split_paths(value: str, served: Sequence[str]) -> list[str]:
    """What exists is a path, even with an equals sign in it."""
    if exists(value):
        return [value]
    known = {*served, *(file.parent.name for file in CHECKOUT.glob("models/*/model.yaml"))}
    return [part.strip() for part in re.split(rf",(?=\s*(?:{'|'.join(map(re.escape, known))})=)", value)]


def exists(text: str) -> bool:
    try:
        return Path(text).expanduser().exists()
    except (OSError, RuntimeError):  # a name too long, or ~ of a user who is not there
        return False


def split_words(text: str) -> list[str]:
    """A list as people write it, with blanks or commas; one path may hold both."""
    whole = text.endswith(".mar") and exists(text)
    return [text] if whole else text.replace(",", " ").split()


def list_served(models: Any) -> list[str]:
    """The names that MODELS are served by, as far as paths tell; [] for what is no list."""
    words = split_words(models) if isinstance(models, str) else models
    words = map(str, words) if isinstance(words, (list, tuple)) else ()
    return [Path(name).stem if name.endswith(".mar") else name for name in words]


def list_text_problems(name: str, value: Any) -> list[str]:
    """Of what becomes words of commands, lines of configuration files, and paths in them."""
    words = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
    wrong = []
    for text in (word for word in words if isinstance(word, str)):
        if os.fsencode(text).decode("utf-8", errors="replace") != text:
            wrong.append(f"must be UTF-8: got {os.fsencode(text)!r}; do: give the path another name")
        elif any(ord(letter) < ord(" ") or letter == "\x7f" for letter in text):
            wrong.append(f"must be one line, without control characters: got {text!r}")
        elif text.startswith("~") and name not in PATHS_BY_MODEL:
            wrong.append(f"must be a path that the shell has expanded: got {text}; do: write $HOME")
    return wrong


def explain_unknown(name: str, known: Collection[str]) -> str:
    """With the setting that is meant."""
    near = difflib.get_close_matches(name.upper(), known, n=1)
    return f"unknown setting {name}; " + (f"did you mean {near[0]}?" if near else "`make help` lists them")
