"""Names what was sent by its first bytes: six formats are taken, everything else is refused by its name.

Pillow knows 43 formats. Some start a program (EPS), some make their pixels in Python (QOI, XPM), some decode
before their size can be judged (ICO); none of those is what people send as a photograph.
"""

from __future__ import annotations

import re

from handlers.shared.errors import RequestError

TAKEN = "JPEG, PNG, WebP, GIF, BMP or TIFF"

SIGNATURES: tuple[tuple[str, re.Pattern[bytes]], ...] = (
    ("JPEG", re.compile(rb"\xff\xd8\xff")),
    ("PNG", re.compile(rb"\x89PNG\r\n\x1a\n")),
    ("WEBP", re.compile(rb"RIFF....WEBP", re.DOTALL)),
    ("GIF", re.compile(rb"GIF8[79]a")),
    ("BMP", re.compile(rb"BM")),
    ("TIFF", re.compile(rb"II\*\x00|MM\x00\*")),
)
"""Pillow's names of what is taken, and how it begins; the commonest first."""

OTHERS: tuple[tuple[str, re.Pattern[bytes]], ...] = tuple(
    (name, re.compile(pattern, re.DOTALL | re.IGNORECASE))
    for name, pattern in (
        ("HEIC", rb"....ftyp(hei|hev|mif1|msf1)"),
        ("AVIF", rb"....ftypavi"),
        ("Canon RAW", rb"....ftypcrx"),
        ("MP4 or QuickTime video", rb"....(ftyp|moov)"),
        ("SVG", rb"(\xef\xbb\xbf)?\s*(<svg|<(\?xml|!--|!doctype)(?=.*<svg))"),
        ("HTML", rb"(\xef\xbb\xbf)?\s*(<!doctype html|<html|<head|<body)"),
        ("XML", rb"(\xef\xbb\xbf)?\s*<\?xml"),
        ("JSON", rb"(\xef\xbb\xbf)?\s*[\[{]"),
        ("PDF", rb"%PDF-"),
        ("PostScript (EPS)", rb"%!PS|\xc5\xd0\xd3\xc6"),
        ("QOI", rb"qoif"),
        ("ICO or CUR", rb"\x00\x00[\x01\x02]\x00"),
        ("ICNS", rb"icns"),
        ("JPEG 2000", rb"\x00\x00\x00\x0cjP  \r\n\x87\n|\xff\x4f\xff\x51"),
        ("JPEG XL", rb"\xff\x0a|\x00\x00\x00\x0cJXL \r\n\x87\n"),
        ("JPEG XR", rb"II\xbc\x01"),
        ("BigTIFF", rb"II\+\x00|MM\x00\+"),
        ("PSD", rb"8BPS"),
        ("IPTC", rb"\x1c[\x01-\x09]"),
        ("OpenEXR", rb"\x76\x2f\x31\x01"),
        ("Radiance HDR", rb"#\?R(ADIANC|GB)E"),
        ("GIMP XCF", rb"gimp xcf"),
        ("DDS", rb"DDS "),
        ("XPM", rb"/\* XPM \*/"),
        ("PBM, PGM or PPM", rb"P[1-7f]\s"),
        ("ZIP", rb"PK\x03\x04"),
        ("gzip", rb"\x1f\x8b"),
        ("WAV or AVI", rb"RIFF....(WAVE|AVI )"),
        ("base64 text", rb"(data:image/[a-z+]+;base64,|/9j/|iVBORw0KGgo|R0lGOD|UklGR|Qk0|SUkq|TU0AK)"),
    )
)
"""What else people send, in the order in which it is looked for; the name is part of the answer."""

LOOKED_AT = 10_000
"""Bytes; an SVG may begin with a comment of its drawing program."""
TEXT_BYTES = re.compile(rb"[\t\r\n\x20-\x7e\x80-\xff]*\Z")


def name_format(data: bytes) -> str:
    """The format of a body, in Pillow's name; RequestError 415 for all but those of SIGNATURES."""
    for name, signature in SIGNATURES:
        if signature.match(data):
            return name
    if not data:
        raise RequestError(f"the body is empty; send the bytes of an image: {TAKEN}")
    raise RequestError(f"the body is {_name_other(data)}; send {TAKEN}", status=415)


def refuse_variant(variant: str, *, instead: str) -> RequestError:
    """The refusal of a rare form of a format that is taken otherwise."""
    return RequestError(f"the image is {variant}, which is not decoded here; {instead}", status=415)


def _name_other(data: bytes) -> str:
    start = data[:LOOKED_AT]
    shown = f"{len(data)} bytes starting {data[:8]!r}"
    for name, signature in OTHERS:
        if signature.match(start):
            hint = '; as JSON it goes into {"data": "…"}' if name == "base64 text" else ""
            return f"{name} ({shown}){hint}"
    return f"text ({shown})" if TEXT_BYTES.match(start) else f"no image of a known kind ({shown})"
