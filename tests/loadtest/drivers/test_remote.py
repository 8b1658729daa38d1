"""Jobs go to other machines whole, and only as plain files."""

from __future__ import annotations

import json

import pytest

from loadtest.drivers.locust import Crew
from loadtest.drivers.remote import _fetch, offering, pack_job, unpack_job
from loadtest.errors import LoadTestError

REMOTE = Crew(processes=2, remote=True)


def test_a_job_arrives_as_it_was_sent(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    (source / "job.json").write_text("{}")
    (source / "0000.body").write_bytes(bytes(range(256)))
    assert unpack_job(pack_job(source, 2), target) == 2
    assert (target / "0000.body").read_bytes() == bytes(range(256))


@pytest.mark.parametrize("name", ["../evil", "/etc/x", ".hidden", "a/b"])
def test_a_job_cannot_write_elsewhere(tmp_path, name):
    packed = json.dumps({"workers": 1, "files": {name: ""}}).encode()
    with pytest.raises(LoadTestError, match="a job's files must have plain names"):
        unpack_job(packed, tmp_path)


def test_a_job_is_offered_while_it_runs(tmp_path, unused_port):
    (tmp_path / "job.json").write_text("{}")
    with offering(tmp_path, REMOTE, unused_port):
        assert json.loads(_fetch(unused_port))["workers"] == 2
    assert _fetch(unused_port) == b""


def test_nothing_is_offered_to_processes_of_this_machine(tmp_path, unused_port):
    with offering(tmp_path, Crew(processes=2), unused_port):
        assert _fetch(unused_port) == b""


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
