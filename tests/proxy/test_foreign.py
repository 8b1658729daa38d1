"""Requests of archives that others made reach TorchServe as clients sent them, and keep every limit."""

from __future__ import annotations

import json

import pytest

from tests.proxy.proxies import FOREIGN, PATH, Proxy, open_proxy

FOREIGN_PATH = f"/predictions/{FOREIGN}"


@pytest.mark.parametrize(
    "target",
    [FOREIGN_PATH, f"{FOREIGN_PATH}/1.0", f"{FOREIGN_PATH}/2.0%20b?top=3&x", f"{FOREIGN_PATH}?a=/../b"],
)
@pytest.mark.parametrize(
    "content_type",
    ["application/x-www-form-urlencoded", 'multipart/form-data; boundary="aB c"', "application/json"],
)
@pytest.mark.parametrize("size", [5, 2_000_000])
def test_requests_are_passed_on_unchanged(quiet: Proxy, target, content_type, size):
    answer = quiet.ask(b"x" * size, f"Content-Type: {content_type}", "a: b", path=target)
    assert (answer.status, json.loads(answer.body)) == (200, {"by": "a3"})
    [seen] = quiet.list_seen()
    assert (seen.target, seen.header("content-type"), seen.header("a")) == (target, content_type, "b")
    assert (seen.count("content-type"), seen.body_bytes) == (1, size)


def test_token_and_headers_of_the_kit_are_not_passed_on(quiet: Proxy):
    assert quiet.ask(b"x", "describe: True", "x-kit-deadline-ms: 1", path=FOREIGN_PATH).status == 200
    [seen] = quiet.list_seen()
    assert seen.count("authorization", "describe", "x-kit-deadline-ms") == 0
    assert len(seen.header("x-request-id") or "") == 36


@pytest.mark.parametrize(
    ("headers", "asked", "status"),
    [
        ((), {"token": ""}, 401),
        ((), {"path": f"{FOREIGN_PATH}/3.0"}, 404),
        ((), {"path": f"{FOREIGN_PATH}/2.0"}, 404),
        ((), {"path": f"{PATH}/2.0%20b"}, 404),
        ((), {"path": f"/explanations/{FOREIGN}"}, 404),
        ((), {"path": f"{FOREIGN_PATH}/1.0/../../../models"}, 404),
        ((), {"method": "GET"}, 405),
        (("content-type: a/b", "content-type: multipart/form-data"), {}, 400),
        (("x-deadline-ms: 0",), {}, 400),
    ],
)
def test_rejected(quiet: Proxy, headers, asked, status):
    assert quiet.ask(b"x", *headers, **{"path": FOREIGN_PATH, **asked}).status == status
    assert not quiet.list_seen()


def test_a_kit_model_beside_it_takes_no_form_of_that_kind(quiet: Proxy):
    assert quiet.ask(b"x", "content-type: application/x-www-form-urlencoded").status == 415


@pytest.mark.parametrize(("mode", "status", "tries"), [("500", 500, 4), ("reset", 502, 4), ("hang", 504, 1)])
def test_retries_and_the_deadline_are_as_for_others(mode, status, tries):
    with open_proxy(foreign=True) as proxy:
        proxy.instances["a3"].mode = mode
        assert proxy.ask(path=FOREIGN_PATH, deadline_ms=2000).status == status
        assert len(proxy.list_seen()) == tries
