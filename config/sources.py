"""Where settings come from: kit.toml and the environment, by pydantic-settings; and how texts are read."""

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


def read_sources(model: Any) -> dict[str, dict[str, Any]]:
    """Source → values by name, the weakest first."""
    return {**_read_file(model), **_read_environment(model)}


def _read_file(model: Any) -> dict[str, dict[str, Any]]:
    """Of kit.toml or the file that KIT_FILE names; a table in `models` is of one
    model, and its settings are by model. ConfigError for what is none; {} where there is no kit.toml."""
    file = Path(os.environ.get(FILE_VARIABLE) or FILE)
    if not os.environ.get(FILE_VARIABLE) and not file.exists():
        return {}
    from pydantic_settings import TomlConfigSettingsSource  # 0.15 s, which most commands need not spend

    try:
        file.open().close()  # the source takes a file that is not there for an empty one
        raw = TomlConfigSettingsSource(model, file).toml_data
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


def _read_environment(model: Any) -> dict[str, dict[str, Any]]:
    """Of the variables that begin with KIT_; {} where there is none."""
    names = [name for name in os.environ if name.startswith(PREFIX) and not OF_CHILDREN.fullmatch(name)]
    if not names:
        return {}
    from pydantic_settings import EnvSettingsSource  # as above

    how: dict[str, Any] = {"case_sensitive": False, "env_prefix": PREFIX, "env_prefix_target": "all"}
    known = {key.rstrip("_").upper(): value for key, value in EnvSettingsSource(model, **how)().items()}
    unknown = {name.removeprefix(PREFIX): os.environ[name] for name in names}
    return {" (environment)": {**unknown, **known}}


def merge_layers(
    layers: Mapping[str, Mapping[str, Any]], default: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
    """(Values by field, problems) of sources, the weakest first; `default`: MODELS where none are given.

    What is given by model replaces that of the same model, what is given for all of them replaces all.
    """
    merged = {field: value for values in layers.values() for field, value in values.items()}
    served, wrong = list_served(merged.get("models", default)), []
    merged |= {field: {} for field in BY_MODEL if field in merged}
    for source, values in layers.items():
        for field in (one for one in BY_MODEL if one in values):
            try:
                own = parse_by_model(field.upper(), values[field], served)
            except ConfigError as problem:
                wrong.append(f"{problem}{source}")
                continue
            if isinstance(values[field], dict):  # kit.toml has tables of models that are not served now, too
                own = {model: value for model, value in own.items() if model in (ALL, *served)}
            merged[field] = own if ALL in own else {**merged[field], **own}
    return merged, wrong


def parse_by_model(name: str, value: Any, served: Sequence[str]) -> dict[str, Any]:
    """`8`, or `bert=8,resnet50=4`; of paths a comma counts before a model's name and `=` only."""
    if not isinstance(value, str):
        return dict(value) if isinstance(value, dict) else {ALL: value}
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


def list_served(models: str | Sequence[str]) -> list[str]:
    """The names that MODELS are served by, as far as paths tell."""
    words = split_words(models) if isinstance(models, str) else models
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
