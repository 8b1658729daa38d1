"""Turns encoded image bytes into one uint8 sample of the model's size, as torchvision's reference does.

Reference: torchvision.transforms presets, resize of the shorter side (bilinear, antialiased), centre crop.
"""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from handlers.shared.errors import RequestError

MAX_PIXELS = 100_000_000
"""Larger images are refused before anything is decoded; cameras make up to about this many."""
MAX_DECODED_PIXELS = 24_000_000
"""What one image may become in memory: with transparency 100 MB, its RGB copy 70 MB, about 2 s of a core.
JPEGs are decoded at a smaller scale, so that only other formats meet this limit."""


@dataclass(frozen=True, kw_only=True)
class ImageSize:
    """The model's input size, in pixels."""

    resize: int
    """Length of the shorter side before the crop."""
    crop: int
    """Side of the square that the model sees."""


def decode_image(data: bytes, size: ImageSize) -> np.ndarray:
    """JPEG, PNG, WebP … → uint8 (crop, crop, 3), EXIF orientation applied; RequestError if it cannot be."""
    try:
        with warnings.catch_warnings():
            # Pillow warns from 89 megapixels on; the limit here is explicit.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            opened = Image.open(io.BytesIO(data))
            _check_pixels(opened, MAX_PIXELS)
            # libjpeg decodes at 1/2, 1/4 or 1/8 for less; twice the model's size keeps the quality.
            opened.draft("RGB", (2 * size.resize, 2 * size.resize))
            _check_pixels(opened, MAX_DECODED_PIXELS)
            image = ImageOps.exif_transpose(opened)
            return np.asarray(_resize_and_crop(_to_rgb(image), size))
    except RequestError:
        raise
    except Image.DecompressionBombError as error:
        raise RequestError(f"the image is too large: {error}", status=413) from error
    except Exception as error:
        # Pillow's plug-ins raise nearly any type on broken files.
        raise RequestError(_describe_failure(data, error)) from error


def _check_pixels(image: Image.Image, limit: int) -> None:
    pixels = image.width * image.height
    if pixels > limit:
        raise RequestError(
            f"the image has {image.width}×{image.height} = {pixels} pixels; "
            f"at most {limit} are decoded as {image.format}",
            status=413,
        )


def _describe_failure(data: bytes, error: Exception) -> str:
    if not data:
        return "the body is empty; send the bytes of an image (JPEG, PNG, WebP …)"
    if isinstance(error, UnidentifiedImageError):
        start = f"{len(data)} bytes starting {data[:8]!r}"
        return f"the body is no image that can be decoded: {start}; send JPEG, PNG, WebP …"
    return f"the image is broken ({len(data)} bytes, {type(error).__name__}: {error})"


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16") or image.mode == "I":
        # Pillow clips 16-bit grey at 255 instead of scaling it.
        scaled = np.asarray(image, dtype=np.uint32) >> 8
        image = Image.fromarray(scaled.astype(np.uint8))
    return image if image.mode == "RGB" else image.convert("RGB")


def _resize_and_crop(image: Image.Image, size: ImageSize) -> Image.Image:
    """One resampling of just the pixels that survive the crop, instead of resizing all and cropping.

    Pillow centres its filter on the box in source coordinates and reads beyond the box's edges, so the values
    are the reference's but for rounding: on photographs 0.02 % of the values differ by one level, on enlarged
    pictures up to 7 % by one or two (measured).
    On a 500×375 photograph it takes 0.9 ms instead of 1.6.
    """
    width, height = _resized(image, size.resize)
    left, top = round((width - size.crop) / 2), round((height - size.crop) / 2)
    corners = (left, top, left + size.crop, top + size.crop)
    if (width, height) == image.size:
        return image.crop(corners)
    x, y = image.width / width, image.height / height
    box = (corners[0] * x, corners[1] * y, corners[2] * x, corners[3] * y)
    return image.resize((size.crop, size.crop), Image.Resampling.BILINEAR, box=box)


def _resized(image: Image.Image, shorter: int) -> tuple[int, int]:
    # torchvision truncates the longer side: int(shorter * long / short).
    width, height = image.size
    if width <= height:
        return shorter, max(shorter, int(shorter * height / width))
    return max(shorter, int(shorter * width / height)), shorter
