"""Reads a GIF's blocks up to its first frame, the only one that is looked at (GIF89a specification)."""

from __future__ import annotations

from collections.abc import Mapping

from handlers.shared.pictures.picture import BrokenError, Picture, check_parts

SCREEN_BYTES = 13
EXTENSION, FRAME = 0x21, 0x2C
CONTROL = 0xF9
"""The extension that says which colour is transparent."""
PIXEL_BYTES = 8
"""1 byte in Pillow's image, 3 in the array, and room for what Pillow fills before it draws."""


def read_gif(data: bytes, limits: Mapping[str, int]) -> Picture:
    """The screen's size, or the first frame's where that is larger."""
    if len(data) < SCREEN_BYTES:
        raise BrokenError("it ends before its size")
    start = SCREEN_BYTES + _count_colour_bytes(data[10])
    frame, control = _find_frame(data, start, limits)
    left, top, width, height = (
        int.from_bytes(data[at : at + 2], "little") for at in range(frame + 1, frame + 9, 2)
    )
    return Picture(
        format="GIF",
        data=data[:start] + control + data[frame:],
        width=max(left + width, int.from_bytes(data[6:8], "little")),
        height=max(top + height, int.from_bytes(data[8:10], "little")),
        pixel_bytes=PIXEL_BYTES,
    )


def _find_frame(data: bytes, place: int, limits: Mapping[str, int]) -> tuple[int, bytes]:
    """(where the first frame begins, the extension that says what is transparent in it)."""
    control, parts = b"", 0
    while data[place : place + 1] == b"%c" % EXTENSION:
        start, place = place, place + 2
        while data[place : place + 1] > b"\0":
            place, parts = place + 1 + data[place], parts + 1
            check_parts(parts, limits, "blocks before its first frame")
        place += 1
        if data[start + 1 : start + 2] == b"%c" % CONTROL:
            control = data[start:place]
    if data[place : place + 1] != b"%c" % FRAME or place + 10 > len(data):
        raise BrokenError("it has no frame")
    return place, control


def _count_colour_bytes(flags: int) -> int:
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0
