"""What a file says of its picture before it is decoded, and the refusals that follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from handlers.shared.errors import RequestError

LIMITS: Mapping[str, int] = {
    "jpeg_pixels": 128_000_000,
    "pixels": 24_000_000,
    "side_pixels": 65_535,
    "decode_mib": 240,
    "jpeg_scans": 32,
    "jpeg_samples": 72_000_000,
    "parts": 16_384,
}
"""What one picture may cost where no plan says so; the plan has the reasons, and a test compares the two."""

LARGEST_PROFILE = 4 << 20
"""Bytes; the profiles of printing presses have 0.5 to 3 MB. A larger one is no profile."""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """The first picture of a file, as its headers tell it."""

    format: str
    """Pillow's name."""
    data: bytes
    """What the decoder needs, without whatever else the file holds: text, thumbnails, further frames."""
    width: int
    height: int
    pixel_bytes: int
    """Memory that decoding takes at its peak for each pixel, measured (DECODER_BYTES in its reader)."""
    extra_bytes: int = 0
    """Memory it takes besides."""
    orientation: int = 1
    """EXIF's, 1 to 8; 1 is upright."""
    profile: bytes | None = None
    """The embedded ICC profile."""
    inverted: bool = False
    """Whether zero is white in what Pillow decodes to 16 or 32 bits; it turns 8 bits by itself."""
    unsigned: bool = False
    """Whether 32-bit numbers are; Pillow reads them as signed."""


class BrokenError(Exception):
    """A file that contradicts its own format; the message says where."""


def check_size(picture: Picture, limits: Mapping[str, int], *, most_pixels: int) -> None:
    """RequestError 413 when a picture is larger than is decoded here."""
    width, height = picture.width, picture.height
    if not width or not height:
        raise BrokenError(f"it has {width}×{height} pixels")
    if max(width, height) > limits["side_pixels"]:
        raise RequestError(
            f"the image has {width}×{height} pixels; at most {limits['side_pixels']} a side are decoded",
            status=413,
        )
    check_pixels(picture, width * height, most_pixels)


def check_pixels(picture: Picture, pixels: int, most: int) -> None:
    """RequestError 413 when more pixels would be decoded; fewer than it has at a smaller scale."""
    if pixels > most:
        scaled = "" if pixels == picture.width * picture.height else f", decoded at a smaller scale {pixels}"
        raise RequestError(
            f"the image has {picture.width}×{picture.height} = {picture.width * picture.height} pixels"
            f"{scaled}; at most {most} are decoded as {picture.format}",
            status=413,
        )


def check_memory(picture: Picture, limits: Mapping[str, int], *, pixels: int) -> int:
    """MiB that decoding to `pixels` takes; RequestError 413 when that is more than the limit."""
    needed = (pixels * picture.pixel_bytes + picture.extra_bytes) >> 20
    if needed > limits["decode_mib"]:
        raise RequestError(
            f"the image has {picture.width}×{picture.height} pixels, which take {needed} MiB to decode as "
            f"{picture.format}; at most {limits['decode_mib']} MiB are given to one",
            status=413,
        )
    return needed


def check_parts(parts: int, limits: Mapping[str, int], what: str) -> None:
    """RequestError 413 when a file has more parts than one that was made to be looked at."""
    if parts > limits["parts"]:
        raise RequestError(f"the image has more than {limits['parts']} {what}", status=413)
