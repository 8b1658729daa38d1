"""Who may import whom: the table in CONTRIBUTING.md, checked in the source text."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROWS = re.findall(r"^\| `([\w/]+)/` \| ([^|]*) \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
MAY_IMPORT = {folder: set(re.findall(r"`([\w/]+)`", allowed)) for folder, allowed in ROWS}


def find_room(path: str) -> str | None:
    """The folder of the table, or `tests`, that a path lies in: the innermost one."""
    rooms = [room for room in (*MAY_IMPORT, "tests") if f"{path}/".startswith(f"{room}/")]
    return max(rooms, key=len, default=None)


def imported_rooms(file: Path) -> set[str]:
    """The rooms a file imports from, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module)
    return {room for name in names if (room := find_room(name.replace(".", "/")))}


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_import_direction(room):
    files = [file for file in (ROOT / room).rglob("*.py") if find_room(str(file.relative_to(ROOT))) == room]
    assert files
    for file in files:
        forbidden = imported_rooms(file) - MAY_IMPORT[room] - {room}
        assert not forbidden, f"{file.relative_to(ROOT)} imports {', '.join(sorted(forbidden))}"


def test_every_folder_with_code_is_in_the_table():
    folders = {file.relative_to(ROOT).parts[0] for file in ROOT.glob("[!.]*/**/*.py")}
    assert folders - {"run", "model-store"} == {room for room in (*MAY_IMPORT, "tests") if "/" not in room}


def run_bare(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    """A Python with the standard library alone."""
    command = [sys.executable, "-S", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_the_set_up_begins_with_nothing_else_of_ours_there(tmp_path):
    """As in the stage of the image that installs the packages."""
    for folder in ("setup", "requirements"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    done = run_bare(tmp_path, "-m", "setup", "--doctor")
    assert done.stderr == ""
    assert done.stdout


def test_what_judges_before_the_environment_exists_needs_only_the_standard_library():
    modules = "config.__main__, server.processes, handlers.engines.backend"
    done = run_bare(ROOT, "-c", f"import {modules}")
    assert (done.returncode, done.stderr) == (0, "")
