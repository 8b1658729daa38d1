"""Bodies in every form that TorchServe hands over."""

from __future__ import annotations

import pytest

from handlers import request
from handlers.request import Request, decode_base64, read_request
from handlers.shared.errors import BadRequest
from tests.handlers.context import Sent, form, plain, rows_and_context


def test_json_nested_beyond_reason_is_rejected():
    with pytest.raises(BadRequest, match="the body is not JSON"):
        Request(content=b'{"a":' * 200_000).json(wanted="x", max_values=10**6)


@pytest.mark.parametrize("body", [b"[[]," + b"[]," * 2000 + b"[]]", '{"a": [' + "1," * 2000 + "1]}"])
def test_wide_json_is_rejected_before_it_is_parsed(body, monkeypatch):
    monkeypatch.setattr(request.json, "loads", lambda *_, **__: pytest.fail("it was parsed"))
    with pytest.raises(BadRequest, match="commas and brackets: at most 1000 are read") as caught:
        Request(content=body).json(wanted="x")
    assert caught.value.status == 413


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_json_value_is_rejected(constant):
    with pytest.raises(BadRequest, match=f"not JSON \\({constant} is no JSON value\\)"):
        Request(content=f'{{"a": {constant}}}').json(wanted="x")


@pytest.mark.parametrize(
    ("content", "content_type", "json"),
    [
        (b'{"text": "a"}', "", True),
        (b'\xef\xbb\xbf {"text": "a"}', "application/octet-stream", True),
        ('\ufeff{"text": "a"}', "", True),
        (b' [ "a", "b"]', "", True),
        (b"[deleted] by its author", "", False),
        (b"a {", "", False),
        (b"{curly}", "text/plain", False),
        ("{curly}", "text/markdown", False),
        (b"good", "application/json", True),
        (b"good", "application/vnd.api+json", True),
        ({"text": "a"}, "", True),
        (None, "text/plain", True),
    ],
)
def test_the_content_type_decides_else_how_the_body_begins(content, content_type, json):
    assert Request(content=content, content_type=content_type).is_json is json


@pytest.mark.parametrize(
    ("value", "message"), [(5, '"data" must be a base64 string: got int'), ("a*b", '"data" is not base64')]
)
def test_wrong_base64_is_rejected(value, message):
    with pytest.raises(BadRequest) as caught:
        decode_base64(value, field='"data"')
    assert message in str(caught.value)


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
    found = read_request(rows[0], context.get_all_request_header(0))
    assert (found.content, found.content_type) == (content, content_type)


@pytest.mark.parametrize(
    ("content", "name", "found"),
    [
        (b"x", "data", b"x"),
        (b"x", "body", b"x"),
        (b"x", "text", None),
        ({"text": "a"}, "text", "a"),
        ({"text": "a"}, "body", None),
    ],
)
def test_a_request_is_read_as_torchserves_own_handlers_read_a_row(content, name, found):
    assert Request(content=content).get(name) == found


def test_several_fields_are_all_there_but_the_optional_ones():
    def read(body):
        return Request(content=body).fields("rooms", "area", optional=["year"], wanted='{"rooms": 3}')

    assert read({"area": 80, "rooms": 3}) == [3, 80, None]
    assert read({"area": 80, "rooms": 3, "year": 1995}) == [3, 80, 1995]
    with pytest.raises(BadRequest, match='the request has no "area"'):
        read({"rooms": 3, "year": 1995})
    with pytest.raises(BadRequest, match="no field but rooms, area, year: got 'garden' too"):
        read({"rooms": 3, "area": 80, "garden": 1})
    with pytest.raises(BadRequest, match='"year" is null: leave it out'):
        read({"rooms": 3, "area": 80, "year": None})
