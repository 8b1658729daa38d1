"""One request: what a client sent, whatever form the server hands it over in, and how it is meant.

The content type decides where it says something: JSON is JSON, `text/*` is text. Where it does not (none, or
application/octet-stream), a body that looks like JSON is JSON and must then be right: broken JSON that passed
for a text would be classified, and nobody would see it.

Read in TorchServe 0.12: InferenceRequestHandler.parseRequest puts a plain body under `body`, a form's fields
under their names (without HAProxy in front, which hides them: forms.py) and a query's parameters beside them;
ts/service.py adds to the headers, which keep the client's case, each value's own content type under the
value's name.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from handlers.shared.errors import BadRequest

SHOWN_KEYS = 5
SHOWN_CHARACTERS = 40
"""Of what a client sent, in an error: a binary body posted as a form would come back whole."""

MAX_VALUES = 1000
"""Of JSON around one image in base64, which itself has no comma; one value is meant. Unbounded, 16 MiB of
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
FORM_TYPE = "x-multipart/"
"""Begins the Content-Type of a form that HAProxy hands over whole; what the client wrote behind multipart/
follows."""
RAW = (bytes, bytearray, memoryview)
PROTOCOL = "x-kit-protocol"
"""Header by which the reverse proxy says which protocol an address has (config/protocols.py)."""
JSON_BYTES = "inference-header-content-length"
"""Header of Open Inference Protocol v2: how many bytes of the body are JSON; the rest are tensors."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request's body and what its headers say of it; its methods raise BadRequest for what is wrong."""

    content: Any
    """Bytes; what the server has parsed (a dict, list or str); or a form's fields, a dict of bytes
    or requests."""
    content_type: str = ""
    """In lower case, without parameters; empty where nothing was said."""
    charset: str = ""
    """In lower case; empty where nothing was said."""
    form: str = ""
    """The Content-Type of a form that nobody has opened yet (forms.open_form); its `content` is all of it."""
    protocol: str = ""
    """Of the body (handlers/protocols.py); empty: the kit's own, which is TorchServe's."""
    json_bytes: str = ""
    """What JSON_BYTES says."""

    def get(self, name: str, default: Any = None) -> Any:
        """As of TorchServe's rows: the content as `data` or `body`, else a form's or an object's field."""
        if isinstance(self.content, Mapping):
            return self.content.get(name, default)
        return self.content if name in BODY_NAMES else default

    @property
    def data(self) -> bytes | None:
        """The body's raw bytes, or None when the server has already parsed it (a dict, list or str)."""
        return bytes(self.content) if isinstance(self.content, RAW) else None

    @property
    def is_json(self) -> bool:
        """Whether the body is JSON, or was parsed already: by its content type, else by how it begins."""
        start = self.content
        if not isinstance(start, (*RAW, str)):
            return True
        if self.content_type.startswith("text/"):
            return False
        if self.content_type == "application/json" or self.content_type.endswith("+json"):
            return True
        if isinstance(start, str):
            start = start.lstrip("\ufeff \t\r\n")[:SHOWN_CHARACTERS].encode("utf-8", "replace")
        return LOOKS_LIKE_JSON.match(start) is not None

    def text(self, *, wanted: str) -> str:
        """The body as text, a UTF-8 byte order mark taken off; any other encoding is wrong. `wanted` says in
        the error what to send."""
        if isinstance(self.content, str):
            return self.content.removeprefix("\ufeff")
        data = bytes(self.content)
        _check_encoding(data, self.charset, wanted)
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise BadRequest(400, f"the text is not UTF-8 ({error}); send {wanted}") from error

    def json(self, *, wanted: str, max_values: int = MAX_VALUES) -> dict[str, Any]:
        """A JSON object, from text or as the server parsed it, with at most so many values."""
        parsed = self.content
        if isinstance(parsed, (*RAW, str)):
            parsed = _parse_json(self.text(wanted=wanted), wanted, max_values)
        if not isinstance(parsed, dict):
            raise BadRequest(
                400, f"the body must be a JSON object: got {type(parsed).__name__}; send {wanted}"
            )
        return parsed

    def field(self, name: str, *, wanted: str) -> Any:
        """The only field of a JSON object or a form."""
        return self.fields(name, wanted=wanted)[0]

    def fields(
        self, *names: str, optional: Sequence[str] = (), wanted: str, max_values: int = MAX_VALUES
    ) -> list[Any]:
        """Of a JSON object or a form, in this order, None for an optional one that is not there. Another is
        wrong: what is sent and not read would change no answer. One of a form is a Request of its own."""
        parsed = self.json(wanted=wanted, max_values=max_values)
        missing = next((name for name in names if name not in parsed), None)
        if missing is not None:
            cause = f'the request has no "{missing}"'
            raise BadRequest(400, f"{cause}: got {_name_keys(parsed)}; send {wanted}", cause=cause)
        known = (*names, *optional)
        others = [key for key in parsed if key not in known]
        if others:
            cause = f"there must be no field but {', '.join(known)}"
            raise BadRequest(400, f"{cause}: got {_name_keys(others)} too; send {wanted}", cause=cause)
        null = next((name for name in optional if name in parsed and parsed[name] is None), None)
        if null is not None:
            cause = f'"{null}" is null'
            raise BadRequest(400, f"{cause}: leave it out; send {wanted}", cause=cause)
        found = [parsed.get(name) for name in known]
        return [Request(content=one) if isinstance(one, RAW) else one for one in found]

    def check_content_type(self) -> None:
        """Wrong is curl's default: the server has taken such a body apart at each `&` and `=`."""
        if self.content_type == URLENCODED:
            raise BadRequest(
                415,
                f"the Content-Type {URLENCODED}, curl's own for -d and --data-binary, is not taken; send a "
                "file with `curl -T FILE`, JSON with `curl -H 'Content-Type: application/json' -d '{…}'`, or "
                "a form with `curl -F data=@FILE`",
            )


