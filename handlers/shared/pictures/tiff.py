"""Reads a TIFF's first directory and keeps of it what makes pixels (TIFF 6.0, Adobe's Technical Note 2).

Directories point to anywhere, also to each other: further pages, EXIF and private directories are cut off
before a decoder follows them.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from handlers.shared.pictures.exif import BYTE_ORDERS, ORIENTATION, read_entries
from handlers.shared.pictures.formats import refuse_variant
from handlers.shared.pictures.picture import LARGEST_PROFILE, BrokenError, Picture, check_parts

WIDTH, HEIGHT, COMPRESSION, PROFILE = 256, 257, 259, 34675
STRIP_PLACES, STRIP_BYTES, STRIP_ROWS = 273, 279, 278
SAMPLES, SAMPLE_BITS = 277, 258
TILE_WIDTH, TILE_HEIGHT, TILE_PLACES, TILE_BYTES = 322, 323, 324, 325
PHOTOMETRIC, WHITE_IS_ZERO = 262, 0
SAMPLE_FORMAT, UNSIGNED = 339, 1
KEPT = frozenset(
    {254, WIDTH, HEIGHT, SAMPLE_BITS, COMPRESSION, PHOTOMETRIC, 266, SAMPLES, STRIP_PLACES, STRIP_ROWS}
    | {
        STRIP_BYTES,
        284,
        292,
        293,
        317,
        320,
        TILE_WIDTH,
        TILE_HEIGHT,
        TILE_PLACES,
        TILE_BYTES,
        332,
        338,
        SAMPLE_FORMAT,
        347,
        529,
        530,
        531,
        532,
    }
)
"""What says how pixels are stored; 254 and 332 to 532 are the kind of page, inks, samples, JPEG and YCbCr."""
JPEG = 7
COMPRESSIONS = {1: "none", 2: "CCITT RLE", 3: "fax G3", 4: "fax G4", 5: "LZW", JPEG: "JPEG"} | {
    8: "deflate",
    32773: "PackBits",
    32946: "deflate",
}
"""What cameras, scanners and drawing programs write. LZMA, Zstandard, WebP and LERC cost a start of their
decoder for each strip, and strips may be one pixel."""
PROGRESSIVE = b"\xff\xc2"
TYPE_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8}
WHOLE_NUMBERS = {1: "B", 3: "H", 4: "L"}
PIXEL_BYTES = 8
"""Pillow's image of 4 bytes a pixel, and beside it the strip that is decoded, later the array of 3."""
BESIDE_BYTES = 4
"""Of them what is there for the strip."""


@dataclass(frozen=True)
class _Entry:
    """One tag of the directory."""

    kind: int
    count: int
    value: bytes

    @property
    def size(self) -> int:
        return TYPE_BYTES.get(self.kind, 0) * self.count


@dataclass(frozen=True)
class _Directory:
    """The first directory of a file."""

    data: bytes
    order: str
    start: int
    entries: Mapping[int, _Entry]
    count: int

    def content(self, tag: int) -> bytes:
        """A tag's values as they stand in the file; empty where there are none."""
        entry = self.entries.get(tag)
        if entry is None:
            return b""
        if entry.size <= 4:
            return entry.value[: entry.size]
        (place,) = struct.unpack(self.order + "L", entry.value)
        return self.data[place : place + entry.size]

    def numbers(self, tag: int) -> tuple[int, ...]:
        """Of a tag of whole numbers."""
        entry = self.entries.get(tag)
        if entry is None or entry.kind not in WHOLE_NUMBERS:
            return ()
        content = self.content(tag)
        count = len(content) // TYPE_BYTES[entry.kind]
        return struct.unpack_from(f"{self.order}{count}{WHOLE_NUMBERS[entry.kind]}", content)

    def number(self, tag: int, default: int = 0) -> int:
        """The first of them."""
        numbers = self.numbers(tag)
        return numbers[0] if numbers else default


