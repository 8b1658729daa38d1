"""The kernel's list format and recordings."""

from __future__ import annotations

import pytest

from config.files import parse_id_list, read_machine, render_id_list
from config.record import render_recording
from config.topology import read_topology
from tests.config.synthetic import FIXTURES, MACHINES, render_machine


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("", ()),
        ("0", (0,)),
        ("0-3", (0, 1, 2, 3)),
        ("0-1,8,10-11", (0, 1, 8, 10, 11)),
        ("3,1", (1, 3)),
        ("0-1\n", (0, 1)),
    ],
)
def test_id_list(text, ids):
    assert parse_id_list(text) == ids
    assert parse_id_list(render_id_list(ids)) == ids


def test_folder_and_recording_are_read_alike(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "x").write_text("1\n")
    assert read_machine(tmp_path).read("/proc/x") == "1"
    assert read_machine(tmp_path).read("proc/missing") is None
    (tmp_path / "recording.txt").write_text("# a comment: skipped\nproc/y:a: 2\nproc/y:b: 3\n/sys/z:\n")
    recorded = read_machine(tmp_path)
    assert recorded.contents == {"proc/y": "a: 2\nb: 3", "sys/z": ""}
    assert (recorded.read("proc/y"), recorded.read("sys/z"), recorded.read("proc/x")) == (
        "a: 2\nb: 3",
        "",
        "1",
    )
    assert recorded.read_field("proc/y", "b") == "3"


@pytest.mark.parametrize("name", FIXTURES)
def test_committed_machine_is_what_the_generator_writes(name):
    assert (MACHINES / name / "recording.txt").read_text() == render_machine(FIXTURES[name])


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
