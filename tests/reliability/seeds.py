"""Small valid bodies of every accepted form, good as they are: what the fuzz changes."""

from __future__ import annotations

import base64
import io
import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.reliability.bodies import FORM, JSON, MULTIPART, OCTETS, make_upload

SIZE = (48, 36)
"""Large enough for several blocks and rows, small enough that most of the bytes are structure."""
IMAGE, TEXT = "tiny_image", "tiny_text"
"""Models."""
PLAIN = "text/plain; charset=utf-8"
SENTENCE = "The room was far better than we had hoped – “quiet”, and clean."


@dataclass(frozen=True, kw_only=True)
class Seed:
    """One body."""

    name: str
    model: str
    """Who is asked."""
    content_type: str
    body: bytes


# (name, Pillow's mode, its format, options of `save`)
_PICTURES: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("jpeg", "RGB", "JPEG", {"quality": 80}),
    ("jpeg-progressive", "RGB", "JPEG", {"quality": 80, "progressive": True}),
    ("jpeg-grey", "L", "JPEG", {"quality": 80}),
    ("jpeg-cmyk", "CMYK", "JPEG", {"quality": 80}),
    ("jpeg-restarts", "RGB", "JPEG", {"quality": 80, "restart_marker_rows": 1}),
    ("jpeg-turned", "RGB", "JPEG", {"exif": True}),
    ("jpeg-profile", "RGB", "JPEG", {"icc_profile": True}),
    ("mpo", "RGB", "MPO", {"save_all": True}),
    ("png", "RGB", "PNG", {}),
    ("png-bits", "1", "PNG", {}),
    ("png-grey", "L", "PNG", {}),
    ("png-grey-alpha", "LA", "PNG", {}),
    ("png-palette", "P", "PNG", {"transparency": 3}),
    ("png-alpha", "RGBA", "PNG", {}),
    ("png-16", "I;16", "PNG", {}),
    ("png-profile", "RGB", "PNG", {"icc_profile": True}),
    ("png-animated", "RGB", "PNG", {"save_all": True}),
    ("webp", "RGB", "WEBP", {"quality": 80}),
    ("webp-lossless", "RGBA", "WEBP", {"lossless": True}),
    ("webp-animated", "RGB", "WEBP", {"save_all": True}),
    ("gif", "P", "GIF", {}),
    ("gif-animated", "P", "GIF", {"save_all": True}),
    ("bmp", "RGB", "BMP", {}),
    ("bmp-palette", "P", "BMP", {}),
    ("bmp-bits", "1", "BMP", {}),
    ("tiff", "RGB", "TIFF", {}),
)


def make_seeds() -> list[Seed]:
    """All of them, in a fixed order."""
    pictures = [*_make_pictures(), ("png-interlaced", "image/png", make_interlaced_png(16))]
    photo = next(body for name, _, body in pictures if name == "jpeg")
    images = [Seed(name=name, model=IMAGE, content_type=kind, body=body) for name, kind, body in pictures]
    return [*images, *_make_image_forms(photo), *_make_text_forms()]


def _make_pictures() -> Iterator[tuple[str, str, bytes]]:
    from PIL import Image

    photo = Image.merge("RGB", [_make_gradient(Image, step) for step in (3, 5, 7)])
    for name, mode, kind, options in _PICTURES:
        image = _convert(Image, photo, mode)
        buffer = io.BytesIO()
        more = {"append_images": [image.rotate(180)]} if "save_all" in options else {}
        image.save(buffer, kind, **{**options, **_fill(Image, options), **more})
        yield name, f"image/{kind.lower()}", buffer.getvalue()


def _make_gradient(pillow: Any, step: int) -> Any:
    width, height = SIZE
    return pillow.frombytes(
        "L", SIZE, bytes((step * x + 2 * step * y) % 256 for y in range(height) for x in range(width))
    )


def _convert(pillow: Any, photo: Any, mode: str) -> Any:
    if mode == "I;16":
        grey = photo.convert("L").tobytes()
        return pillow.frombytes(mode, photo.size, b"".join(struct.pack("<H", 257 * value) for value in grey))
    image = photo.convert(mode)
    if mode in ("LA", "RGBA"):
        image.putalpha(_make_gradient(pillow, 11))
    return image


