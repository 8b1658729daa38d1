"""Reads a BMP's header (BITMAPCOREHEADER, BITMAPINFOHEADER and their successors)."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from handlers.shared.pictures.formats import refuse_variant
from handlers.shared.pictures.picture import BrokenError, Picture

CORE_BYTES = 12
RAW, BITFIELDS = 0, 3
PIXEL_BYTES = 8
"""Pillow's image with up to 4 bytes a pixel and the array of 3 that is made of it, rounded up."""


def read_bmp(data: bytes, limits: Mapping[str, int]) -> Picture:
    """Only pixels that lie there as they are: Pillow unpacks run lengths in Python, 8 s for 16 MiB."""
    try:
        width, height, packing = _read_header(data)
    except struct.error as error:
        raise BrokenError("it ends before its size") from error
    if packing not in (RAW, BITFIELDS):
        raise refuse_variant("a BMP that is compressed", instead="save it uncompressed, or as PNG")
    # A negative height means that the rows begin at the top.
    return Picture(format="BMP", data=data, width=width, height=abs(height), pixel_bytes=PIXEL_BYTES)


def _read_header(data: bytes) -> tuple[int, int, int]:
    (size,) = struct.unpack_from("<L", data, 14)
    if size == CORE_BYTES:
        return *struct.unpack_from("<HH", data, 18), RAW
    width, height, packing = struct.unpack_from("<Ll4xL", data, 18)
    return width, height, packing
