"""Calls over TCP and over Unix sockets, with the token where it is needed; and what went wrong."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace

import pytest

from server.api import MANAGEMENT, Client, make_client, make_instance_client
from server.errors import ApiError
from tests.server.fakes import answer_once


@pytest.fixture
def client(run, torchserve):
    run.token.write_text("a-token-of-24-characters\n")
    return Client(inference_url=torchserve.url, management_url=torchserve.url, token_file=run.token)


def test_predictions_carry_the_token_of_the_file(torchserve, client):
    torchserve.routes = {"GET /models/bert": (200, [{}]), "POST /predictions/bert": (200, {"label": "a"})}
    assert client.describe("bert") == {}
    assert client.predict("bert", b"text", "text/plain") == {"label": "a"}
    assert torchserve.requests == [
        ("GET /models/bert", "", b""),
        ("POST /predictions/bert", "Bearer a-token-of-24-characters", b"text"),
    ]


def test_over_a_unix_socket(tmp_path):
    """A path may have letters that a URL could not."""
    path = str(tmp_path / "a #?%41.sock")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        with answer_once(server, b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n[{"a": "b"}]') as heads:
            assert Client(inference_url="", management_url=f"unix:{path}").describe("bert") == {"a": "b"}
    assert heads[0].startswith(b"GET /models/bert HTTP/1.1\r\nHost: localhost\r\n")
    assert b"uthorization" not in heads[0]


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


def test_a_slow_server_is_not_waited_for(torchserve, client):
    asked_no_more = threading.Event()
    torchserve.routes = {"GET /models/bert": lambda: (200, [{"waited": asked_no_more.wait(60)}])}
    with pytest.raises(ApiError, match=r"no response: .*timed out"):
        client.describe("bert", timeout_s=0.1)
    asked_no_more.set()


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n[{", "no response: IncompleteRead"),
        (b"nonsense\r\n\r\n", "no response: nonsense"),
        (b"", "no response: Remote end closed connection"),
    ],
)
def test_a_server_that_dies_in_mid_answer_is_an_error_of_ours(raw, message):
    with socket.create_server(("127.0.0.1", 0)) as server, answer_once(server, raw):
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ApiError, match=message):
            Client(inference_url=url, management_url=url).describe("bert")


@pytest.mark.parametrize(("answer", "status"), [((200, []), 200), ((405, {}), 405)])
def test_anybody_asks_with_the_token_given_and_gets_a_status(torchserve, client, answer, status):
    torchserve.routes = {"POST /models": answer}
    assert client.ask_status(MANAGEMENT, "POST", "/models", "wrong") == status
    assert torchserve.requests == [("POST /models", "Bearer wrong", b"")]


def test_the_clients_of_a_plan_ask_the_instances_that_serve_the_model(run, plan, torchserve):
    alone = replace(plan.instances["a2"], models={"bert": plan.instances["a2"].models["bert"]})
    plan = replace(plan, instances={**plan.instances, "a2": alone})
    one, socket = make_instance_client(plan, "a2"), "unix:/kit/run/instances/a2/tmp/{}.sock".format
    assert (one.inference_url, one.management_url) == (socket("inference"), socket("management"))
    assert (one.metrics_url, one.token()) == (socket("metrics"), "")
    address = {"management_address": torchserve.url, "metrics_address": torchserve.url}
    instances = {
        name: replace(one, properties={**one.properties, **address}) for name, one in plan.instances.items()
    }
    client = make_client(replace(plan, instances=instances), run)
    assert (client.inference_url, client.token_file) == ("http://127.0.0.1:8080", run.token)
    for path in ("bert", "resnet50", "bert?customized=true"):
        torchserve.routes[f"GET /models/{path}"] = (200, [{"batchSize": 4, "workers": [{"pid": 7}]}])
    torchserve.routes["GET /metrics"] = (200, b"a 1")
    for model, count in (("bert", 2), ("resnet50", 1)):
        assert client.describe(model) == {"batchSize": 4, "workers": count * [{"pid": 7}]}
    assert len(client.describe("bert", customized=True)["workers"]) == 1
    assert client.metrics() == "a 1\na 1"
