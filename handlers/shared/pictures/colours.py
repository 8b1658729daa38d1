"""From a decoded picture in any of Pillow's modes to RGB as people see it; the table is docs/requests.md.

In strips, because a second whole picture beside the first is what memory is planned by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from PIL import Image

from handlers.shared.errors import RequestError
from handlers.shared.pictures.picture import Picture
from handlers.shared.pictures.profiles import Transform, find_transform, lab_transform

Convert = Callable[[Image.Image], "Image.Image | np.ndarray"]

STRIP_PIXELS = 1 << 20
WITH_ALPHA = frozenset({"RGBA", "RGBa", "LA", "La", "PA"})
RANGES = (1.0, 255.0, 65535.0)
"""What white may be in pictures of numbers: 1 by convention of real ones, or the largest of 8 or 16 bits."""


def to_rgb(image: Image.Image, picture: Picture) -> torch.Tensor:
    """uint8 (height, width, 3) of a decoded picture."""
    convert = _choose(image, picture)
    if image.width * image.height <= STRIP_PIXELS:
        return torch.from_numpy(np.asarray(convert(image)))
    pixels = np.empty((image.height, image.width, 3), dtype=np.uint8)
    for top, strip in _cut(image):
        pixels[top : top + strip.height] = np.asarray(convert(strip))
    return torch.from_numpy(pixels)


def transform_sample(sample: torch.Tensor, profile: bytes | None, mode: str) -> torch.Tensor:
    """The model's own picture by the profile: 50,000 pixels instead of all, and white stays white.

    Inks are not here: they become RGB by their profile before anything is resized.
    """
    space = "L" if mode in ("1", "L", "LA", "La") or mode.startswith("I;16") else "RGB"
    transform = None if mode in ("CMYK", "LAB", "I", "F") else find_transform(profile, space)
    if transform is None:
        return sample
    array = np.ascontiguousarray(sample[..., 0] if space == "L" else sample)
    return torch.from_numpy(np.array(transform.apply(Image.fromarray(array))))


def _cut(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    rows = max(1, STRIP_PIXELS // image.width)
    for top in range(0, image.height, rows):
        yield top, image.crop((0, top, image.width, min(top + rows, image.height)))


def _choose(image: Image.Image, picture: Picture) -> Convert:
    if image.mode == "RGB" and "transparency" not in image.info:
        return lambda strip: strip
    if image.mode in ("I", "F"):
        return _scale_to_range(image, picture)
    if image.mode.startswith("I;16"):
        return _scale_sixteen_bits(image, picture)
    if image.mode == "LAB":
        return _by(lab_transform())
    if image.mode == "CMYK" and (transform := find_transform(picture.profile, "CMYK")):
        return _by(transform)
    if image.mode in WITH_ALPHA or "transparency" in image.info:
        return _put_on_white
    return lambda strip: strip.convert("RGB")


def _by(transform: Transform) -> Convert:
    return transform.apply


def _put_on_white(strip: Image.Image) -> Image.Image:
    if strip.mode == "La":
        strip = strip.convert("LA")
    if strip.mode == "RGB" and max(strip.info["transparency"]) > 255:
        # Of a PNG with 16 bits a channel, of which Pillow keeps the upper 8.
        strip.info["transparency"] = tuple(level >> 8 for level in strip.info["transparency"])
    coloured = strip.convert("RGBA")
    white = Image.new("RGB", strip.size, "white")
    white.paste(coloured, mask=coloured.getchannel("A"))
    return white


def _scale_sixteen_bits(image: Image.Image, picture: Picture) -> Convert:
    """65535 is white. Pillow would clip at 255."""
    transparent = image.info.get("transparency")

    def convert(strip: Image.Image) -> np.ndarray:
        levels = np.asarray(strip).astype(np.uint32)
        grey = ((levels + 128) // 257).astype(np.uint8)
        grey = 255 - grey if picture.inverted else grey
        return _repeat(grey if transparent is None else np.where(levels == transparent, np.uint8(255), grey))

    return convert


def _scale_to_range(image: Image.Image, picture: Picture) -> Convert:
    """32-bit pictures do not say what white is: the first of RANGES that holds all values, else their own."""
    unsigned = image.mode == "I" and picture.unsigned
    low, high = _find_range(image, unsigned=unsigned)

    def convert(strip: Image.Image) -> np.ndarray:
        share = (_numbers(strip, unsigned=unsigned) - low) / max(high - low, np.finfo(np.float64).tiny)
        grey = np.rint(share.clip(0, 1) * 255).astype(np.uint8)
        return _repeat(255 - grey if picture.inverted else grey)

    return convert


def _find_range(image: Image.Image, *, unsigned: bool) -> tuple[float, float]:
    low, high = np.inf, -np.inf
    for _top, strip in _cut(image):
        numbers = _numbers(strip, unsigned=unsigned)
        low, high = min(low, float(numbers.min())), max(high, float(numbers.max()))
        # A NaN is neither smaller nor larger, so it is asked for.
        if not np.isfinite(numbers).all():
            raise RequestError("the image holds pixels that are no number (NaN or infinity)", status=422)
    white = next((white for white in RANGES[image.mode == "I" :] if high <= white), None)
    return (low, high) if low < 0 or white is None else (0.0, white)


def _numbers(strip: Image.Image, *, unsigned: bool) -> np.ndarray:
    numbers = np.asarray(strip)
    return (numbers.view(np.uint32) if unsigned else numbers).astype(np.float64)


def _repeat(grey: np.ndarray) -> np.ndarray:
    return np.broadcast_to(grey[..., None], (*grey.shape, 3))
