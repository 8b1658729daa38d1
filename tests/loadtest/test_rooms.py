"""Who may import whom inside loadtest/: a room imports only those to its left."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

LOADTEST = Path(__file__).resolve().parents[2] / "loadtest"
ROOMS = (
    *("errors", "payloads", "scenarios", "drivers", "systems", "answers", "results", "trials"),
    *("experiments", "report", "choices", "actions", "commands", "__main__"),
)


def list_imports(file: Path) -> set[str]:
    """Rooms that a file imports from, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("loadtest"):
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("loadtest.")}
    return found


def name_room(file: Path) -> str:
    first = file.relative_to(LOADTEST).parts[0]
    return first.removesuffix(".py")


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_those_to_its_left(room):
    files = [file for file in LOADTEST.rglob("*.py") if name_room(file) == room]
    assert files
    allowed = {*ROOMS[: ROOMS.index(room)], room}
    for file in files:
        assert list_imports(file) <= allowed, f"{file.relative_to(LOADTEST)} imports to its right"


def test_every_file_is_in_a_room():
    assert {name_room(file) for file in LOADTEST.rglob("*.py")} - {"__init__"} == set(ROOMS)