def read_request(row: Mapping[str, Any], headers: Mapping[str, Any]) -> Request:
    """From a row of TorchServe's: a plain body, a form that is still whole, or of one that TorchServe has
    taken apart its `data` or `body` field, else all its fields."""
    said = _find_content_type(headers)
    if said.lower().startswith(FORM_TYPE):
        return Request(content=row.get("body", b""), form=said, protocol=headers.get(PROTOCOL, ""))
    name = next((one for one in BODY_NAMES if one in row), None)
    if name is not None and said.lower().startswith("multipart/"):
        part = headers.get(name)
        said = part.get("content-type", "") if isinstance(part, Mapping) else ""
    content_type, charset = _parse_content_type(said)
    content = dict(row) if name is None else row[name]
    return Request(
        content=content, content_type=content_type, charset=charset,
        protocol=headers.get(PROTOCOL, ""), json_bytes=headers.get(JSON_BYTES, ""),
    )  # fmt: skip


def _find_content_type(headers: Mapping[str, Any]) -> str:
    for name, value in headers.items():
        # A form's field may have any name, this one too: then the value is no text.
        if name.lower() == "content-type" and isinstance(value, str):
            return value
    return ""


@functools.lru_cache(maxsize=64)
def _parse_content_type(value: str) -> tuple[str, str]:
    content_type, *parameters = (part.strip() for part in value.lower().split(";"))
    given = dict(part.partition("=")[::2] for part in parameters)
    return content_type, given.get("charset", "").strip('"')


def _check_encoding(data: bytes, charset: str, wanted: str) -> None:
    foreign = next((name for mark, name in FOREIGN_MARKS.items() if data.startswith(mark)), None)
    if foreign:
        raise BadRequest(415, f"texts must be UTF-8: got {foreign}, by the byte order mark; send {wanted}")
    if charset not in UTF8_NAMES:
        raise BadRequest(415, f"texts must be UTF-8: got charset={charset[:SHOWN_CHARACTERS]}; send {wanted}")


def _parse_json(text: str, wanted: str, max_values: int) -> Any:
    # Before it is parsed: each value costs up to 200 bytes, and a comma in a string counts for one too.
    values = sum(map(text.count, ",[{"))
    if values > max_values:
        raise BadRequest(
            413, f"the JSON has {values} commas and brackets: at most {max_values} are read; send {wanted}"
        )
    try:
        return json.loads(text, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        raise BadRequest(400, f"the body is not JSON ({error}); send {wanted}") from error


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


def _name_keys(keys: Iterable[Any]) -> str:
    shown = [repr(str(key)[:SHOWN_CHARACTERS]) for key in sorted(keys, key=str)[:SHOWN_KEYS]]
    return ", ".join(shown) or "no field"


def decode_base64(value: Any, *, field: str) -> bytes:
    """Bytes from a base64 string, with or without a `data:…;base64,` prefix."""
    if not isinstance(value, str):
        raise BadRequest(400, f"{field} must be a base64 string: got {type(value).__name__}")
    try:
        # Tools such as base64(1) wrap their lines.
        return base64.b64decode("".join(value.rpartition("base64,")[2].split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadRequest(400, f"{field} is not base64: {error}") from error
