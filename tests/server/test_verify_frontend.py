"""Evidence of TorchServe's own process: real sockets, the kernel's tables, probes of a real listener."""

from __future__ import annotations

import contextlib
import os
import socket

import pytest

from server.processes import Process
from server.state import State
from server.verify.collect import collect_frontend
from server.verify.probes import call_grpc, probe, read_listening
from tests.server.fakes import answer_once

PORTS = {"grpc_inference_port": 1, "grpc_management_port": 1}


def as_process(pid: int, *command: str) -> Process:
    return Process(
        pid=pid, start_ticks=1, parent_pid=1, command=command or ("java", "org.pytorch.serve.ModelServer")
    )


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "*")])
def test_all_that_a_process_listens_on_is_found_and_nothing_else(host, shown):
    with socket.create_server((host, 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        port = one.getsockname()[1]
        found = read_listening([as_process(os.getpid())])
        assert found[f"{shown}:{port}"] == "TorchServe"
        client = socket.create_connection(("127.0.0.1", two.getsockname()[1]))
        with contextlib.closing(client):  # a connection is no listener
            assert read_listening([as_process(os.getpid())]) == found
    assert f"{shown}:{port}" not in read_listening([as_process(os.getpid())])


STATUS = b"\0\0\x10\x01\x05\0\0\0\x01" + b"\0\x0bgrpc-status\x0212"
"""A HEADERS frame of netty's, with its trailers unindexed and without Huffman's code."""


def test_the_status_of_a_grpc_call_is_read():
    with socket.create_server(("127.0.0.1", 0)) as server, answer_once(server, STATUS) as sent:
        assert call_grpc(server.getsockname()[1], "a.Service/Ping") == 12
    assert sent[0].startswith(b"PRI * HTTP/2.0")
    assert b"/a.Service/Ping" in sent[0]


def test_probes_touch_no_worker(torchserve, client):
    torchserve.routes = {"POST /models": (405, {})}
    answers = probe(client, "bert", torchserve.largest_request, PORTS)
    assert answers["register a model"] == "405"
    assert (answers["the largest request"], answers["a request one byte larger"]) == ("100", "413")
    assert {what for what, _, _ in torchserve.requests} == {"POST /models"}
    assert "refused" in answers["gRPC inference"]


def test_the_process_is_read_whole(plan, run, torchserve, client, proc):
    command = ("java", "-Xmx9m", "-cp", "x", "org.pytorch.serve.ModelServer")
    proc.add(7, command=command, environment={"_JAVA_OPTIONS": "-Xmx1g"})
    (proc.path / "7" / "fd").mkdir()
    run.temporary.mkdir(mode=0o750)
    inference = socket.socket(socket.AF_UNIX)
    inference.bind(str(run.temporary / "inference.sock"))
    run.properties.write_text("a=b\n")
    state = State(
        phase="ready", plan_sha256="", started_at="", properties_sha256="at-start", configuration={"a": "b"}
    )
    seen = collect_frontend(plan, run, client, [as_process(7, *command)], state, proc.path)
    assert seen.listening == {}
    assert (seen.sockets, seen.sockets_mode, seen.sockets_own) == (("inference",), 0o750, True)
    assert seen.flags == ("-Xmx9m",)
    assert seen.environment == {"_JAVA_OPTIONS": "-Xmx1g"}
    assert (seen.properties_at_start, len(seen.properties_now)) == ("at-start", 64)
    assert seen.configuration == {"a": "b"}
