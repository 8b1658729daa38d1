"""What Hypothesis draws: good bodies changed at any place, JSON trees, texts, forms, odd headers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from hypothesis import strategies as st

from tests.reliability.bodies import BOUNDARY, FORM, JSON, MULTIPART, OCTETS, repair_png
from tests.reliability.client import Request
from tests.reliability.seeds import IMAGE, PLAIN, TEXT, make_seeds

SEEDS = make_seeds()
MOST_CHANGES = 3
"""More of them leave nothing that a decoder would read on."""
MOST_PIECE = 64
"""Bytes that are inserted, dropped, doubled or moved at once: a few fields of any header."""
EDGES = (b"\0", b"\xff", b"\x7f\xff", b"\x80\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0")
"""Numbers at which lengths, sizes and counts go wrong."""
TYPES = (
    "", "image/jpeg", "image/png", "image/webp", "image/svg+xml", OCTETS, JSON, PLAIN, FORM, MULTIPART,
    "application/json; charset=utf-16", "text/plain; charset=klingon", "multipart/form-data", "nonsense",
)  # fmt: skip
HEADERS = (
    (("describe", "True"),), (("explain", "True"),), (("Content-Encoding", "gzip"),), (("X-A", "é" * 40),),
    (("Accept", "image/*"),), (("Cookie", "a=" + "b" * 4000),),
)  # fmt: skip
Draw = Callable[[st.SearchStrategy[Any]], Any]
MODELS = st.sampled_from((TEXT, IMAGE))


def make(model: str, body: bytes, kind: str, headers: tuple[tuple[str, str], ...] = ()) -> Request:
    """Without a token yet."""
    return Request(path=f"/predictions/{model}", body=body, content_type=kind, headers=headers)


@st.composite
def changed_seeds(draw: Draw) -> Request:
    """A good body with a few changes, mostly under its own content type."""
    seed = draw(st.sampled_from(SEEDS))
    body, kind = seed.body, seed.content_type
    for _ in range(draw(st.integers(1, MOST_CHANGES))):
        body = draw(st.sampled_from(CHANGES))(draw, body)
    if body.startswith(b"\x89PNG") and draw(st.booleans()):
        body = repair_png(body)
    odd = draw(st.integers(0, 7))
    kind = draw(st.sampled_from(TYPES)) if odd in (6, 7) else kind
    return make(seed.model, body, kind, draw(st.sampled_from(HEADERS)) if odd in (5, 6) else ())


def place(draw: Draw, body: bytes) -> int:
    return draw(st.integers(0, len(body)))


def piece(draw: Draw, body: bytes) -> tuple[int, int]:
    begin = place(draw, body)
    return begin, min(len(body), begin + draw(st.integers(1, MOST_PIECE)))


def flip(draw: Draw, body: bytes) -> bytes:
    """Other bits in one byte."""
    at, bits = place(draw, body), draw(st.integers(1, 255))
    return body[:at] + bytes(byte ^ bits for byte in body[at : at + 1]) + body[at + 1 :]


def overwrite(draw: Draw, body: bytes) -> bytes:
    """A number at its edge."""
    at, edge = place(draw, body), draw(st.sampled_from(EDGES))
    return body[:at] + edge + body[at + len(edge) :]


def cut(draw: Draw, body: bytes) -> bytes:
    """Only the beginning."""
    return body[: place(draw, body)]


def drop(draw: Draw, body: bytes) -> bytes:
    """A piece less."""
    begin, end = piece(draw, body)
    return body[:begin] + body[end:]


def insert(draw: Draw, body: bytes) -> bytes:
    """Bytes of chance more."""
    at = place(draw, body)
    return body[:at] + draw(st.binary(min_size=1, max_size=16)) + body[at:]


def double(draw: Draw, body: bytes) -> bytes:
    """A piece twice, or many times."""
    begin, end = piece(draw, body)
    return body[:end] + body[begin:end] * draw(st.sampled_from((1, 2, 100))) + body[end:]


def swap(draw: Draw, body: bytes) -> bytes:
    """Two neighbouring pieces change places."""
    begin, middle = piece(draw, body)
    end = min(len(body), middle + draw(st.integers(1, MOST_PIECE)))
    return body[:begin] + body[middle:end] + body[begin:middle] + body[end:]


def splice(draw: Draw, body: bytes) -> bytes:
    """The beginning of one and the end of another."""
    other = draw(st.sampled_from(SEEDS)).body
    return body[: place(draw, body)] + other[place(draw, other) :]


CHANGES = (flip, overwrite, cut, drop, insert, double, swap, splice)

_NUMBERS = st.one_of(st.integers(), st.floats(), st.sampled_from((10**400, -0.0, 1e308)))
_TREES = st.recursive(
    st.one_of(st.none(), st.booleans(), _NUMBERS, st.text(max_size=30)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=10),
        st.dictionaries(st.one_of(st.sampled_from(("text", "data", "body")), st.text(max_size=5)), inner),
    ),
    max_leaves=12,
)
_FIELDS = st.sampled_from(("text", "data", "body", "file", "", "a[]"))


@st.composite
def json_trees(draw: Draw) -> Request:
    """Any tree, mostly where a handler looks."""
    tree = draw(_TREES)
    wrapped = draw(st.sampled_from((tree, {"text": tree}, {"data": tree}, {"text": [tree]})))
    text = json.dumps(wrapped, ensure_ascii=draw(st.booleans()))
    body = text.encode(draw(st.sampled_from(("utf-8", "utf-8-sig", "utf-16", "utf-32"))), "surrogatepass")
    return make(draw(MODELS), body, draw(st.sampled_from((JSON, PLAIN))))


@st.composite
def texts(draw: Draw) -> Request:
    """Any text in any encoding, some long."""
    text = draw(st.text(min_size=1, max_size=60)) * draw(st.sampled_from((1, 1, 1, 50, 1000)))
    encoding = draw(st.sampled_from(("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "latin-1", "cp1252")))
    kind = draw(st.sampled_from((PLAIN, "text/plain", OCTETS, "")))
    return make(TEXT, text.encode(encoding, "replace") or b"?", kind)


@st.composite
def forms(draw: Draw) -> Request:
    """Urlencoded fields, and what only looks like them."""
    fields = draw(st.lists(st.tuples(_FIELDS, st.binary(max_size=30)), max_size=5))
    body = urlencode(fields).encode() + draw(st.sampled_from((b"", b"&", b"&=", b"%", b"%zz", b"&a=%f")))
    return make(draw(MODELS), body or b"&", FORM)


@st.composite
def multiparts(draw: Draw) -> Request:
    """Parts with any names and contents; the last boundary may be missing."""
    body = b""
    for name, content in draw(st.lists(st.tuples(_FIELDS, st.binary(max_size=60)), max_size=4)):
        head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"'
        head += draw(st.sampled_from(("", '; filename="a.jpg"', '; filename="../a"', "; filename*=utf-8''%")))
        head += draw(
            st.sampled_from(("", "\r\nContent-Type: image/jpeg", "\r\nContent-Transfer-Encoding: x"))
        )
        body += head.encode() + b"\r\n\r\n" + content + b"\r\n"
    body += draw(st.sampled_from((f"--{BOUNDARY}--\r\n".encode(), b"--", b"\r\n")))
    return make(draw(MODELS), body, MULTIPART)


def requests() -> st.SearchStrategy[Request]:
    """Three in four are good bodies changed; the rest is drawn from nothing."""
    others = st.one_of(json_trees(), texts(), forms(), multiparts())
    return st.integers(0, 3).flatmap(lambda which: changed_seeds() if which else others)
