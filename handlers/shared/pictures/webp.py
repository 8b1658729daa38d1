"""Reads the size of a WebP's canvas (RFC 9649)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from handlers.shared.pictures.exif import read_orientation
from handlers.shared.pictures.picture import LARGEST_PROFILE, BrokenError, Picture, check_parts

HEADER_BYTES = 12
PIXEL_BYTES = 20
"""Libwebp's two canvases of 4 bytes, the frame as it is decoded, Pillow's copy of it and its image."""


def read_webp(data: bytes, limits: Mapping[str, int]) -> Picture:
    """Of an animation the first frame is decoded, on the canvas of all."""
    size, orientation, profile = None, 1, None
    for parts, (name, start, end) in enumerate(_walk(data)):
        check_parts(parts, limits, "chunks")
        size = size or _read_size(name, data[start : start + 10])
        if name == b"EXIF":
            orientation = read_orientation(data[start:end])
        elif name == b"ICCP" and end - start <= LARGEST_PROFILE:
            profile = data[start:end]
    if size is None:
        raise BrokenError("it ends before its size")
    return Picture(
        format="WEBP",
        data=data,
        width=size[0],
        height=size[1],
        pixel_bytes=PIXEL_BYTES,
        orientation=orientation,
        profile=profile,
    )


def _walk(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """(name, start of its content, end) of each chunk; what follows the file in the body is not looked at."""
    place, whole = HEADER_BYTES, 8 + int.from_bytes(data[4:8], "little")
    while place + 8 <= min(whole, len(data)):
        start = place + 8
        end = start + int.from_bytes(data[place + 4 : place + 8], "little")
        yield data[place : place + 4], start, end
        place = end + (end & 1)


def _read_size(name: bytes, start: bytes) -> tuple[int, int] | None:
    """(width, height) of the first chunk, whichever of the three it is."""
    if name == b"VP8X":
        return 1 + int.from_bytes(start[4:7], "little"), 1 + int.from_bytes(start[7:10], "little")
    if name == b"VP8L":
        bits = int.from_bytes(start[1:5], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if name == b"VP8 ":
        low = (int.from_bytes(start[at : at + 2], "little") & 0x3FFF for at in (6, 8))
        return next(low), next(low)
    raise BrokenError("it does not begin with a picture")
