"""Reads a user's class names: one a line, a JSON list, or TorchServe's index_to_name.json."""

from __future__ import annotations

import json
from pathlib import Path

from models.errors import BuildError

NAMES = ("labels.txt", "labels.json", "index_to_name.json")


def find_labels_file(folder: Path) -> Path | None:
    """The labels beside a user's weights, if there are any."""
    return next((folder / name for name in NAMES if (folder / name).is_file()), None)


def read_labels(path: Path) -> list[str]:
    """Class names in the order of the model's outputs; BuildError when the file is not one of the forms."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".txt":
        return [line.strip() for line in text.splitlines() if line.strip()]
    try:
        return _parse(json.loads(text))
    except (ValueError, KeyError, TypeError) as error:
        raise BuildError(
            f'{path.name} must be a list of names or {{"0": "name", …}} without gaps: got {error!r}'
        ) from error


def _parse(raw: list | dict) -> list[str]:
    if isinstance(raw, list):
        return [str(name) for name in raw]
    # index_to_name.json of ImageNet gives ["n01440764", "tench"]: the last is the readable one.
    names = [raw[str(index)] for index in range(len(raw))]
    return [str(name[-1] if isinstance(name, list) else name) for name in names]
