"""How TorchServe's worker reads a request from its socket, and what a body then is."""

from __future__ import annotations

import io
import struct
from typing import Any

import pytest
from ts.protocol import otf_message_handler

from handlers.shared.rows import read_body
from tests.handlers.context import Sent, form, plain, rows_and_context


class Socket(io.BytesIO):
    """Bytes that TorchServe's frontend would have written."""

    def recv(self, length: int) -> bytes:
        return self.read(length)


def frame(*fields: bytes) -> Socket:
    return Socket(b"".join(struct.pack("!i", len(field)) + field for field in fields))


@pytest.mark.parametrize(
    ("switch", "content_type", "value"),
    [
        ("false", "application/json", b"[[],[]]"),
        ("false", "text/plain", b"good"),
        ("true", "application/json", [[], []]),  # what it is for: parsed before anybody looks at its size
        (None, "application/json", [[], []]),
    ],
)
def test_bodies_arrive_as_bytes_where_decode_input_request_is_false(monkeypatch, switch, content_type, value):
    monkeypatch.delenv("TS_DECODE_INPUT_REQUEST", raising=False)
    if switch:
        monkeypatch.setenv("TS_DECODE_INPUT_REQUEST", switch)
    body = b"good" if content_type == "text/plain" else b"[[],[]]"
    read: dict[str, Any] = otf_message_handler._retrieve_input_data(
        frame(b"body", content_type.encode(), body)
    )
    assert read["value"] == value


@pytest.mark.parametrize(
    ("sent", "content", "content_type"),
    [
        (plain(b"x", "text/plain; charset=utf-8"), b"x", "text/plain"),
        (plain(b"x"), b"x", ""),
        # a form's part says what it is; the form says only that it is one
        (form(("data", "image/jpeg", b"x")), b"x", "image/jpeg"),
        (form(("data", "", b"x")), b"x", ""),
        (form(("text", "", b"x"), ("more", "", b"y")), {"text": b"x", "more": b"y"}, "multipart/form-data"),
        (form(("data", "", b"x"), ("body", "", b"y")), b"x", ""),
        # a query's parameter stands beside the body
        (Sent(values=[("model_name", "", b"m"), ("body", "", b"x")]), b"x", ""),
        # a field with a header's name is no header
        (form(("content-type", "", b"x")), {"content-type": b"x"}, "multipart/form-data"),
        # a header with the name of a field takes its place in TorchServe's dictionary
        (form(("data", "text/plain", b"x"), data="text/html"), b"x", ""),
        (Sent(), {}, ""),
    ],
)
def test_a_body_is_found_with_its_content_type(tmp_path, sent, content, content_type):
    rows, context = rows_and_context(tmp_path, sent)
    body = read_body(rows[0], context.get_all_request_header(0))
    assert (body.content, body.content_type) == (content, content_type)
