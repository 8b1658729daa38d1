"""The request that an archive is proven with: a person's file or text, else one drawn for its task."""

from __future__ import annotations

import json
import mimetypes
from pathlib import Path

from handlers.definition import Example
from models.definition import ModelDefinition
from models.errors import BuildError
from models.samples import SAMPLE_TEXT, write_sample_image

TEXT = "text/plain; charset=utf-8"
DRAWN = "image"
"""In place of a file: one that is drawn."""
MOST_CHARACTERS = 4096
"""Longer than any path, and than a request that proves something must be."""


def stage_example(definition: ModelDefinition, staging: Path, *, takes: str = "") -> Example:
    """Write its body; `takes` is what is drawn where model.yaml names no example: `image` or `text`."""
    said = definition.example
    if not isinstance(said, str):
        (staging / "example.json").write_text(json.dumps(said, ensure_ascii=False), encoding="utf-8")
        return Example(file="example.json", content_type="application/json")
    file = definition.folder / said
    if said and len(said) < MOST_CHARACTERS and file.is_file():
        kind, _ = mimetypes.guess_type(file.name)
        if kind is None:
            raise BuildError(f"{file} must end in what says its content type, as .jpg, .json, .txt: got none")
        kind = TEXT if kind == "text/plain" else kind
        (staging / file.name).write_bytes(file.read_bytes())
        return Example(file=file.name, content_type=kind)
    if said == DRAWN or (not said and takes == "image"):
        write_sample_image(staging / "example.jpg")
        return Example(file="example.jpg", content_type="image/jpeg")
    if not said and not takes:
        raise BuildError(
            f"{definition.path}: example must name a file beside it, or be text or JSON: got none"
        )
    (staging / "example.txt").write_text(said or SAMPLE_TEXT, encoding="utf-8")
    return Example(file="example.txt", content_type=TEXT)
