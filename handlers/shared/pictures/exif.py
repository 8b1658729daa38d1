"""The one thing that is read of EXIF: which way up the picture is.

Pillow's reader keeps every value, and values may overlap: an EXIF of some MB can name terabytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import torch

ORIENTATION = 0x0112
SHORT = 3
HEADER = b"Exif\0\0"
"""Stands before the TIFF structure in JPEG, and in some PNG and WebP files."""
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


def turn_upright(pixels: torch.Tensor, orientation: int) -> torch.Tensor:
    """(height, width, channels) as it is to be looked at (EXIF 2.3, tag Orientation)."""
    if orientation >= 5:
        pixels = pixels.transpose(0, 1)
    # Which ends of the (transposed) rows and columns change places.
    turned = {2: (1,), 3: (0, 1), 4: (0,), 6: (1,), 7: (0, 1), 8: (0,)}.get(orientation, ())
    return pixels.flip(turned) if turned else pixels
