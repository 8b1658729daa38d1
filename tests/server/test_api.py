"""Calls carry the right token, renew an expired one, and say what went wrong."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time

import pytest

from server.api import INFERENCE, MANAGEMENT, Client, Tokens, read_tokens
from server.errors import ApiError


def write_keys(run, inference="inf", management="man", expires_in=3600.0):
    """A key file as TorchServe writes it, with its nanoseconds."""
    ends = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() + expires_in)) + ".123456789Z"
    keys = {
        "management": {"key": management, "expiration time": ends},
        "inference": {"key": inference, "expiration time": ends},
        "API": {"key": "api"},
    }
    run.key_file.write_text(json.dumps(keys))


@pytest.fixture
def client(run, torchserve):
    return Client(inference_url=torchserve.url, management_url=torchserve.url, key_file=run.key_file)


def test_each_address_gets_its_own_token(run, torchserve, client):
    write_keys(run)
    torchserve.routes = {
        "GET /models/bert": (200, [{"workers": []}]),
        "POST /predictions/bert": (200, {"label": "a"}),
    }
    assert client.describe("bert") == {"workers": []}
    assert client.predict("bert", b"text", "text/plain") == {"label": "a"}
    assert torchserve.requests == [
        ("GET /models/bert", "Bearer man", b""),
        ("POST /predictions/bert", "Bearer inf", b"text"),
    ]


def test_without_a_key_file_no_token_is_sent(torchserve, client):
    torchserve.routes = {"GET /models/bert?customized=true": (200, [{}])}
    client.describe("bert", customized=True)
    assert torchserve.requests[0][1] == ""


@pytest.mark.parametrize("kind", [INFERENCE, MANAGEMENT])
@pytest.mark.parametrize(("expires_in", "for_s"), [(-1, 0.0), (1800, 3600.0)])
def test_a_token_that_ends_too_soon_is_renewed_with_the_api_key(
    run, torchserve, client, kind, expires_in, for_s
):
    write_keys(run, inference="old", management="old", expires_in=expires_in)

    def renew():
        write_keys(run, inference="new", management="new")
        return 200, {}

    torchserve.routes = {f"GET /token?type={kind}": renew}
    assert client.token(kind, for_s=for_s) == "new"
    assert torchserve.requests == [(f"GET /token?type={kind}", "Bearer api", b"")]


def test_proxy_variables_are_ignored(torchserve, client, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    torchserve.routes = {"GET /models/bert": (200, [{}])}
    assert client.describe("bert") == {}


def test_an_error_answer_keeps_its_status_and_text(torchserve, client):
    torchserve.routes = {"GET /models/bert": (503, {"message": "queue full"})}
    with pytest.raises(ApiError, match=r"answered 503: .*queue full") as error:
        client.describe("bert")
    assert error.value.status == 503


def test_no_server_is_said_so(run):
    client = Client(
        inference_url="http://127.0.0.1:1", management_url="http://127.0.0.1:1", key_file=run.key_file
    )
    with pytest.raises(ApiError, match=r"http://127.0.0.1:1/models/bert: no answer: .*refused") as error:
        client.describe("bert")
    assert error.value.status == 0


def test_a_slow_server_is_not_waited_for(torchserve, client):
    asked_no_more = threading.Event()
    torchserve.routes = {"GET /models/bert": lambda: (200, [{"waited": asked_no_more.wait(60)}])}
    with pytest.raises(ApiError, match=r"no answer: .*timed out"):
        client.describe("bert", timeout_s=0.1)
    asked_no_more.set()


def test_an_answer_that_is_not_json_is_an_error(torchserve, client):
    torchserve.routes = {"POST /predictions/bert": (200, b"<html>")}
    with pytest.raises(ApiError, match="the answer is not JSON"):
        client.predict("bert", b"", "text/plain")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"inference": {}}'])
def test_a_damaged_key_file_is_named(run, text):
    run.key_file.write_text(text)
    with pytest.raises(ApiError, match=r"key_file.json: cannot be read"):
        read_tokens(run.key_file)


def test_no_key_file_means_no_tokens(run):
    assert read_tokens(run.key_file) == Tokens()


@contextlib.contextmanager
def answering(raw: bytes):
    """A server that sends these bytes, whatever it was asked, and hangs up: a JVM that dies in mid-answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            with contextlib.suppress(OSError):
                connection, _ = server.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(raw)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n[{", "no answer: IncompleteRead"),
        (b"nonsense\r\n\r\n", "no answer: nonsense"),
        (b"", "no answer: Remote end closed connection"),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 900\r\n\r\n{", "answered 503: "),
    ],
)
def test_a_server_that_dies_in_mid_answer_is_an_error_of_ours(run, raw, message):
    with answering(raw) as url, pytest.raises(ApiError, match=message):
        Client(inference_url=url, management_url=url, key_file=run.key_file).describe("bert")


@pytest.mark.parametrize(("answer", "status"), [((200, []), 200), ((405, {}), 405)])
def test_a_stranger_asks_with_the_token_given_and_gets_a_status(torchserve, client, answer, status):
    torchserve.routes = {"POST /models": answer}
    assert client.ask_status(MANAGEMENT, "POST", "/models", "wrong") == status
    assert torchserve.requests == [("POST /models", "Bearer wrong", b"")]


def test_a_stranger_whom_nobody_answers_gets_no_status(run):
    url = "http://127.0.0.1:1"
    client = Client(inference_url=url, management_url=url, key_file=run.key_file)
    with pytest.raises(ApiError, match="refused"):
        client.ask_status(INFERENCE, "GET", "/", "")
