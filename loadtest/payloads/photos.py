"""Photographs in the sizes and formats that people send, cut from the two that scikit-learn ships."""

from __future__ import annotations

import importlib.util
import io
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtest.errors import LoadTestError
from loadtest.payloads.payload import Payload

SCENES = ("china.jpg", "flower.jpg")
"""640×427 each."""
SEED = 24


@dataclass(frozen=True, kw_only=True)
class Form:
    """How a photograph is stored."""

    name: str
    size: tuple[int, int]
    """Width × height in pixels."""
    kind: str = "JPEG"
    """Pillow's name of the format."""
    options: dict[str, Any] = field(default_factory=dict)
    """Of Pillow's `save`."""


IMAGENET = Form(name="imagenet", size=(500, 375), options={"quality": 90})
"""A typical photograph of ImageNet."""
FORMS = (
    Form(name="thumbnail", size=(240, 160), options={"quality": 80}),
    IMAGENET,
    Form(name="upright", size=(375, 500), options={"quality": 90}),
    Form(name="web", size=(640, 427), options={"quality": 85}),
    Form(name="web-progressive", size=(800, 534), options={"quality": 80, "progressive": True}),
    Form(name="phone", size=(1600, 1200), options={"quality": 85}),
    Form(name="web-webp", size=(640, 427), kind="WEBP", options={"quality": 80}),
    Form(name="screenshot-png", size=(400, 267), kind="PNG"),
)
"""Mostly JPEG, as on the web."""


@dataclass(frozen=True, kw_only=True)
class View:
    """Which part of a scene is seen."""

    zoom: float = 1.0
    """Of its sides to the scene's."""
    place: tuple[float, float] = (0.5, 0.5)
    """Of the room that is left, how much is to the left and above."""


WHOLE = View()


def list_views(count: int, *, least: float = 0.6) -> list[View]:
    """The whole scene, then parts of it by chance, with a zoom from `least` to 0.9; the same every time."""
    chance = random.Random(SEED)
    parts = [
        View(zoom=chance.uniform(least, 0.9), place=(chance.random(), chance.random()))
        for _ in range(count - 1)
    ]
    return [WHOLE, *parts]


def find_scene(name: str) -> Path:
    """In scikit-learn's files; the package itself is not imported, nor what it needs."""
    found = importlib.util.find_spec("sklearn")
    if found is None or not found.origin:
        raise LoadTestError(
            "the photographs are scikit-learn's, which is not installed; run `make load-tools`"
        )
    return Path(found.origin).parent / "datasets" / "images" / name


def make_photo(scene: str, form: Form, view: View = WHOLE, *, model: str, name: str = "") -> Payload:
    """A part of a scene, scaled to a form's size without distortion."""
    import numpy as np
    from PIL import Image, ImageOps

    photo = Image.fromarray(np.asarray(Image.open(find_scene(scene))))  # without the file's own notes
    width, height = (round(view.zoom * side) for side in photo.size)
    left = round(view.place[0] * (photo.width - width))
    top = round(view.place[1] * (photo.height - height))
    cut = photo.crop((left, top, left + width, top + height))
    buffer = io.BytesIO()
    ImageOps.fit(cut, form.size, Image.Resampling.LANCZOS).save(buffer, format=form.kind, **form.options)
    label = "-".join([Path(scene).stem, name or form.name, f"{form.size[0]}x{form.size[1]}"])
    kind = f"image/{form.kind.lower()}"
    return Payload(name=label, body=buffer.getvalue(), content_type=kind, model=model)
