"""Picture files made from bytes, as no library writes them, for tests of readers and decoders."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
from PIL import Image


def encode(image: Image.Image, form: str = "PNG", **options) -> bytes:
    """A file by Pillow."""
    buffer = io.BytesIO()
    image.save(buffer, format=form, **options)
    return buffer.getvalue()


def segment(marker: int, payload: bytes) -> bytes:
    """Of a JPEG."""
    return bytes([0xFF, marker]) + struct.pack(">H", len(payload) + 2) + payload


def insert_segments(jpeg: bytes, *segments: bytes) -> bytes:
    """Behind the start of a JPEG."""
    return jpeg[:2] + b"".join(segments) + jpeg[2:]


def pack_bits(text: str) -> bytes:
    """JPEG's entropy-coded bits from 0 and 1."""
    text += "1" * (-len(text) % 8)
    data = bytes(int(text[at : at + 8], 2) for at in range(0, len(text), 8))
    return data.replace(b"\xff", b"\xff\0")


def make_scans(side: int, scans: int) -> bytes:
    """A progressive grey JPEG whose scans after the first say nothing, in a few bytes each."""
    blocks = (side // 8) ** 2
    start = (
        b"\xff\xd8"
        + segment(0xDB, bytes([0] + [1] * 64))
        + segment(0xC2, struct.pack(">BHHB", 8, side, side, 1) + bytes([1, 0x11, 0]))
        + segment(0xC4, bytes([0, 1] + [0] * 16))
        + segment(0xC4, bytes([16, 1] + [0] * 15 + [0xE0]))
    )

    def scan(first: int, last: int, data: str) -> bytes:
        return segment(0xDA, bytes([1, 1, 0, first, last, 0])) + pack_bits(data)

    empty = scan(1, 63, ("0" + "1" * 14) * (blocks // 32767 + 1))
    return start + scan(0, 0, "0" * blocks) + empty * (scans - 1) + b"\xff\xd9"


def chunk(name: bytes, content: bytes) -> bytes:
    """Of a PNG."""
    checksum = zlib.crc32(name + content)
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", checksum)


def make_png(width: int, height: int, *, depth: int, colours: int, rows: bytes, extra: bytes = b"") -> bytes:
    """A PNG of raw rows, each with its filter byte; `extra` chunks stand before the pixels."""
    header = struct.pack(">IIBBBBB", width, height, depth, colours, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(rows)) if rows else b""
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra + pixels + chunk(b"IEND", b"")


def insert_chunks(png: bytes, *chunks: bytes) -> bytes:
    """Behind the header of a PNG."""
    return png[:33] + b"".join(chunks) + png[33:]


def make_bmp(width: int, height: int, *, packing: int, pixels: bytes) -> bytes:
    """A BMP of 8 bits a pixel."""
    header = struct.pack("<LllHHLLllLL", 40, width, height, 1, 8, packing, len(pixels), 0, 0, 256, 0)
    palette = b"".join(bytes([level, level, level, 0]) for level in range(256))
    offset = 14 + len(header) + len(palette)
    return b"BM" + struct.pack("<LLL", offset + len(pixels), 0, offset) + header + palette + pixels


def make_webp_frames(width: int, height: int, frames: int) -> bytes:
    """An animation of frames of one pixel on a canvas of any size."""
    lossless = encode(Image.new("RGB", (1, 1)), "WEBP", lossless=True)
    frame = bytes(15) + b"\0" + lossless[lossless.index(b"VP8L") :]
    sides = struct.pack("<L", width - 1)[:3] + struct.pack("<L", height - 1)[:3]
    body = b"WEBPVP8X" + struct.pack("<LL", 10, 2) + sides + b"ANIM" + struct.pack("<L", 6) + bytes(6)
    body += (b"ANMF" + struct.pack("<L", len(frame)) + frame) * frames
    return b"RIFF" + struct.pack("<L", len(body)) + body


def _icc_number(value: float) -> bytes:
    return struct.pack(">i", round(value * 65536))


def make_profile(space: str, tags: dict[str, bytes]) -> bytes:
    """An ICC profile (version 2) for colours of `space`, to XYZ, or to Lab where it has a table."""
    connection = b"Lab " if "A2B0" in tags else b"XYZ "
    tags = {
        "desc": b"desc" + bytes(4) + struct.pack(">L", 5) + b"test\0" + bytes(78),
        "wtpt": b"XYZ " + bytes(4) + b"".join(map(_icc_number, (0.9642, 1.0, 0.8249))),
        "cprt": b"text" + bytes(4) + b"none\0",
        **tags,
    }
    place, table, contents = 128 + 4 + 12 * len(tags), b"", b""
    for name, content in tags.items():
        padded = content + b"\0" * (-len(content) % 4)
        table += name.encode() + struct.pack(">LL", place + len(contents), len(content))
        contents += padded
    body = struct.pack(">L", len(tags)) + table + contents
    head = struct.pack(">L", 128 + len(body)) + b"test" + struct.pack(">L", 0x02400000)
    head += b"mntr" + space.ljust(4).encode() + connection + bytes(12) + b"acsp" + bytes(28)
    head += b"".join(map(_icc_number, (0.9642, 1.0, 0.8249)))
    return head.ljust(128, b"\0") + body


def curve(gamma: float) -> bytes:
    """A tag that says how light grows with the numbers."""
    return b"curv" + bytes(4) + struct.pack(">LH", 1, round(gamma * 256))


def make_display_p3() -> bytes:
    """What a telephone embeds: wider colours than sRGB's (DCI P3 for displays, D50-adapted columns)."""
    columns = {"rXYZ": (0.5151, 0.2412, -0.0011), "gXYZ": (0.2919, 0.6922, 0.0419)}
    columns["bXYZ"] = (0.1572, 0.0666, 0.7841)
    points = {name: b"XYZ " + bytes(4) + b"".join(map(_icc_number, at)) for name, at in columns.items()}
    return make_profile("RGB", {**points, **dict.fromkeys(("rTRC", "gTRC", "bTRC"), curve(2.2))})


def make_grey_profile(gamma: float) -> bytes:
    """Of a scanner whose grey is not sRGB's."""
    return make_profile("GRAY", {"kTRC": curve(gamma)})


def make_ink_profile() -> bytes:
    """A press on which no ink at all is white and any ink is black."""
    identity = bytes(range(256))
    matrix = b"".join(map(_icc_number, (1, 0, 0, 0, 1, 0, 0, 0, 1)))
    corners = np.full((16, 3), (0, 128, 128), dtype=np.uint8)
    corners[0] = (255, 128, 128)
    table = (
        b"mft1" + bytes(4) + bytes([4, 3, 2, 0]) + matrix + identity * 4 + corners.tobytes() + identity * 3
    )
    return make_profile("CMYK", {"A2B0": table})
