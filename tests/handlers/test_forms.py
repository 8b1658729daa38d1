"""Forms as HAProxy hands them over: what one field holds comes out, and all else is a 4xx."""

from __future__ import annotations

import json
import re
import tracemalloc

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from urllib3.fields import RequestField
from urllib3.filepost import encode_multipart_formdata

from handlers.forms import open_form
from handlers.request import read_request
from handlers.shared.errors import BadRequest
from handlers.text_classifier import TextClassifier
from tests.handlers.context import FakeContext, plain, rows_and_context

TYPE = "x-multipart/form-data; boundary="
DATA = b'Content-Disposition: form-data; name="data"\r\n'
TEXT = b'Content-Disposition: form-data; name="text"\r\n'
LONG = b"b" * 70
BOUNDARY_CHARACTERS = "0123456789abcXYZ'()+_,-./:=?"
"""Of RFC 2046; a blank may be within."""


def part(content: bytes, head: bytes = DATA, boundary: bytes = b"x") -> bytes:
    return b"--" + boundary + b"\r\n" + head + b"\r\n" + content + b"\r\n"


def whole(*contents: bytes, head: bytes = DATA, boundary: bytes = b"x") -> bytes:
    return b"".join(part(one, head, boundary) for one in contents) + b"--" + boundary + b"--\r\n"


def opened(tmp_path, body: bytes, content_type: str):
    """From TorchServe's own reading of the request on."""
    rows, context = rows_and_context(tmp_path, plain(body, content_type, header="content-type"))
    return open_form(read_request(rows[0], context.get_all_request_header(0)))


steady = settings(
    max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


@st.composite
def draw_form(draw) -> tuple[bytes, str]:
    """(content, boundary): any bytes, and many that look like the boundary; but no line of it."""
    boundary = draw(st.text(BOUNDARY_CHARACTERS, min_size=1, max_size=70))
    mark = boundary.encode()
    pieces = [b"\r\n--" + mark, b"\r\n", b"--", b" ", b"\r", b"\n", b"\0", mark, mark[:-1]]
    content = b"".join(draw(st.lists(st.one_of(st.sampled_from(pieces), st.binary(max_size=9)), max_size=30)))
    assume(not re.search(rb"(\A|\r\n)--" + re.escape(mark) + rb"(--)?[ \t]*(\r\n|\Z)", content))
    return content, boundary


@steady
@given(
    form=draw_form(),
    name=st.sampled_from(["data", "body"]),
    filename=st.none() | st.text(max_size=20),
    said=st.sampled_from(["", "image/jpeg", "text/plain; charset=X"]),
)
def test_what_urllib3_encodes_comes_out(tmp_path_factory, form, name, filename, said):
    """As `requests` sends it."""
    content, boundary = form
    field = RequestField(name=name, data=content, filename=filename)
    field.make_multipart(content_type=said or None)
    body, _ = encode_multipart_formdata([field], boundary=boundary)
    got = opened(tmp_path_factory.getbasetemp(), body, f'{TYPE}"{boundary}"')
    assert bytes(got.content) == content
    assert (got.content_type, got.charset) == (said.partition(";")[0], "x" if "=" in said else "")


PIECES = [b"--x", b"--x--", b"\r\n", b"\n", b" ", b"\xff", b"\0", DATA, TEXT, b"a: b", b";", b'"', b"\\"]


@steady
@given(body=st.lists(st.sampled_from(PIECES), max_size=20).map(b"".join))
def test_whatever_is_sent_is_a_body_or_a_4xx(tmp_path_factory, body):
    try:
        opened(tmp_path_factory.getbasetemp(), body, f"{TYPE}x")
    except BadRequest as error:
        status, said = error.status, str(error)
    else:
        return
    assert 400 <= status < 500
    assert len(said) < 500


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (whole(b"good"), f"{TYPE}x"),
        (whole(b"good"), 'X-Multipart/Form-Data; charset=utf-8; BOUNDARY="x"'),
        (whole(b"good", boundary=b'a"\\;b'), r'x-multipart/form-data; boundary="a\"\\;b"'),
        (whole(b"good", boundary=LONG), f"{TYPE}{LONG.decode()}"),
        (whole(b"good", boundary=b"\xe4"), f"{TYPE}ä"),  # netty reads headers as Latin-1
        (whole(b"good", head=DATA.upper().replace(b'"DATA"', b'"data"')), f"{TYPE}x"),
        (
            whole(b"good", head=DATA.replace(b"; name", b';\r\n\tfilename="\xff;name=b\\";"; name')),
            f"{TYPE}x",
        ),
        (whole(b"good", head=b"Content-Transfer-Encoding: Binary\r\nX-More: a\r\n" + DATA), f"{TYPE}x"),
        (whole(b"good", head=DATA.replace(b'"', b"")), f"{TYPE}x"),
        (b"a preamble\r\n--xy\r\n" + whole(b"good") + part(b"an epilogue"), f"{TYPE}x"),
        (whole(b"good").removesuffix(b"\r\n"), f"{TYPE}x"),
        (whole(b"good").replace(b"--x", b"--x \t").replace(b" \t--", b"-- \t"), f"{TYPE}x"),
    ],
)
def test_one_field_is_found(tmp_path, body, content_type):
    assert bytes(opened(tmp_path, body, content_type).content) == b"good"


