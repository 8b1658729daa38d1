"""Bodies in every form that TorchServe hands over."""

from __future__ import annotations

import base64

import pytest

from handlers.shared import bodies
from handlers.shared.bodies import (
    Body,
    as_bytes,
    check_content_type,
    decode_base64,
    decode_text,
    is_json,
    parse_json_object,
    take_field,
)
from handlers.shared.errors import RequestError


@pytest.mark.parametrize("body", [b"abc", bytearray(b"abc"), memoryview(b"abc")])
def test_raw_bodies_become_bytes(body):
    assert as_bytes(body) == b"abc"


@pytest.mark.parametrize("body", ["abc", {"a": 1}, ["abc"], None])
def test_parsed_bodies_are_not_bytes(body):
    assert as_bytes(body) is None


@pytest.mark.parametrize("body", [b'{"a": 1}', bytearray(b'{"a": 1}'), '{"a": 1}', {"a": 1}])
def test_json_is_read_from_each_form(body):
    assert parse_json_object(body, wanted="x") == {"a": 1}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "the body is not JSON"),
        (b"[1]", "the body must be a JSON object: got list; send a thing"),
        (None, "the body must be a JSON object: got NoneType; send a thing"),
    ],
)
def test_wrong_json_is_refused(body, message):
    with pytest.raises(RequestError, match="send a thing") as caught:
        parse_json_object(body, wanted="a thing")
    assert message in str(caught.value)


def test_json_nested_beyond_reason_is_refused():
    with pytest.raises(RequestError, match="the body is not JSON"):
        parse_json_object(b'{"a":' * 200_000, wanted="x", max_values=10**6)


@pytest.mark.parametrize("body", [b"[[]," + b"[]," * 2000 + b"[]]", '{"a": [' + "1," * 2000 + "1]}"])
def test_wide_json_is_refused_before_it_is_parsed(body, monkeypatch):
    monkeypatch.setattr(bodies.json, "loads", lambda *_, **__: pytest.fail("it was parsed"))
    with pytest.raises(RequestError, match="commas and brackets: at most 1000 are read") as caught:
        parse_json_object(body, wanted="x")
    assert caught.value.status == 413


def test_a_picture_in_base64_is_one_value():
    body = b'{"data": "data:image/png;base64,' + b"A+/=" * 10_000 + b'"}'
    assert len(parse_json_object(body, wanted="x")["data"]) > 40_000


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_json_value_is_refused(constant):
    with pytest.raises(RequestError, match=f"not JSON \\({constant} is no JSON value\\)"):
        parse_json_object(f'{{"a": {constant}}}', wanted="x")


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
    assert is_json(Body(content=content, content_type=content_type)) is json


@pytest.mark.parametrize(
    ("encoding", "name"),
    [("utf-16", "UTF-16"), ("utf-32", "UTF-32"), ("utf-16-be", "UTF-16"), ("utf-32-be", "UTF-32")],
)
def test_another_encoding_is_named(encoding, name):
    with pytest.raises(
        RequestError, match=f"texts must be UTF-8: got {name}, by the byte order mark"
    ) as caught:
        decode_text(
            ("\ufeff" if encoding.endswith("be") else "").encode(encoding) + "a".encode(encoding), wanted="x"
        )
    assert caught.value.status == 415


def test_another_charset_is_named():
    with pytest.raises(RequestError, match="texts must be UTF-8: got charset=iso-8859-1; send x") as caught:
        decode_text(Body(content=b"a", charset="iso-8859-1"), wanted="x")
    assert caught.value.status == 415
    assert decode_text(Body(content="ä".encode(), charset="utf-8"), wanted="x") == "ä"


@pytest.mark.parametrize("body", [b"\xef\xbb\xbfgood", "\ufeffgood", b"good"])
def test_a_byte_order_mark_is_taken_off(body):
    assert decode_text(body, wanted="x") == "good"


def test_curls_default_form_is_refused_with_the_right_line():
    with pytest.raises(RequestError) as caught:
        check_content_type(Body(content={}, content_type="application/x-www-form-urlencoded"))
    assert caught.value.status == 415
    for line in ("curl -T FILE", "-H 'Content-Type: application/json' -d", "curl -F data=@FILE"):
        assert line in str(caught.value)
    check_content_type(Body(content={}, content_type="multipart/form-data"))


def test_wrapped_base64_is_decoded():
    assert decode_base64("YWJj\nZGVm\n", field="x") == b"abcdef"


def test_a_missing_field_is_answered_in_bounds():
    with pytest.raises(RequestError) as caught:
        take_field({f"{number}" * 100: 1 for number in range(10, 99)}, "data", wanted="x")
    assert 'has no "data": got' in str(caught.value)
    assert len(str(caught.value)) < 300
    assert caught.value.cause == 'the request has no "data"', "a log quotes nothing of a body"


@pytest.mark.parametrize("prefix", ["", "data:image/png;base64,"])
def test_base64_is_decoded_with_and_without_prefix(prefix):
    assert decode_base64(prefix + base64.b64encode(b"abc").decode(), field="x") == b"abc"


@pytest.mark.parametrize(
    ("value", "message"), [(5, '"data" must be a base64 string: got int'), ("a*b", '"data" is not base64')]
)
def test_wrong_base64_is_refused(value, message):
    with pytest.raises(RequestError) as caught:
        decode_base64(value, field='"data"')
    assert message in str(caught.value)
