"""Reads request bodies in each of the forms that TorchServe hands to a handler."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from handlers.shared.errors import RequestError


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
    except (TypeError, ValueError) as error:
        raise RequestError(f"the body is not JSON ({error}); send {wanted}") from error
    if not isinstance(parsed, dict):
        raise RequestError(f"the body must be a JSON object: got {type(parsed).__name__}; send {wanted}")
    return parsed


def decode_base64(value: Any, *, field: str) -> bytes:
    """Bytes from a base64 string, with or without a `data:…;base64,` prefix."""
    if not isinstance(value, str):
        raise RequestError(f"{field} must be a base64 string: got {type(value).__name__}")
    try:
        return base64.b64decode(value.rpartition("base64,")[2], validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestError(f"{field} is not base64: {error}") from error
