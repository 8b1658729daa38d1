"""HAProxy takes what is rendered, without a word; and runs it."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from config.door import list_variables, render_door
from tests.config.doors import change_settings, plan_behind_door
from tests.config.planning import MACHINES
from tests.door.doors import HAPROXY, Door, list_files, open_door, together, wait_for

VARIABLES = list_variables(plan_behind_door())


def check(folder: Path, text: str) -> tuple[int, str]:
    """Its status, and what it says."""
    (folder / "bearers.lst").write_text("Bearer x\n", encoding="utf-8")
    file = folder / "haproxy.cfg"
    file.write_text(text, encoding="utf-8")
    checked = subprocess.run(
        [str(HAPROXY), "-c", "-f", str(file)],
        env={**os.environ, **VARIABLES}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return checked.returncode, checked.stdout + checked.stderr


@pytest.mark.parametrize("machine", sorted(folder.name for folder in MACHINES.iterdir()))
def test_it_has_nothing_to_say_about_any_machine(tmp_path, machine):
    text = render_door(plan_behind_door(machine), list_files(tmp_path))
    assert check(tmp_path, text) == (0, "Configuration file is valid\n")


@pytest.mark.parametrize("asked", [{"instances": 4}, {"generation": "b"}])
def test_nor_about_what_is_asked_for(tmp_path, asked):
    text = render_door(plan_behind_door("two-sockets-smt", **asked), list_files(tmp_path))
    assert check(tmp_path, text) == (0, "Configuration file is valid\n")


def test_paths_with_blanks_and_quotes():
    """Short: there are sockets in it."""
    with tempfile.TemporaryDirectory(prefix="a b'c\"d$E#f\\g%h{é[1]", dir="/tmp") as folder:
        text = render_door(plan_behind_door(), list_files(Path(folder)))
        assert check(Path(folder), text) == (0, "Configuration file is valid\n")


def test_it_would_say_something(tmp_path):
    text = render_door(plan_behind_door(), list_files(tmp_path)).replace("mode http", "mode htp")
    assert check(tmp_path, text)[0] == 1


def test_instances_are_asked_whether_they_live(door: Door):
    wait_for(lambda: all(backend.checks for backend in door.instances.values()))


def test_nobody_is_asked_before_the_supervisor_says_so():
    with open_door() as door:
        assert door.ask().status == 503
        door.serve("a2")
        assert [door.ask().status for _ in range(4)] == [200] * 4
        assert not door.instances["a1"].requests
        assert not door.instances["a1"].checks


def test_several_threads():
    with open_door(lambda plan: change_settings(plan, threads=4)) as door:
        door.serve()
        answers = together(100, lambda _: [door.ask(b"x" * 100_000).status for _ in range(5)])
        assert answers == [[200] * 5] * 100
