"""Ports in use are found before the start, with their holder."""

from __future__ import annotations

import socket

import pytest

from server.errors import ServerError
from server.ports import check_ports_free, describe_holder, find_holder, inference_url, list_ports
from tests.plans import make_plan, make_proxy
from tests.server import fakes

LISTEN = (
    "import socket, time; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)"
)


@pytest.fixture
def taken():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_taken_port_names_port_purpose_holder_and_fix(taken):
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    ports = {"gRPC inference": ("127.0.0.1", free), "gRPC management": ("127.0.0.1", taken)}
    with pytest.raises(ServerError, match=rf"^port {taken} \(gRPC management\) .* process \d+.*PORT="):
        check_ports_free(ports)
    check_ports_free({"gRPC inference": ports["gRPC inference"]})


def test_ports_of_the_proxy_and_of_an_instance():
    loopback = "127.0.0.1"
    plan = make_plan(proxy=make_proxy(host="0.0.0.0"))
    assert list_ports(plan) == {"predictions": ("0.0.0.0", 8080), "metrics": (loopback, 8082)}
    assert list_ports(plan, "a2") == {"gRPC inference": (loopback, 8103), "gRPC management": (loopback, 8104)}
    assert inference_url(plan) == "http://127.0.0.1:8080"


@pytest.mark.parametrize(
    ("host", "at"),
    [("10.1.1.1", "10.1.1.1"), ("::", "127.0.0.1"), ("::1", "[::1]"), ("fd00::5", "[fd00::5]")],
)
def test_where_predictions_are_asked_for(host, at):
    assert inference_url(make_plan(proxy=make_proxy(host=host, tls_cert="c"))) == f"https://{at}:8080"


@pytest.mark.parametrize("mark", ["/kit/other", "/kit/other/instances/a1"])
def test_another_server_of_the_kit_is_named_by_its_run_directory(dummy, mark):
    process = dummy(mark, code=f"{LISTEN}; {fakes.SLEEP}")
    port = int(process.stdout.readline())
    assert find_holder(port) == process.pid
    assert describe_holder(port) == (
        f"process {process.pid}, the server of the run directory /kit/other (make stop RUN_DIR=/kit/other)"
    )


def test_a_holder_that_cannot_be_seen_is_said_to_be_so(taken, monkeypatch):
    monkeypatch.setattr("server.ports.find_holder", lambda _: None)
    assert describe_holder(taken).startswith("a process that cannot be seen")