def _fill(pillow: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Options that are objects of Pillow."""
    from PIL import ImageCms

    filled: dict[str, Any] = {}
    if "icc_profile" in options:
        profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
        # Without the time of day that it was made at (ICC.1, 7.2.8): the same bodies each time.
        filled["icc_profile"] = profile[:24] + bytes(12) + profile[36:]
    if "exif" in options:
        exif = pillow.Exif()
        exif[0x0112] = 6  # orientation: a quarter turn
        filled["exif"] = exif.tobytes()
    return filled


_ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))


def make_interlaced_png(side: int) -> bytes:
    """Grey, in the seven passes that Pillow reads but does not write (PNG, 8.1)."""
    rows = b""
    for left, top, step_x, step_y in _ADAM7:
        for y in range(top, side, step_y):
            rows += b"\0" + bytes((9 * x + 5 * y) % 256 for x in range(left, side, step_x))
    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 1)
    chunks = _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(rows)) + _chunk(b"IEND")
    return b"\x89PNG\r\n\x1a\n" + chunks


def _chunk(name: bytes, content: bytes = b"") -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def _make_image_forms(photo: bytes) -> Iterator[Seed]:
    encoded = base64.b64encode(photo).decode()
    bodies = (
        ("json-image", JSON, json.dumps({"data": encoded}).encode()),
        ("json-image-url", JSON, json.dumps({"data": f"data:image/jpeg;base64,{encoded}"}).encode()),
        ("json-image-as-bytes", OCTETS, json.dumps({"data": encoded}, indent=1).encode()),
        ("multipart-image", MULTIPART, make_upload(photo)),
        ("multipart-image-body", MULTIPART, make_upload(photo, field="body")),
        ("multipart-image-other", MULTIPART, make_upload(photo, field="file")),
        ("urlencoded-image", FORM, photo),
    )
    for name, kind, body in bodies:
        yield Seed(name=name, model=IMAGE, content_type=kind, body=body)


def _make_text_forms() -> Iterator[Seed]:
    one, many = {"text": SENTENCE}, {"text": [SENTENCE, "Broken again.", "Worth it?"]}
    nested = {"text": {"text": [[SENTENCE], {"a": [1, 2.5e300, None, True]}]}}
    bodies = (
        ("json-text", JSON, json.dumps(one).encode()),
        ("json-text-utf8", JSON, json.dumps(one, ensure_ascii=False).encode()),
        ("json-texts", JSON, json.dumps(many).encode()),
        ("json-mark", JSON, b"\xef\xbb\xbf" + json.dumps(one).encode()),
        ("json-utf16", JSON, json.dumps(one).encode("utf-16")),
        ("json-nested", JSON, json.dumps(nested).encode()),
        ("json-surrogate", JSON, b'{"text": "half \\ud83d of a pair"}'),
        ("json-numbers", JSON, b'{"text": [1, -0, 1e999, NaN, Infinity, 12345678901234567890]}'),
        ("json-list", JSON, json.dumps(many["text"]).encode()),
        ("json-deep", JSON, b'{"text": ' + b"[" * 600 + b"]" * 600 + b"}"),
        ("text", PLAIN, SENTENCE.encode()),
        ("text-utf16", "text/plain; charset=utf-16", SENTENCE.encode("utf-16")),
        ("text-latin", "text/plain; charset=iso-8859-1", "déjà vu, très cher".encode("latin-1")),
        ("text-brace", PLAIN, b"{not json} at all"),
        ("text-as-bytes", OCTETS, SENTENCE.encode()),
        ("urlencoded-text", FORM, b"text=worth+every+penny%21&data=again"),
        ("multipart-text", MULTIPART, make_upload(SENTENCE.encode(), field="text", name="a.txt")),
        ("multipart-data", MULTIPART, make_upload(json.dumps(many).encode(), name="a.json")),
    )
    for name, kind, body in bodies:
        yield Seed(name=name, model=TEXT, content_type=kind, body=body)
