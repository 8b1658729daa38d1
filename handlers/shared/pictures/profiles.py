"""Turns colours into sRGB by the ICC profile that a picture embeds, through LittleCMS (Pillow's ImageCms).

A profile that cannot be used is passed over, as browsers do: its picture is read as sRGB.
"""

from __future__ import annotations

import io
from functools import cache, lru_cache

import numpy as np
from PIL import Image, ImageCms

Transform = ImageCms.ImageCmsTransform

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


def find_transform(profile: bytes | None, mode: str) -> Transform | None:
    """From a profile's colours to sRGB; None where they are sRGB already, or the profile is unusable."""
    if profile is None or mode not in SPACES:
        return None
    return (_find_cached if len(profile) <= CACHED_BYTES else _build)(profile, mode)


@cache
def lab_transform() -> Transform:
    """From CIE L*a*b* (D50), which needs no profile."""
    return ImageCms.buildTransform(ImageCms.createProfile("LAB"), _srgb(), "LAB", "RGB")


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
