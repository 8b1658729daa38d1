"""What a body is in the rows that TorchServe's worker hands over."""

from __future__ import annotations

import pytest

from handlers.shared.rows import read_body
from tests.handlers.context import Sent, form, plain, rows_and_context


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