def read_tiff(data: bytes, limits: Mapping[str, int]) -> Picture:
    """What the first page says."""
    page = _read_directory(data)
    for tag in KEPT & set(page.entries):
        check_parts(page.entries[tag].count, limits, f"values in tag {tag}")
    _check_compression(page)
    _check_places(page)
    width, height = page.number(WIDTH), page.number(HEIGHT)
    profile = page.content(PROFILE)
    return Picture(
        format="TIFF",
        data=_cut_off(page),
        width=width,
        height=height,
        pixel_bytes=PIXEL_BYTES,
        extra_bytes=max(0, _count_strip_bytes(page) - BESIDE_BYTES * width * height),
        orientation=page.number(ORIENTATION, 1) if page.number(ORIENTATION, 1) in range(1, 9) else 1,
        profile=profile if 0 < len(profile) <= LARGEST_PROFILE else None,
        inverted=PHOTOMETRIC in page.entries and page.number(PHOTOMETRIC) == WHITE_IS_ZERO,
        unsigned=page.number(SAMPLE_FORMAT, UNSIGNED) == UNSIGNED,
    )


def _read_directory(data: bytes) -> _Directory:
    order = BYTE_ORDERS[data[:4]]
    try:
        (start,) = struct.unpack_from(order + "L", data, 4)
        (count,) = struct.unpack_from(order + "H", data, start)
        rows = list(read_entries(data, start, order))
    except struct.error as error:
        raise BrokenError("it ends before its directory") from error
    if len(rows) < count:
        raise BrokenError("it ends in its directory")
    if len({tag for tag, *_ in rows}) < count:
        # Readers differ in which of the two they believe.
        raise BrokenError("a tag stands twice in its directory")
    return _Directory(
        data, order, start, {tag: _Entry(kind, size, value) for tag, kind, size, value in rows}, count
    )


def _check_compression(page: _Directory) -> None:
    compression = page.number(COMPRESSION, 1)
    if compression not in COMPRESSIONS:
        names = ", ".join(dict.fromkeys(COMPRESSIONS.values()))
        raise refuse_variant(f"a TIFF with compression {compression}", instead=f"taken are {names}")


def _check_places(page: _Directory) -> None:
    """Strips that share their bytes would be decoded once for each of them."""
    tiled = TILE_PLACES in page.entries
    places = page.numbers(TILE_PLACES if tiled else STRIP_PLACES)
    sizes = page.numbers(TILE_BYTES if tiled else STRIP_BYTES)
    if sum(sizes) > 2 * len(page.data):
        raise BrokenError("its strips are longer than the file")
    if page.number(COMPRESSION, 1) != JPEG:
        return
    if len(sizes) != len(places):
        raise BrokenError("its strips have no length")
    if any(page.data.find(PROGRESSIVE, at, at + size) >= 0 for at, size in zip(places, sizes, strict=True)):
        raise refuse_variant("a TIFF that holds a progressive JPEG", instead="send the JPEG itself")


def _count_strip_bytes(page: _Directory) -> int:
    """Of a strip, which may be the whole picture, or a tile, which may be larger; each is decoded whole."""
    if TILE_PLACES in page.entries:
        pixels = page.number(TILE_WIDTH) * page.number(TILE_HEIGHT)
    else:
        height = page.number(HEIGHT)
        pixels = page.number(WIDTH) * min(page.number(STRIP_ROWS, height), height)
    bits = max(page.numbers(SAMPLE_BITS), default=1) * page.number(SAMPLES, 1)
    return pixels * bits // 8


def _cut_off(page: _Directory) -> bytes:
    """The file with a directory of only what makes pixels, and no other pages."""
    kept = [
        struct.pack(page.order + "HHL", tag, entry.kind, entry.count) + entry.value
        for tag, entry in sorted(page.entries.items())
        if tag in KEPT
    ]
    rewritten = struct.pack(page.order + "H", len(kept)) + b"".join(kept) + bytes(4)
    end = page.start + len(rewritten)
    return page.data[: page.start] + rewritten + page.data[end:]
