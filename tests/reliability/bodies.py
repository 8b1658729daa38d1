"""Bodies that cost far more than they weigh: each maker says what is expensive about it."""

from __future__ import annotations

import io
import json
import random
import struct
import zlib
from typing import Any

MOST_BYTES = 16 << 20
"""What the plan lets a request weigh (config/rules/network.py)."""
FORM = "application/x-www-form-urlencoded"
JSON = "application/json"
PNG, JPEG, OCTETS = "image/png", "image/jpeg", "application/octet-stream"
BOUNDARY = "kit-boundary"
MULTIPART = f"multipart/form-data; boundary={BOUNDARY}"
_DATASET = 8
"""IPTC's record that holds the picture."""


def make_noise_png(side: int, *, mode: str = "RGB", seed: int = 7) -> bytes:
    """Pixels of chance, which nothing compresses: as heavy as its pixels."""
    from PIL import Image

    pixels = random.Random(seed).randbytes(side * side * len(mode))
    return _save(Image.frombytes(mode, (side, side), pixels), "PNG", compress_level=0)


def make_plain_png(side: int, *, mode: str) -> bytes:
    """One colour: next to nothing to send, all its pixels to decode."""
    from PIL import Image

    return _save(Image.new(mode, (side, side)), "PNG")


def _save(image: Any, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def make_scans(side: int, count: int) -> bytes:
    """A progressive JPEG in grey whose `count` scans change nothing; a decoder walks all pixels for each.

    ITU-T T.81, annexes B and G: quantisation, frame, two Huffman tables of one code, a scan of DC
    coefficients, then scans of AC coefficients that are nothing but runs of empty blocks.
    """
    if side % 8:
        raise ValueError(f"side must be a multiple of 8: got {side}")
    blocks = (side // 8) ** 2
    frame = struct.pack(">BHHB", 8, side, side, 1) + bytes([1, 0x11, 0])
    head = b"\xff\xd8" + _segment(0xDB, bytes([0] + [1] * 64)) + _segment(0xC2, frame)
    # The DC code "0" means "no difference"; the AC code "0" a run of 2^14 empty blocks and 14 bits more.
    tables = _define_code(table=0x00, symbol=0x00) + _define_code(table=0x10, symbol=0xE0)
    first = _start_scan(table=0x00, begin=0, end=0) + _pack_bits("0" * blocks)
    empty = _start_scan(table=0x10, begin=1, end=63) + _pack_bits(("0" + "1" * 14) * (blocks // 32767 + 1))
    return head + tables + first + empty * count + b"\xff\xd9"


def _segment(marker: int, content: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(content) + 2) + content


def _define_code(*, table: int, symbol: int) -> bytes:
    """A Huffman table of one code, a single bit."""
    return _segment(0xC4, bytes([table, 1, *[0] * 15, symbol]))


def _start_scan(*, table: int, begin: int, end: int) -> bytes:
    return _segment(0xDA, bytes([1, 1, table, begin, end, 0]))


def _pack_bits(bits: str) -> bytes:
    filled = bits + "1" * (-len(bits) % 8)
    # A byte 0xFF within a scan is followed by a zero, or it would be a marker.
    return int(filled, 2).to_bytes(len(filled) // 8, "big").replace(b"\xff", b"\xff\0")


def make_iptc(side: int) -> bytes:
    """Says 16×16, and holds a PNG of side × side: a limit on what the header says is passed (IPTC-NAA 4)."""
    picture = make_plain_png(side, mode="L")
    fields = [(60, b"\1\0"), (65, b"\0"), (20, b"\0\x10"), (30, b"\0\x10"), (120, b"\5")]
    pieces = [picture[at : at + 8000] for at in range(0, len(picture), 8000)]
    return b"".join(_iptc(3, number, value) for number, value in fields) + b"".join(
        _iptc(_DATASET, 10, piece) for piece in pieces
    )


def _iptc(record: int, number: int, value: bytes) -> bytes:
    return bytes([28, record, number]) + struct.pack(">H", len(value)) + value


def make_qoi(side: int) -> bytes:
    """A byte a pixel, and each decoded in Python: ten seconds of a core for 16 MiB (qoiformat.org)."""
    head = b"qoif" + struct.pack(">IIBB", side, side, 3, 0)
    return head + b"\x01" * (side * side) + b"\0" * 7 + b"\1"


def make_form(size: int) -> bytes:
    """`a&a&…`: an attribute for every two bytes."""
    return b"a&" * (size // 2)


def make_parts(size: int) -> bytes:
    """A multipart form of as many empty fields as fit."""
    part = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n'.encode()
    return part * ((size - 64) // len(part)) + f"--{BOUNDARY}--\r\n".encode()


def make_upload(content: bytes, *, field: str = "data", name: str = "photo.jpg") -> bytes:
    """What `curl -F data=@photo.jpg` sends."""
    head = f'Content-Disposition: form-data; name="{field}"; filename="{name}"\r\nContent-Type: image/jpeg'
    return f"--{BOUNDARY}\r\n{head}\r\n\r\n".encode() + content + f"\r\n--{BOUNDARY}--\r\n".encode()


def make_wide_json(size: int) -> bytes:
    """A list of empty lists: 21 times its size when parsed."""
    return b"[" + b"[]," * ((size - 4) // 3) + b"[]]"


def make_long_texts(texts: int = 8, words: int = 510) -> bytes:
    """As many texts as a request may hold, each as long as the model can read: the worst legal request."""
    return json.dumps({"text": ["word " * words] * texts}).encode()


def repair_png(data: bytes) -> bytes:
    """The same chunks with right checksums, so that a decoder reads on behind what was changed."""
    out, at = bytearray(data[:8]), 8
    while at + 12 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        chunk = data[at + 4 : at + 8 + length]
        out += data[at : at + 8 + length] + struct.pack(">I", zlib.crc32(chunk))
        at += 12 + length
    return bytes(out) + data[at:]
