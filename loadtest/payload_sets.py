"""What is sent: real photographs of several sizes and formats, texts of realistic lengths, or a user's own.

Photographs are the two that scikit-learn ships; sizes are those of thumbnails, ImageNet, the web and phones.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.errors import LoadTestError
from loadtest.photos import QUALITY, SIZE

IMAGE_TYPES = {
    ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".png": "image/png", ".webp": "image/webp",
    ".bmp": "image/bmp", ".tif": "image/tiff", ".tiff": "image/tiff",
}  # fmt: skip
MOST = 200
"""More payloads of a folder are thinned evenly; each is held in the generator's memory."""
PHOTO_FORMATS: tuple[tuple[str, int, str, dict[str, Any]], ...] = (
    # (name, width of the longer side, Pillow's format, options): mostly JPEG, as on the web.
    ("thumbnail", 240, "JPEG", {"quality": 80}),
    ("imagenet", 500, "JPEG", {"quality": QUALITY}),
    ("web", 640, "JPEG", {"quality": 85}),
    ("web-progressive", 800, "JPEG", {"quality": 80, "progressive": True}),
    ("phone", 1600, "JPEG", {"quality": 85}),
    ("web-webp", 640, "WEBP", {"quality": 80}),
    ("screenshot-png", 400, "PNG", {}),
)
TEXT_COUNT = 32
MEDIAN_WORDS, WORDS_SPREAD = 22, 0.9
"""Lengths are log-normal, as comments and reviews are: half below 22 words, a few of hundreds."""
FEWEST_WORDS, MOST_WORDS = 3, 330


@dataclass(frozen=True, kw_only=True)
class Payload:
    """One request body."""

    name: str
    """Says what it is."""
    body: bytes
    content_type: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.body).hexdigest()[:16]


def make_payloads(asked: str) -> list[Payload]:
    """A set by its name, or the files of a folder; LoadTestError says what is known."""
    if asked in SETS:
        return SETS[asked]()
    if not Path(asked).is_dir():
        raise LoadTestError(f"PAYLOADS must be one of {', '.join(SETS)}, or a folder: got {asked}")
    return read_folder(Path(asked))


def read_folder(folder: Path) -> list[Payload]:
    """Images as they are; each line of a .txt file as a text."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    images = [file for file in files if file.suffix.lower() in IMAGE_TYPES]
    texts = [file for file in files if file.suffix.lower() == ".txt"]
    if bool(images) == bool(texts):
        what = "both" if images else "neither"
        raise LoadTestError(f"{folder} must hold images ({', '.join(IMAGE_TYPES)}) or .txt files: got {what}")
    found = [_read_image(file, folder) for file in images] or [
        one for file in texts for one in _read_texts(file)
    ]
    if not found:
        raise LoadTestError(f"{folder} must hold at least one text: got only empty lines")
    return found[:: -(-len(found) // MOST)]


def _read_image(file: Path, folder: Path) -> Payload:
    kind = IMAGE_TYPES[file.suffix.lower()]
    return Payload(name=str(file.relative_to(folder)), body=file.read_bytes(), content_type=kind)


def _read_texts(file: Path) -> list[Payload]:
    lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    return [make_text(f"{file.name}:{number}", line) for number, line in enumerate(lines, 1) if line]


def make_text(name: str, text: str) -> Payload:
    """A text as clients send it."""
    body = json.dumps({"text": text}, ensure_ascii=False).encode()
    return Payload(name=name, body=body, content_type="application/json")


def make_photos() -> list[Payload]:
    """Two photographs in seven sizes and formats each, each cut a little differently."""
    from PIL import Image
    from sklearn.datasets import load_sample_image

    found = []
    for source in ("china.jpg", "flower.jpg"):
        photo = Image.fromarray(load_sample_image(source))
        for number, (name, longer, kind, options) in enumerate(PHOTO_FORMATS):
            view = photo.crop((6 * number, 4 * number, photo.width - 3 * number, photo.height - 2 * number))
            scaled = view.resize((longer, round(longer * view.height / view.width)), Image.Resampling.LANCZOS)
            found.append(_encode(f"{Path(source).stem}-{name}", scaled, kind, options))
    return found


def _encode(name: str, image: object, kind: str, options: dict[str, object]) -> Payload:
    buffer = io.BytesIO()
    image.save(buffer, format=kind, **options)  # type: ignore[attr-defined]
    label = f"{name}-{image.width}x{image.height}"  # type: ignore[attr-defined]
    return Payload(name=label, body=buffer.getvalue(), content_type=f"image/{kind.lower()}")


def make_one_photo() -> list[Payload]:
    """The one 500×375 JPEG of `make compare-stock`, for figures that others made with one image."""
    from PIL import Image, ImageOps
    from sklearn.datasets import load_sample_image

    photo = ImageOps.fit(Image.fromarray(load_sample_image("china.jpg")), SIZE, Image.Resampling.LANCZOS)
    return [_encode("china", photo, "JPEG", {"quality": QUALITY})]


def make_texts() -> list[Payload]:
    """Sentences of opinions in log-normal lengths; the same every time."""
    random = np.random.default_rng(11)
    # Evenly spaced quantiles instead of draws: so few draws would make another mix of each seed.
    shares = (np.arange(TEXT_COUNT) + 0.5) / TEXT_COUNT
    lengths = np.exp(np.log(MEDIAN_WORDS) + WORDS_SPREAD * _normal_quantile(shares))
    words = [round(length) for length in np.clip(lengths, FEWEST_WORDS, MOST_WORDS)]
    return [
        make_text(f"text-{n:02d}-{count}-words", _write_text(count, random)) for n, count in enumerate(words)
    ]


def _normal_quantile(shares: np.ndarray) -> np.ndarray:
    from statistics import NormalDist

    return np.array([NormalDist().inv_cdf(float(share)) for share in shares])


def make_one_text() -> list[Payload]:
    """One sentence of 20 words."""
    return [make_text("text-20-words", _write_text(20, np.random.default_rng(5)))]


SUBJECTS = (
    "the room|our waiter|this film|the second chapter|the battery|my new phone|the late train|the garden"
)
VERBS = "was|felt|turned out|seemed|remained|had been|looked|became"
JUDGEMENTS = (
    "far better than we had hoped|a little too loud for me|worth every single penny|rather slow on busy days|"
    "hard to recommend to anyone|surprisingly quiet and clean|exactly what the picture promised|broken again"
)
JOINERS = "and|but|although|because|while|so|even though|and then"


def _write_text(count: int, random: np.random.Generator) -> str:
    words: list[str] = []
    while len(words) < count:
        joiner = _choose(JOINERS, random) if words else ""
        clause = (
            f"{joiner} {_choose(SUBJECTS, random)} {_choose(VERBS, random)} {_choose(JUDGEMENTS, random)}"
        )
        words += clause.split()
    text = " ".join(words[:count])
    return f"{text[:1].upper()}{text[1:]}."


def _choose(options: str, random: np.random.Generator) -> str:
    listed = options.split("|")
    return listed[int(random.integers(len(listed)))]


SETS: dict[str, Callable[[], list[Payload]]] = {
    "photos": make_photos, "texts": make_texts, "one-photo": make_one_photo, "one-text": make_one_text,
}  # fmt: skip
