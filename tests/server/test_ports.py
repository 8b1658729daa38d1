"""Ports in use are found before the start, with their holder."""

from __future__ import annotations

import socket

import pytest

from server.errors import ServerError
from server.ports import check_ports_free, describe_holder, find_holder
from server.rundir import MARK
from tests.server import fakes


@pytest.fixture
def taken():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_taken_port_names_port_purpose_holder_and_cure(plan, taken):
    changed = fakes.with_property(plan, grpc_inference_port=_free_port(), grpc_management_port=taken)
    with pytest.raises(ServerError, match=rf"{taken} \(gRPC management\) .* process \d+.*PORT="):
        check_ports_free(changed.properties)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _listen(proc: fakes.FakeProc, port: int, pid: int) -> None:
    (proc.path / "net").mkdir()
    table = f"  sl  local_address\n   0: 0100007F:{port:04X} 00000000:0000 0A 0:0 0:0 0 0 0 777 1\n"
    (proc.path / "net" / "tcp").write_text(table)
    fds = proc.path / str(pid) / "fd"
    fds.mkdir()
    (fds / "3").symlink_to("socket:[777]")


def test_the_holder_is_found_through_its_socket(proc):
    proc.add(7, command=("nginx", "-g"))
    _listen(proc, 8080, 7)
    assert find_holder(8080, proc.path) == 7
    assert describe_holder(8080, proc.path) == "process 7 (nginx -g)"


def test_another_server_of_the_kit_is_named_by_its_run_directory(proc):
    proc.add(7, environment={MARK: "/kit/other"})
    _listen(proc, 8080, 7)
    assert describe_holder(8080, proc.path) == (
        "process 7, the server of the run directory /kit/other (make stop RUN_DIR=/kit/other)"
    )
