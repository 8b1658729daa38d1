"""Reads a multipart form (RFC 7578) of one field, whole as a client sent it.

TorchServe takes a form apart itself, and keeps only the last of several fields of one name (ts/service.py).
HAProxy therefore calls its type x-multipart/… (config/templates/), and TorchServe hands over the body.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from handlers.request import BODY_NAMES, FORM_TYPE, SHOWN_CHARACTERS, SHOWN_KEYS, Request
from handlers.shared.errors import BadRequest

MAX_HEADERS = 8192
"""Bytes of one field's headers: a file's name may have 255."""
AS_IT_IS = ("", "7bit", "8bit", "binary")
"""Content-Transfer-Encodings that change no byte; RFC 7578 has no others."""
HOW = "send one field: curl -F data=@FILE"

_PARAMETER = re.compile(r""";\s*([\w!#$%&'*+.^`|~-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;]*))""", re.DOTALL)
_LINE_END = re.compile(rb"(--)?[ \t]*(?:\r\n|\Z)")
"""Of a boundary's line; -- is the last one's."""


def open_form(body: Request) -> Request:
    """The one field of a form as a request: `data` or `body` itself, another as {name: Request}; what is no
    form is returned as it is. BadRequest for a form that is broken, or has none or several fields."""
    if not body.form:
        return body
    kind, boundary = _split_parameters(body.form, "boundary")
    if kind != f"{FORM_TYPE}form-data":
        shown = kind.removeprefix("x-")[:SHOWN_CHARACTERS]
        raise BadRequest(415, f"a form must be multipart/form-data: got {shown}; {HOW}")
    if not boundary:
        raise _broken("its Content-Type names no boundary")
    fields = list(islice(_read_fields(body.content, boundary.encode("latin-1", "replace")), SHOWN_KEYS + 1))
    if len(fields) != 1:
        names = ", ".join(repr(name[:SHOWN_CHARACTERS]) for name, _ in fields[:SHOWN_KEYS])
        more = ", …" if len(fields) > SHOWN_KEYS else ""
        wrong = f"a form must have one field: got {'several' if fields else 'none'}"
        raise BadRequest(400, f"{wrong}{': ' if fields else ''}{names}{more}; {HOW}", cause=wrong)
    ((name, field),) = fields
    return field if name in BODY_NAMES else Request(content={name: field})


def _read_fields(content: bytes, boundary: bytes) -> Iterator[tuple[str, Request]]:
    """(name, field) in their order; what is before the first and behind the last boundary is passed over."""
    mark = b"\r\n--" + boundary
    start = _LINE_END.match(content, len(mark) - 2) if content.startswith(mark[2:]) else None
    _, end, last = (0, start.end(), bool(start[1])) if start else _find_boundary(content, mark, 0)
    while not last:
        # Without headers the blank line follows at once, and without content the next boundary follows it.
        blank = content.find(b"\r\n\r\n", end - 2, end + MAX_HEADERS)
        if blank < 0:
            raise _broken(f"a field has no blank line after headers of at most {MAX_HEADERS} bytes")
        name, content_type, charset = _read_headers(bytes(content[end:blank]))
        begin = blank + len(b"\r\n\r\n")
        stop, end, last = _find_boundary(content, mark, blank + 2)
        yield (
            name,
            Request(content=memoryview(content)[begin:stop], content_type=content_type, charset=charset),
        )


def _find_boundary(content: bytes, mark: bytes, start: int) -> tuple[int, int, bool]:
    """(its begin, the end of its line, whether it is the last); lines that only begin like it are content."""
    begin = content.find(mark, start)
    found = None if begin < 0 else _LINE_END.match(content, begin + len(mark))
    if begin >= 0 and not found:
        # Compiling takes 0.2 ms, a loop over 16 MiB of such lines a second.
        found = re.compile(re.escape(mark) + _LINE_END.pattern).search(content, begin + 1)
        begin = found.start() if found else -1
    if not found:
        raise _broken("a line with its Content-Type's boundary is missing (lines end with CR LF)")
    return begin, found.end(), bool(found[1])


def _read_headers(head: bytes) -> tuple[str, str, str]:
    """A field's name, content type and charset."""
    lines = re.sub(r"\r\n[ \t]+", " ", head.decode("utf-8", "replace")).split("\r\n") if head else []
    headers = {
        name.lower(): value.strip() for name, colon, value in (one.partition(":") for one in lines) if colon
    }
    if len(headers) != len(lines):
        raise _broken("a field's headers are no `name: value` lines, or say one thing twice")
    kind, name = _split_parameters(headers.get("content-disposition", ""), "name")
    if kind != "form-data" or name is None:
        raise _broken('a field has no header `Content-Disposition: form-data; name="…"`')
    encoding = headers.get("content-transfer-encoding", "").lower()
    if encoding not in AS_IT_IS:
        shown = encoding[:SHOWN_CHARACTERS]
        raise BadRequest(415, f"a field must be sent as it is: got {shown}; {HOW}")
    content_type, charset = _split_parameters(headers.get("content-type", ""), "charset")
    if content_type.startswith("multipart/"):
        raise _broken("a field holds another form")
    return name, content_type, (charset or "").lower()


def _split_parameters(value: str, wanted: str) -> tuple[str, str | None]:
    """What a header's value says in lower case, and one of its parameters as it is written."""
    kind = value.partition(";")[0].strip().lower()
    for name, quoted, plain in _PARAMETER.findall(value):
        if name.lower() == wanted:
            return kind, re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL) or plain
    return kind, None


def _broken(how: str) -> BadRequest:
    return BadRequest(400, f"the form is broken: {how}; {HOW}")
