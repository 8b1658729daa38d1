"""Real photographs to send, from a package that ships them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.payloads import JPEG, Payload, write_list

SIZE = (500, 375)
"""Width × height in pixels of a typical ImageNet photograph."""
QUALITY = 90
SCENES = ("china.jpg", "flower.jpg")
"""What scikit-learn ships, 640×427 each."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """How a photograph is stored."""

    width: int
    height: int
    kind: str
    """Pillow's name of the format."""
    content_type: str
    options: tuple[tuple[str, Any], ...] = (("quality", QUALITY),)
    """Of Pillow's `save`."""

    @property
    def suffix(self) -> str:
        return f"{self.width}x{self.height}.{self.kind.lower()}"


FORMS = (
    Form(width=320, height=240, kind="JPEG", content_type=JPEG),
    Form(width=500, height=375, kind="JPEG", content_type=JPEG),
    Form(width=375, height=500, kind="JPEG", content_type=JPEG),
    Form(
        width=640,
        height=427,
        kind="JPEG",
        content_type=JPEG,
        options=(("quality", 75), ("progressive", True)),
    ),
    Form(width=1600, height=1200, kind="JPEG", content_type=JPEG),
    Form(width=500, height=375, kind="PNG", content_type="image/png", options=()),
    Form(width=640, height=480, kind="WEBP", content_type="image/webp"),
)
"""What people send: small and large, upright, progressive, other formats."""


def write_photo(path: Path) -> Path:
    """scikit-learn's china.jpg cut and scaled to 500×375, as a JPEG."""
    _write(path, SCENES[0], Form(width=SIZE[0], height=SIZE[1], kind="JPEG", content_type=JPEG))
    return path


def write_photos(folder: Path, *, model: str, forms: Sequence[Form] = FORMS) -> Path:
    """A folder of payloads: each scene in each form."""
    folder.mkdir(parents=True, exist_ok=True)
    payloads = []
    for scene in SCENES:
        for form in forms:
            file = f"{Path(scene).stem}-{form.suffix}"
            _write(folder / file, scene, form)
            payloads.append(Payload(file=file, content_type=form.content_type, path=f"/predictions/{model}"))
    return write_list(folder, payloads)


def _write(path: Path, scene: str, form: Form) -> None:
    from PIL import Image, ImageOps
    from sklearn.datasets import load_sample_image

    photo = Image.fromarray(load_sample_image(scene))
    cut = ImageOps.fit(photo, (form.width, form.height), Image.Resampling.LANCZOS)
    cut.save(path, format=form.kind, **dict(form.options))
