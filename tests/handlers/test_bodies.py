"""Bodies in every form that TorchServe hands over."""

from __future__ import annotations

import base64

import pytest

from handlers.shared.bodies import as_bytes, decode_base64, parse_json_object, take_field
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
        parse_json_object(b'{"a":' * 200_000, wanted="x")


def test_wrapped_base64_is_decoded():
    assert decode_base64("YWJj\nZGVm\n", field="x") == b"abcdef"


def test_a_missing_field_is_answered_in_bounds():
    with pytest.raises(RequestError) as caught:
        take_field({f"{number}" * 100: 1 for number in range(10, 99)}, "data", wanted="x")
    assert 'has no "data": got' in str(caught.value)
    assert len(str(caught.value)) < 300


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
