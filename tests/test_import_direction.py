"""Who may import whom: the table in CONTRIBUTING.md, checked in the source text."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

MAY_IMPORT: dict[str, set[str]] = {
    "handlers": set(),  # packed into archives, where nothing else of ours is
    "models": {"handlers"},
    "config": set(),
    "server": {"config"},
    "loadtest": {"config", "server"},
    "docker": set(),
}


def imported_packages(file: Path) -> set[str]:
    """Our own packages a file imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module)
    return {name.split(".")[0] for name in names} & {*MAY_IMPORT, "tests"}


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_import_direction(folder):
    for file in sorted((ROOT / folder).rglob("*.py")):
        forbidden = imported_packages(file) - MAY_IMPORT[folder] - {folder}
        assert not forbidden, f"{file.relative_to(ROOT)} imports {', '.join(sorted(forbidden))}"


def test_every_folder_with_code_is_in_the_table():
    known = {*MAY_IMPORT, "tests"}
    folders = {file.relative_to(ROOT).parts[0] for file in ROOT.glob("[!.]*/**/*.py")}
    assert folders - {"run", "model-store"} <= known


def test_what_runs_before_the_environment_exists_needs_only_the_standard_library():
    """Set-up imports config with the system's Python; what is not there is imported where it is used."""
    for file in sorted((ROOT / "config").rglob("*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                root = name.split(".")[0]
                assert root == "config" or root in STANDARD, f"{file.name} imports {name}"


STANDARD = {
    "__future__", "argparse", "collections", "contextlib", "dataclasses", "fcntl", "io", "json", "math", "os",
    "pathlib", "pwd", "re", "shutil", "subprocess", "sys", "textwrap", "typing",
}  # fmt: skip
