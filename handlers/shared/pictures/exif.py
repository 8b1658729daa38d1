"""The one thing that is read of EXIF: which way up the picture is.

Pillow's reader keeps every value, and values may overlap: an EXIF of some MB can name terabytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from PIL import Image

ORIENTATION = 0x0112
SHORT = 3
HEADER = b"Exif\0\0"
"""Stands before the TIFF structure in JPEG, and in some PNG and WebP files."""
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What turns a picture upright, by orientation (EXIF 2.3)."""
BYTE_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}


def read_entries(data: bytes, start: int, order: str) -> Iterator[tuple[int, int, int, bytes]]:
    """(tag, type, count, value or its place) of a TIFF directory; struct.error or fewer where it is cut."""
    (count,) = struct.unpack_from(order + "H", data, start)
    block = data[start + 2 : start + 2 + 12 * count]
    return struct.iter_unpack(order + "HHL4s", block[: len(block) // 12 * 12])


def read_orientation(exif: bytes) -> int:
    """1 to 8; 1, which is upright, where nothing valid is said."""
    tiff = exif.removeprefix(HEADER)
    order = BYTE_ORDERS.get(tiff[:4])
    try:
        if order is None:
            return 1
        (start,) = struct.unpack_from(order + "L", tiff, 4)
        for tag, kind, _count, value in read_entries(tiff, start, order):
            if tag == ORIENTATION and kind == SHORT:
                (said,) = struct.unpack_from(order + "H", value)
                return said if 1 <= said <= 8 else 1
    except struct.error:
        pass
    return 1


def turn_upright(image: Image.Image, orientation: int) -> Image.Image:
    """As it is to be looked at."""
    return image.transpose(TURNS[orientation]) if orientation in TURNS else image
