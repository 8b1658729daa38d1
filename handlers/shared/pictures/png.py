"""Reads a PNG's chunks and keeps those that make its pixels (PNG specification, third edition)."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping

from handlers.shared.pictures.exif import read_orientation
from handlers.shared.pictures.picture import LARGEST_PROFILE, BrokenError, Picture, check_parts

SIGNATURE_BYTES = 8
PIXEL_CHUNKS = frozenset({b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"})
"""All others are metadata, text that unpacks to a thousand times its size, or frames of an animation."""
PIXEL_BYTES = 8
"""Pillow's image with up to 4 bytes a pixel and the array of 3 that is made of it, rounded up."""
ROW_BYTES = 2 * 8
"""Two rows are kept, of up to 8 bytes a pixel."""


def read_png(data: bytes, limits: Mapping[str, int]) -> Picture:
    """What the chunks say; of an animation the picture that is shown where animations are not."""
    kept, orientation, profile = [data[:SIGNATURE_BYTES]], 1, None
    header = b""
    for parts, (name, start, end) in enumerate(_walk(data)):
        check_parts(parts, limits, "chunks")
        if name in PIXEL_CHUNKS:
            # With its length and name before it, and its checksum behind it.
            kept.append(data[start - 8 : end + 4])
            header = header or data[start:end]
        elif name == b"eXIf":
            orientation = read_orientation(data[start:end])
        elif name == b"iCCP":
            profile = _unpack_profile(data[start:end])
    if len(header) < 13:
        raise BrokenError("it ends before its size")
    width = int.from_bytes(header[:4], "big")
    return Picture(
        format="PNG",
        data=b"".join(kept),
        width=width,
        height=int.from_bytes(header[4:8], "big"),
        pixel_bytes=PIXEL_BYTES,
        extra_bytes=width * ROW_BYTES,
        orientation=orientation,
        profile=profile,
    )


def _walk(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """(name, start of its content, end) of each chunk, to the end or to where the file is cut."""
    place = SIGNATURE_BYTES
    while place + 8 <= len(data):
        name, start = data[place + 4 : place + 8], place + 8
        end = start + int.from_bytes(data[place : place + 4], "big")
        yield name, start, end
        if name == b"IEND":
            return
        place = end + 4


def _unpack_profile(chunk: bytes) -> bytes | None:
    """A name, a zero, the way of packing (0), the packed profile; None where it is not one."""
    _name, found, packed = chunk.partition(b"\0")
    if not found or packed[:1] != b"\0":
        return None
    try:
        unpacking = zlib.decompressobj()
        profile = unpacking.decompress(packed[1:], LARGEST_PROFILE)
    except zlib.error:
        return None
    return profile if unpacking.eof else None
