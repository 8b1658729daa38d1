"""Turns encoded image bytes into one uint8 sample of the model's size, whatever a client may send."""

from __future__ import annotations

import io
import warnings

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torchvision.io import ImageReadMode, decode_jpeg

from handlers.shared.errors import RequestError
from handlers.shared.preprocessing import Preprocessing

MAX_PIXELS = 100_000_000
"""Larger images are refused before anything is decoded; cameras make up to about this many."""
MAX_DECODED_PIXELS = 24_000_000
"""What one image may become in memory: with transparency 100 MB, its RGB copy 70 MB, about 2 s of a core.
JPEGs are decoded at a smaller scale, so that only other formats meet this limit."""
JPEG_FORMATS = ("JPEG", "MPO")
JPEG_MODES = ("RGB", "L")
"""What libjpeg turns into RGB by itself; CMYK has to be inverted or not, which Pillow knows."""


def decode_image(data: bytes, preprocessing: Preprocessing) -> torch.Tensor:
    """JPEG, PNG, WebP … → uint8 (crop, crop, 3), EXIF orientation applied; RequestError if it cannot be."""
    try:
        with warnings.catch_warnings():
            # Pillow warns from 89 megapixels on; the limit here is explicit.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            # Its pixels are read, never written.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return preprocessing.resize_and_crop(_decode(data, preprocessing))
    except RequestError:
        raise
    except Image.DecompressionBombError as error:
        raise RequestError(f"the image is too large: {error}", status=413) from error
    except Exception as error:
        # Pillow's plug-ins raise nearly any type on broken files.
        raise RequestError(_describe_failure(data, error)) from error


def _decode(data: bytes, preprocessing: Preprocessing) -> torch.Tensor:
    """uint8 (height, width, 3), turned upright."""
    opened = Image.open(io.BytesIO(data))
    _check_pixels(opened, MAX_PIXELS)
    full_size = opened.size
    if preprocessing.scaled_decode:
        # libjpeg decodes at 1/2, 1/4 or 1/8 for less; twice the model's size keeps the quality.
        opened.draft("RGB", (2 * preprocessing.size.resize,) * 2)
    _check_pixels(opened, MAX_DECODED_PIXELS)
    if opened.format in JPEG_FORMATS and opened.mode in JPEG_MODES and opened.size == full_size:
        return _decode_jpeg(data)
    return torch.from_numpy(np.asarray(_to_rgb(ImageOps.exif_transpose(opened))))


def _decode_jpeg(data: bytes) -> torch.Tensor:
    """The same libjpeg-turbo and pixels as Pillow's without its copies: 0.8 ms for 500×375, not 1.4."""
    body = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return decode_jpeg(body, mode=ImageReadMode.RGB, apply_exif_orientation=True).permute(1, 2, 0)


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
