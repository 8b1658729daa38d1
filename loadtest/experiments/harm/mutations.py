"""Draws bodies with Hypothesis: good ones changed at any place, JSON trees, texts, forms, odd headers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any
from urllib.parse import urlencode

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from loadtest.experiments.harm.bodies import BOUNDARY, FORM, JSON, MULTIPART, OCTETS, repair_png
from loadtest.experiments.harm.client import Request
from loadtest.experiments.harm.seeds import BERT, RESNET50, TEXT, Seed

MOST_CHANGES = 3
"""More of them leave nothing that a decoder would read on."""
MOST_PIECE = 64
"""Bytes that are inserted, dropped, doubled or moved at once: a few fields of any header."""
SHARE_CHANGED, SHARE_ODD = 0.75, 0.25
"""Of good bodies that are changed; and of those, under a content type or headers of their own."""
EDGES = (b"\0", b"\xff", b"\x7f\xff", b"\x80\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0")
"""Numbers at which lengths, sizes and counts go wrong."""
Headers = tuple[tuple[str, str], ...]
TYPES = (
    "", "image/jpeg", "image/png", "image/webp", "image/svg+xml", OCTETS, JSON, TEXT, FORM, MULTIPART,
    "application/json; charset=utf-16", "text/plain; charset=klingon", "multipart/form-data", "nonsense",
)  # fmt: skip
HEADERS: tuple[Headers, ...] = (
    (("describe", "True"),), (("explain", "True"),), (("Content-Encoding", "gzip"),), (("X-A", "é" * 40),),
    (("Accept", "image/*"),), (("Cookie", "a=" + "b" * 4000),),
)  # fmt: skip
Draw = Callable[[st.SearchStrategy[Any]], Any]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One body to try."""

    origin: str
    """The seed or the kind it comes from."""
    model: str
    request: Request
    """Without a token yet."""


