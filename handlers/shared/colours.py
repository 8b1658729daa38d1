"""From a decoded image in any of Pillow's modes to RGB as people see it; the table is docs/api.md.

In strips, because a second whole image beside the first is what memory is planned by. Embedded ICC profiles
are turned into sRGB by LittleCMS (Pillow's ImageCms); one that cannot be used is passed over, as browsers do.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache, lru_cache

import numpy as np
import torch
from PIL import Image, ImageCms

Transform = ImageCms.ImageCmsTransform
Convert = Callable[[Image.Image], "Image.Image | np.ndarray"]

STRIP_PIXELS = 1 << 20
LARGEST_PROFILE = 4 << 20
"""Bytes; the profiles of printing presses have 0.5 to 3 MB. A larger one is no profile."""
SPACES = {"RGB": "RGB", "L": "GRAY", "CMYK": "CMYK"}
"""Pillow's modes, and what a profile calls the colours it is for."""
SPACE = slice(16, 20)
"""Of a profile: the colours it is for (ICC.1:2022, 7.2.6)."""
UNBOUNDED = b"mpet"
"""The type of tags that chain any number of steps: nothing bounds what they cost, and cameras write none."""
CACHED_BYTES = 64 << 10
"""A profile of a camera or screen has up to 3 KB and comes with every photograph; a printing press's has
500 KB and takes 10 ms: sixteen of the small ones are kept, large ones never."""
SAME_LEVELS = 2
"""Of 255: profiles named sRGB differ by so much in how they round."""
PROBE = 9
"""Levels of each colour that are tried."""


def to_rgb(image: Image.Image, profile: bytes | None) -> torch.Tensor:
    """uint8 (height, width, 3) of a decoded image."""
    convert = _choose(image, profile)
    if image.width * image.height <= STRIP_PIXELS:
        return torch.from_numpy(np.asarray(convert(image)))
    pixels = np.empty((image.height, image.width, 3), dtype=np.uint8)
    rows = max(1, STRIP_PIXELS // image.width)
    for top in range(0, image.height, rows):
        strip = image.crop((0, top, image.width, min(top + rows, image.height)))
        pixels[top : top + strip.height] = np.asarray(convert(strip))
    return torch.from_numpy(pixels)


def transform_sample(sample: torch.Tensor, profile: bytes, mode: str) -> torch.Tensor:
    """The model's own image by the profile: 50,000 pixels instead of all, and white stays white.

    Inks are not here: they become RGB by their profile before anything is resized.
    """
    space = "L" if mode in ("1", "L", "LA") or mode.startswith("I;16") else "RGB"
    transform = None if mode == "CMYK" else find_transform(profile, space)
    if transform is None:
        return sample
    array = np.ascontiguousarray(sample[..., 0] if space == "L" else sample)
    return torch.from_numpy(np.array(transform.apply(Image.fromarray(array))))


def _choose(image: Image.Image, profile: bytes | None) -> Convert:
    if image.mode.startswith("I;16"):
        transparent = image.info.get("transparency")
        return lambda strip: _scale_sixteen_bits(strip, transparent)
    if image.mode == "CMYK" and (transform := find_transform(profile, "CMYK")):
        return transform.apply
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        return _put_on_white
    return lambda strip: strip if strip.mode == "RGB" else strip.convert("RGB")


def _put_on_white(strip: Image.Image) -> Image.Image:
    if strip.mode == "RGB" and max(strip.info["transparency"]) > 255:
        # Of a PNG with 16 bits a channel, of which Pillow keeps the upper 8.
        strip.info["transparency"] = tuple(level >> 8 for level in strip.info["transparency"])
    coloured = strip.convert("RGBA")
    white = Image.new("RGB", strip.size, "white")
    white.paste(coloured, mask=coloured.getchannel("A"))
    return white


def _scale_sixteen_bits(strip: Image.Image, transparent: int | None) -> np.ndarray:
    """65535 is white. Pillow would clip at 255."""
    levels = np.asarray(strip).astype(np.uint32)
    grey = ((levels + 128) // 257).astype(np.uint8)
    grey = grey if transparent is None else np.where(levels == transparent, np.uint8(255), grey)
    return np.broadcast_to(grey[..., None], (*grey.shape, 3))


def find_transform(profile: bytes | None, mode: str) -> Transform | None:
    """From a profile's colours to sRGB; None where they are sRGB already, or the profile is unusable."""
    if profile is None or len(profile) > LARGEST_PROFILE or mode not in SPACES:
        return None
    return (_find_cached if len(profile) <= CACHED_BYTES else _build)(profile, mode)


@lru_cache(maxsize=16)
def _find_cached(profile: bytes, mode: str) -> Transform | None:
    return _build(profile, mode)


def _build(profile: bytes, mode: str) -> Transform | None:
    if profile[SPACE].rstrip() != SPACES[mode].encode() or UNBOUNDED in profile:
        return None
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        transform = ImageCms.buildTransform(source, _srgb(), mode, "RGB")
    except (ImageCms.PyCMSError, OSError, ValueError):
        return None
    return None if mode == "RGB" and _changes_nothing(transform) else transform


@cache
def _srgb() -> ImageCms.ImageCmsProfile:
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))


def _changes_nothing(transform: Transform) -> bool:
    levels = np.linspace(0, 255, PROBE).round().astype(np.uint8)
    colours = np.stack(np.meshgrid(levels, levels, levels), axis=-1).reshape(PROBE, -1, 3)
    after = np.asarray(transform.apply(Image.fromarray(colours)))
    return int(np.abs(after.astype(int) - colours).max()) <= SAME_LEVELS
