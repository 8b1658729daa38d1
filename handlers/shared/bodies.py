"""Request bodies: what a client sent, whatever form the server hands it over in, and how it is meant.

The content type decides where it says something: JSON is JSON, `text/*` is text. Where it does not (none, or
application/octet-stream), a body that looks like JSON is JSON and must then be right: broken JSON that passed
for a text would be classified, and nobody would see it.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from handlers.shared.errors import RequestError

SHOWN_KEYS = 5
SHOWN_CHARACTERS = 40
"""Of what a client sent, in an error: a binary body posted as a form would come back whole."""

MAX_VALUES = 1000
"""Of JSON around one picture in base64, which itself has no comma; one value is meant. Unbounded, 16 MiB of
`[[],[],…` became 360 MB."""

LOOKS_LIKE_JSON = re.compile(rb'(?:\xef\xbb\xbf)?\s*(?:\{|\[\s*["{\[])')
"""An object, or a list of strings, objects or lists; `[deleted]` is a text."""

FOREIGN_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",  # before UTF-16's, with which it begins
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
"""Byte order marks of what is not UTF-8."""

UTF8_NAMES = ("", "utf-8", "utf8", "us-ascii")
BODY_NAMES = ("data", "body")
"""Fields of a form that are the body itself; others stand for the field of a JSON object."""
URLENCODED = "application/x-www-form-urlencoded"
RAW = (bytes, bytearray, memoryview)


@dataclass(frozen=True, kw_only=True)
class Body:
    """One request's body and what its headers say of it."""

    content: Any
    """Bytes; what the server has parsed (a dict, list or str); or a form's fields, a dict of bytes
    or bodies."""
    content_type: str = ""
    """In lower case, without parameters; empty where nothing was said."""
    charset: str = ""
    """In lower case; empty where nothing was said."""
    form: str = ""
    """The Content-Type of a form that nobody has opened yet (forms.open_form); its `content` is all of it."""


def as_body(body: Any) -> Body:
    """The body itself, or one of which no more is known than its content."""
    return body if isinstance(body, Body) else Body(content=body)


def check_content_type(body: Any) -> None:
    """RequestError for curl's default: the server has taken such a body apart at each `&` and `=`."""
    if as_body(body).content_type == URLENCODED:
        raise RequestError(
            f"the Content-Type {URLENCODED}, curl's own for -d and --data-binary, is not taken; send a file "
            "with `curl -T FILE`, JSON with `curl -H 'Content-Type: application/json' -d '{…}'`, or a form "
            "with `curl -F data=@FILE`",
            status=415,
        )


def as_bytes(body: Any) -> bytes | None:
    """The body's raw bytes, or None when the server has already parsed it (a dict, list or str)."""
    content = as_body(body).content
    return bytes(content) if isinstance(content, RAW) else None


def is_json(body: Any) -> bool:
    """Whether the body is JSON, or was parsed already: by its content type, else by how it begins."""
    body = as_body(body)
    if not isinstance(body.content, (*RAW, str)):
        return True
    if body.content_type.startswith("text/"):
        return False
    if body.content_type == "application/json" or body.content_type.endswith("+json"):
        return True
    start = body.content
    if isinstance(start, str):
        start = start.lstrip("\ufeff \t\r\n")[:SHOWN_CHARACTERS].encode("utf-8", "replace")
    return LOOKS_LIKE_JSON.match(start) is not None


def decode_text(body: Any, *, wanted: str) -> str:
    """The body as text, a UTF-8 byte order mark taken off; RequestError for any other encoding."""
    body = as_body(body)
    if isinstance(body.content, str):
        return body.content.removeprefix("\ufeff")
    data = bytes(body.content)
    _check_encoding(data, body.charset, wanted)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RequestError(f"the text is not UTF-8 ({error}); send {wanted}") from error


def _check_encoding(data: bytes, charset: str, wanted: str) -> None:
    foreign = next((name for mark, name in FOREIGN_MARKS.items() if data.startswith(mark)), None)
    if foreign:
        raise RequestError(
            f"texts must be UTF-8: got {foreign}, by the byte order mark; send {wanted}", status=415
        )
    if charset not in UTF8_NAMES:
        raise RequestError(
            f"texts must be UTF-8: got charset={charset[:SHOWN_CHARACTERS]}; send {wanted}", status=415
        )


def parse_json_object(body: Any, *, wanted: str, max_values: int = MAX_VALUES) -> dict[str, Any]:
    """A JSON object from bytes, text or what the server parsed; RequestError names the wanted form."""
    parsed = as_body(body).content
    if isinstance(parsed, (*RAW, str)):
        parsed = _parse_json(decode_text(body, wanted=wanted), wanted, max_values)
    if not isinstance(parsed, dict):
        raise RequestError(f"the body must be a JSON object: got {type(parsed).__name__}; send {wanted}")
    return parsed


def _parse_json(text: str, wanted: str, max_values: int) -> Any:
    # Before it is parsed: each value costs up to 200 bytes, and a comma in a string counts for one too.
    values = sum(map(text.count, ",[{"))
    if values > max_values:
        raise RequestError(
            f"the JSON has {values} commas and brackets: at most {max_values} are read; send {wanted}",
            status=413,
        )
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not JSON ({error}); send {wanted}") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


def take_field(parsed: Mapping[str, Any], field: str, *, wanted: str) -> Any:
    """The only field of a JSON object or a form; RequestError names what is there instead, or beside it, in
    bounds: what is sent and not read would change no answer."""
    if field not in parsed:
        missing = f'the request has no "{field}"'
        raise RequestError(f"{missing}: got {_name_keys(parsed)}; send {wanted}", cause=missing)
    others = [key for key in parsed if key != field]
    if others:
        beside = f'"{field}" must be the only field'
        raise RequestError(f"{beside}: got {_name_keys(others)} too; send {wanted}", cause=beside)
    return parsed[field]


def _name_keys(keys: Iterable[Any]) -> str:
    shown = [repr(str(key)[:SHOWN_CHARACTERS]) for key in sorted(keys, key=str)[:SHOWN_KEYS]]
    return ", ".join(shown) or "no field"


def decode_base64(value: Any, *, field: str) -> bytes:
    """Bytes from a base64 string, with or without a `data:…;base64,` prefix."""
    if not isinstance(value, str):
        raise RequestError(f"{field} must be a base64 string: got {type(value).__name__}")
    try:
        # Tools such as base64(1) wrap their lines.
        return base64.b64decode("".join(value.rpartition("base64,")[2].split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestError(f"{field} is not base64: {error}") from error
