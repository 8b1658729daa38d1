"""A recording tells what the machine itself tells."""

from __future__ import annotations

import pytest

from config.record import render_recording
from config.topology import read_topology
from tests.config.planning import MACHINES


def unpack(machine, folder):
    """The recorded machine as real files."""
    for line in (MACHINES / machine / "recording.txt").read_text().splitlines():
        path, _, content = line.partition(":")
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as out:
            out.write(content + "\n")
    return folder


@pytest.mark.parametrize("machine", ["two-sockets-smt", "container-quota-v1", "no-numa"])
def test_recording_of_a_machine_of_files(machine, tmp_path):
    root = unpack(machine, tmp_path / "root")
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "recording.txt").write_text(render_recording(root))
    assert read_topology(copy) == read_topology(root) == read_topology(MACHINES / machine)


def test_recording_of_this_machine(tmp_path):
    (tmp_path / "recording.txt").write_text(render_recording())
    assert read_topology(tmp_path) == read_topology()
