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


def read_imports(file: Path) -> set[str]:
    """What a file imports, `module.name`, anywhere in it: in functions and for types too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def imported_rooms(file: Path) -> set[str]:
    """The rooms a file imports from, anywhere in it."""
    return {room for name in read_imports(file) if (room := find_room(name.replace(".", "/")))}


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_import_direction(room):
    files = [file for file in (ROOT / room).rglob("*.py") if find_room(str(file.relative_to(ROOT))) == room]
    assert files
    for file in files:
        forbidden = imported_rooms(file) - MAY_IMPORT[room] - {room}
        assert not forbidden, f"{file.relative_to(ROOT)} imports {', '.join(sorted(forbidden))}"


def make_graph(root: Path) -> dict[str, set[str]]:
    """Module → the modules of ours that it imports."""
    files = [file for room in MAY_IMPORT if "/" not in room for file in (root / room).rglob("*.py")]
    modules = {".".join(file.relative_to(root).with_suffix("").parts): file for file in files}
    modules = {name.removesuffix(".__init__"): file for name, file in modules.items()}
    imports = {name: read_imports(file) for name, file in modules.items()}
    homes = {
        one: one if one in modules else one.rpartition(".")[0] for names in imports.values() for one in names
    }
    return {name: {homes[one] for one in names} & {*modules} - {name} for name, names in imports.items()}


def find_circles(graph: dict[str, set[str]]) -> set[str]:
    """What stays when all that import nothing, or are imported by none, are taken away again and again."""
    left = {name: set(imports) for name, imports in graph.items()}
    while gone := {
        name for name in left if not left[name] or not any(name in imports for imports in left.values())
    }:
        left = {name: imports - gone for name, imports in left.items() if name not in gone}
    return {*left}


def test_no_module_imports_another_in_a_circle():
    """Also none that is hidden in functions or for types."""
    graph = make_graph(ROOT)
    assert len(graph) > 200
    assert find_circles(graph) == set()
    planted = {
        **graph,
        "handlers.shared.options": {*graph["handlers.shared.options"], "handlers.backends.loader"},
    }
    assert {"handlers.shared.options", "handlers.backends.loader"} <= find_circles(planted)


SHARED = (
    "handlers.answers", "handlers.backends.catalogue", "handlers.definition", "handlers.shared.metrics",
    "handlers.protocols", "handlers.sums",
)  # fmt: skip


@pytest.mark.parametrize("room", ["config", "server"])
def test_plan_and_verify_read_the_catalogue_and_archives_and_no_torch(room):
    for file in (ROOT / room).rglob("*.py"):
        names = read_imports(file)
        assert not any(name.split(".")[0] == "torch" for name in names), file
        own = {name for name in names if name.startswith("handlers.")}
        assert all(name.startswith(SHARED) for name in own), file


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
    done = run_bare(tmp_path, "-m", "setup", "doctor")
    assert done.stderr == ""
    assert done.stdout


def test_what_judges_settings_needs_little_more_than_what_reads_them():
    """Before the packages of an environment are installed (requirements/first.in)."""
    absent = ("torch", "numpy", "psutil", "jinja2", "yaml", "transformers", "PIL", "click")
    block = f"import sys; sys.modules.update(dict.fromkeys({absent}))"
    code = f"{block}; import config.commands, models.__main__, models.request, docker.__main__"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_looks_at_a_server_is_quick():
    """`make status` must not take 0.15 s for what reads kit.toml, nor load what plans."""
    code = "import sys, server.cli; server.cli.read_call('status', ['RUN_DIR=x']); "
    code += "print([name for name in ('pydantic_settings', 'jinja2', 'torch') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")
