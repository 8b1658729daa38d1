"""What TorchServe hands over of one request: a row of named values, and its headers.

Read in TorchServe 0.12: InferenceRequestHandler.parseRequest puts a plain body under `body`, a form's fields
under their names (without HAProxy in front, which hides them: forms.py) and a query's parameters beside them;
ts/service.py adds to the headers, which keep the client's case, each value's own content type under the
value's name.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from handlers.shared.bodies import BODY_NAMES, Body
from handlers.shared.forms import FORM_TYPE

PREDICTION_HEADERS = {"content-type", "explain"}
"""One of them is on every prediction whose row is empty: only a form, which is known by its content type, can
have no fields, and /predictions sets `explain`. A describe call has neither."""


def is_describe(rows: Sequence[Mapping[str, Any]], headers: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the batch is the management API's describe call, which no holder of the inference token can
    make, whatever headers a prediction brings (ManagementRequestHandler.handleDescribeModel)."""
    if len(rows) != 1 or rows[0] or headers[0].get("describe") != "True":
        return False
    return not PREDICTION_HEADERS & {name.lower() for name in headers[0]}


def read_body(row: Mapping[str, Any], headers: Mapping[str, Any]) -> Body:
    """The body of a plain request, a form that is still whole, or of one that TorchServe has taken apart its
    `data` or `body` field, else all its fields."""
    said = _find_content_type(headers)
    if said.lower().startswith(FORM_TYPE):
        return Body(content=row.get("body", b""), form=said)
    name = next((one for one in BODY_NAMES if one in row), None)
    if name is not None and said.lower().startswith("multipart/"):
        part = headers.get(name)
        said = part.get("content-type", "") if isinstance(part, Mapping) else ""
    content_type, charset = _parse_content_type(said)
    return Body(content=dict(row) if name is None else row[name], content_type=content_type, charset=charset)


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