def draw_cases(seeds: Sequence[Seed], count: int, number: int) -> list[Case]:
    """So many different ones; the same for the same number and version of Hypothesis."""
    drawn: dict[Request, Case] = {}
    while len(drawn) < count:
        # Never a few only: the first ones that Hypothesis makes are always its simplest.
        drawn.update((case.request, case) for case in _draw_some(seeds, max(count // 2, 100), number))
        number += 1
    return list(drawn.values())[:count]


def _draw_some(seeds: Sequence[Seed], count: int, number: int) -> list[Case]:
    drawn: list[Case] = []

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(draw_case(seeds))
    def collect(case: Case) -> None:
        drawn.append(case)

    collect()
    return drawn


@st.composite
def draw_case(draw: Draw, seeds: Sequence[Seed]) -> Case:
    """Three in four are good bodies changed; the rest is drawn from nothing."""
    # Hypothesis likes small numbers and likes to repeat itself; every place of a body is to be as likely.
    chance = draw(st.randoms(use_true_random=True))
    if chance.random() < SHARE_CHANGED:
        return change_seed(chance, seeds)
    return draw(st.one_of(draw_json(), draw_text(), draw_form(), draw_multipart()))


def change_seed(chance: Random, seeds: Sequence[Seed]) -> Case:
    """A good body with a few changes, mostly under its own content type."""
    origin = chance.choice(seeds)
    body = origin.body
    for change in chance.choices(CHANGES, k=chance.randint(1, MOST_CHANGES)):
        body = change(chance, body, seeds)
    if body.startswith(b"\x89PNG") and chance.random() < 0.5:
        body = repair_png(body)
    kind = chance.choice(TYPES) if chance.random() < SHARE_ODD else origin.content_type
    headers = chance.choice(HEADERS) if chance.random() < SHARE_ODD else ()
    return _make(origin.name, origin.model, body, kind, headers)


def _make(origin: str, model: str, body: bytes, kind: str, headers: Headers = ()) -> Case:
    request = Request(path=f"/predictions/{model}", body=body, content_type=kind, headers=headers)
    return Case(origin=origin, model=model, request=request)


def _place(chance: Random, body: bytes) -> int:
    return chance.randint(0, len(body))


def _piece(chance: Random, body: bytes) -> tuple[int, int]:
    begin = _place(chance, body)
    return begin, min(len(body), begin + chance.randint(1, MOST_PIECE))


def flip(chance: Random, body: bytes, _: Sequence[Seed]) -> bytes:
    """Other bits in one byte."""
    at, bits = _place(chance, body), chance.randint(1, 255)
    return body[:at] + bytes(byte ^ bits for byte in body[at : at + 1]) + body[at + 1 :]


def overwrite(chance: Random, body: bytes, _: Sequence[Seed]) -> bytes:
    """A number at its edge."""
    at, edge = _place(chance, body), chance.choice(EDGES)
    return body[:at] + edge + body[at + len(edge) :]


def cut(chance: Random, body: bytes, _: Sequence[Seed]) -> bytes:
    """Only the beginning."""
    return body[: _place(chance, body)]


def drop(chance: Random, body: bytes, _: Sequence[Seed]) -> bytes:
    """A piece less."""
    begin, end = _piece(chance, body)
    return body[:begin] + body[end:]


def insert(chance: Random, body: bytes, _: Sequence[Seed]) -> bytes:
    """Bytes of chance more."""
    at = _place(chance, body)
    return body[:at] + chance.randbytes(chance.randint(1, 16)) + body[at:]


def double(chance: Random, body: bytes, _: Sequence[Seed]) -> bytes:
    """A piece twice, or many times."""
    begin, end = _piece(chance, body)
    return body[:end] + body[begin:end] * chance.choice((1, 2, 100)) + body[end:]


def swap(chance: Random, body: bytes, _: Sequence[Seed]) -> bytes:
    """Two neighbouring pieces change places."""
    begin, middle = _piece(chance, body)
    end = min(len(body), middle + chance.randint(1, MOST_PIECE))
    return body[:begin] + body[middle:end] + body[begin:middle] + body[end:]


def splice(chance: Random, body: bytes, seeds: Sequence[Seed]) -> bytes:
    """The beginning of one and the end of another."""
    other = chance.choice(seeds).body
    return body[: _place(chance, body)] + other[_place(chance, other) :]


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


@st.composite
def draw_json(draw: Draw) -> Case:
    """Any tree, mostly where a handler looks."""
    tree = draw(_TREES)
    wrapped = draw(st.sampled_from((tree, {"text": tree}, {"data": tree}, {"text": [tree]})))
    text = json.dumps(wrapped, ensure_ascii=draw(st.booleans()))
    body = text.encode(draw(st.sampled_from(("utf-8", "utf-8-sig", "utf-16", "utf-32"))), "surrogatepass")
    return _make("json", draw(st.sampled_from((BERT, RESNET50))), body, draw(st.sampled_from((JSON, TEXT))))


@st.composite
def draw_text(draw: Draw) -> Case:
    """Any text in any encoding, some long."""
    text = draw(st.text(min_size=1, max_size=60)) * draw(st.sampled_from((1, 1, 1, 50, 1000)))
    encoding = draw(st.sampled_from(("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "latin-1", "cp1252")))
    kind = draw(st.sampled_from((TEXT, "text/plain", OCTETS, "")))
    return _make("text", BERT, text.encode(encoding, "replace") or b"?", kind)


_FIELDS = st.sampled_from(("text", "data", "body", "file", "", "a[]"))


@st.composite
def draw_form(draw: Draw) -> Case:
    """Urlencoded fields, and what only looks like them."""
    fields = draw(st.lists(st.tuples(_FIELDS, st.binary(max_size=30)), max_size=5))
    body = urlencode(fields).encode() + draw(st.sampled_from((b"", b"&", b"&=", b"%", b"%zz", b"&a=%f")))
    return _make("form", draw(st.sampled_from((BERT, RESNET50))), body or b"&", FORM)


@st.composite
def draw_multipart(draw: Draw) -> Case:
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
    return _make("multipart", draw(st.sampled_from((BERT, RESNET50))), body, MULTIPART)
