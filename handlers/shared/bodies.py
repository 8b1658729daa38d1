"""Reads request bodies in each of the forms that TorchServe hands to a handler."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from handlers.shared.errors import RequestError

SHOWN_KEYS = 5
SHOWN_CHARACTERS = 40
"""Of what a client sent, in an error: a binary body posted as a form would come back whole."""


def as_bytes(body: Any) -> bytes | None:
    """The body's raw bytes, or None when the server has already parsed it (a dict, list or str)."""
    if isinstance(body, (bytes, bytearray, memoryview)):
        return bytes(body)
    return None


def parse_json_object(body: Any, *, wanted: str) -> dict[str, Any]:
    """A JSON object from bytes, text or what the server parsed; RequestError names the wanted form."""
    if isinstance(body, dict):
        return body
    try:
        parsed = json.loads(body)
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"the body is not JSON ({error}); send {wanted}") from error
    if not isinstance(parsed, dict):
        raise RequestError(f"the body must be a JSON object: got {type(parsed).__name__}; send {wanted}")
    return parsed


def take_field(parsed: dict[str, Any], field: str, *, wanted: str) -> Any:
    """One field of a JSON object; RequestError names what is there instead, in bounds."""
    if field not in parsed:
        there = ", ".join(repr(str(key)[:SHOWN_CHARACTERS]) for key in sorted(parsed, key=str)[:SHOWN_KEYS])
        raise RequestError(f'the JSON object has no "{field}": got {there or "no field"}; send {wanted}')
    return parsed[field]


def decode_base64(value: Any, *, field: str) -> bytes:
    """Bytes from a base64 string, with or without a `data:…;base64,` prefix."""
    if not isinstance(value, str):
        raise RequestError(f"{field} must be a base64 string: got {type(value).__name__}")
    try:
        # Tools such as base64(1) wrap their lines.
        return base64.b64decode("".join(value.rpartition("base64,")[2].split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestError(f"{field} is not base64: {error}") from error
