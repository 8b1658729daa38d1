"""Reads a user's class names: one a line, a JSON list, or TorchServe's index_to_name.json."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from models.errors import BuildError


def read_labels(path: Path) -> list[str]:
    """Class names in the order of the model's outputs; BuildError when the file is not one of the forms."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix == ".txt":
            return [line.strip() for line in split_lines(text) if line.strip()]
        return _parse(json.loads(text))
    except (ValueError, KeyError, TypeError) as error:
        raise BuildError(
            f"{path.name} must be names in UTF-8, one a line in a .txt file, else a JSON list of names or "
            f'{{"0": "name", …}} without gaps: got {error!r}'
        ) from error


def split_lines(text: str) -> list[str]:
    """Lines as editors show them: str.splitlines also ends one at U+0085 and U+2028, which texts hold."""
    return re.split("\r\n|\n|\r", text)


def check_different(labels: Sequence[str], *, source: str) -> None:
    """BuildError when two classes share a name; for answers that tell classes apart by their names alone."""
    doubles = [name for name, count in Counter(labels).items() if count > 1]
    if doubles:
        raise BuildError(f"{source}: each class must have a name of its own: got {doubles[0]!r} repeatedly")


def _parse(raw: list | dict) -> list[str]:
    if isinstance(raw, list):
        return [str(name) for name in raw]
    # index_to_name.json of ImageNet gives ["n01440764", "tench"]: the last is the readable one.
    names = [raw[str(index)] for index in range(len(raw))]
    return [str(name[-1] if isinstance(name, list) else name) for name in names]