def ask(handler, folder, body: bytes, content_type: str = f"{TYPE}x"):
    """(status, answer); the form's neighbour in its batch must be answered."""
    neighbour = (
        plain(b"good")
        if isinstance(handler, TextClassifier)
        else plain((folder / "example.jpg").read_bytes())
    )
    rows, context = rows_and_context(folder, plain(body, content_type, header="content-type"), neighbour)
    answer, other = map(json.loads, handler.handle(rows, context))
    assert "error" not in other
    return context.statuses.get(0, (200, ""))[0], answer


LATIN = b"Content-Type: text/plain; charset=Latin1\r\n"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (whole(b"good", b"bad", head=TEXT), 400),
        (part(b"good", TEXT) + whole(b"bad"), 400),
        (whole(*[b""] * 9), 400),
        (b"--x--\r\n", 400),
        (whole(b"good", head=b""), 400),
        (whole(b"good", head=b"Content-Disposition: attachment; name=text\r\n"), 400),
        (whole(b"good", head=TEXT + DATA), 400),
        (whole(b"good", head=TEXT + b"nonsense\r\n"), 400),
        (whole(b"good", head=TEXT + b"a: " + b"b" * 8192 + b"\r\n"), 400),
        (whole(b"good", head=TEXT.replace(b"text", b"txt")), 400),
        (whole(b"good", head=TEXT + b"Content-Type: multipart/mixed; boundary=y\r\n"), 400),
        (whole(b"good", head=TEXT + b"Content-Transfer-Encoding: base64\r\n"), 415),
        (whole(b"good", head=TEXT + LATIN), 415),
        (whole(b"good", head=DATA + LATIN), 415),
        (whole("für".encode("latin-1"), head=TEXT), 400),
        (whole(b"", head=TEXT), 400),
        (part(b"good", TEXT) + b"--x-", 400),
        (whole(b"good", head=TEXT).replace(b"\r\n", b"\n"), 400),
        (whole(b"good", head=TEXT, boundary=b"y"), 400),
        (b"", 400),
    ],
)
def test_a_form_that_is_not_one_text_is_rejected_alone(texts, tiny_text, body, status):
    got, answer = ask(texts, tiny_text, body)
    assert (got, answer["code"]) == (status, status)


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("x-multipart/mixed; boundary=x", 415),
        ("x-multipart/", 415),
        ("x-multipart/form-data", 400),
        ("x-multipart/form-data; boundary=", 400),
        ('x-multipart/form-data; boundary=""', 400),
        ("x-multipart/form-data; boundary=€", 400),
    ],
)
def test_a_content_type_that_tells_no_form_is_rejected(texts, tiny_text, content_type, status):
    assert ask(texts, tiny_text, whole(b"good", head=TEXT), content_type)[0] == status


@pytest.mark.parametrize(
    "form",
    [
        whole(b"good", head=TEXT),
        whole(b"\xef\xbb\xbfgood", head=TEXT + b'Content-Type: text/plain; charset="UTF-8"\r\n'),
        whole(b"good"),
        whole(b'{"text": "good"}', head=DATA + b"Content-Type: application/json\r\n"),
        whole(b'{"text": "good"}', head=DATA.replace(b'"data"', b'"body"')),
    ],
)
def test_a_text_in_a_form_is_the_text(texts, tiny_text, form):
    expected = json.loads(texts.handle([{"body": b"good"}], FakeContext(tiny_text))[0])
    status, answer = ask(texts, tiny_text, form)
    assert status == 200
    assert answer["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-5)


def test_json_is_read_in_a_form_only_where_it_is_said(texts, tiny_text):
    for head in (TEXT, DATA + b"Content-Type: text/plain\r\n"):
        assert ask(texts, tiny_text, whole(b"{ a text", head=head))[0] == 200
    assert ask(texts, tiny_text, whole(b"{ a text"))[0] == 400


def test_a_picture_in_a_form_is_the_picture(images, tiny_image):
    smoke = (tiny_image / "example.jpg").read_bytes()
    expected = json.loads(images.handle([{"body": smoke}], FakeContext(tiny_image))[0])
    for head in (DATA, DATA.replace(b'"data"', b'body; filename="a.jpg"') + b"Content-Type: image/png\r\n"):
        # The shortest boundary stands in the picture hundreds of times.
        for boundary in (smoke[-1:], b"x", LONG):
            body = whole(smoke, head=head, boundary=boundary)
            status, answer = ask(images, tiny_image, body, TYPE + boundary.decode("latin-1"))
            assert (status, [one["label"] for one in answer]) == (200, [one["label"] for one in expected])


@pytest.mark.parametrize(
    "body",
    [
        whole(b"CANARY", b"CANARY"),
        whole(b"CANARY", head=TEXT),
        part(b"CANARY") + whole(b"5", head=TEXT),
        whole(b""),
        part(b"CANARY"),
    ],
)
def test_a_form_that_is_not_one_picture_is_rejected_alone(images, tiny_image, smoke, body):
    assert ask(images, tiny_image, body.replace(b"CANARY", smoke))[0] == 400


@pytest.mark.parametrize(
    "unit", [part(b""), b"\r\n--xy", b"a: b\r\n", b"\r\n--x" + b" " * 99, b"\r\n", DATA], ids=repr
)
def test_the_largest_forms_take_no_memory_beside_them(tmp_path, unit):
    size = 16 << 20
    body = bytearray(b"--x\r\n" + DATA + b"\r\n" + unit * (size // len(unit)))
    rows, context = rows_and_context(tmp_path, plain(b"", f"{TYPE}x", header="content-type"))
    rows[0]["body"] = body
    tracemalloc.start()
    with pytest.raises(BadRequest) as caught:
        open_form(read_request(rows[0], context.get_all_request_header(0)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
    assert len(str(caught.value)) < 500
