"""make: no value is text of a shell or of make, and each reaches the programs as it was given."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from config.commands import COMMANDS, list_read
from config.settings import PUBLIC

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = (
    r"""x'; touch F;echo '"; touch F;" $(touch F) `touch F` $(shell touch F) ${HOME} $$HOME \ #% é,b=c"""
)
STUB = """#!/bin/sh
{ env | sed -n 's/^\\(PORT\\|P[IY][A-Z0-9_]*\\)=/variable &/p'; printf '%s\\n' "$@"; } >> "$CALLS"
"""
"""Writes down what it is given."""
CALLED = {
    **dict.fromkeys(("test", "test-unit", "test-e2e", "test-reliability", "test-fleet", "image-test"), "dev"),
    **dict.fromkeys(("lint", "docs", "format"), "dev"), "distclean": "clean",
    "test-current-quick": "test-current",
}  # fmt: skip
"""Target → what the set-up is asked to do for it, where that is another."""


class Checkout:
    """The Makefile with such a Python, in a folder that a shell would trip over, too."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls = folder, folder / "calls"
        self.python = folder / HOSTILE / "python"
        shutil.copy(ROOT / "Makefile", folder)
        for file in (self.python, folder / ".venv/bin/python", folder / ".venv-current/bin/python"):
            file.parent.mkdir(parents=True)
            file.write_text(STUB)
            file.chmod(0o755)

    def make(
        self, *words: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """In the POSIX locale, and not as a part of `make test`, whose values would be in the environment."""
        own = {name: os.environ[name] for name in ("PATH", "HOME")} | {
            "CALLS": str(self.calls),
            "LC_ALL": "C",
        }
        command, env = ["make", *words, f"PYTHON={self.python}"], own | (environment or {})
        return subprocess.run(
            command, cwd=self.folder, env=env, capture_output=True, text=True, errors="replace", check=False
        )

    def list_words(self) -> list[str]:
        return self.calls.read_text(encoding="utf-8").splitlines() if self.calls.exists() else []

    def was_harmed(self) -> bool:
        return any(self.folder.rglob("F"))


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@pytest.mark.parametrize("target", sorted({*COMMANDS} - {"help", "help-dev", "lock"}))
def test_each_value_arrives_as_it_was_given(checkout, target):
    values = {name: name + HOSTILE for name in PUBLIC if name != "PYTHON"}
    checkout.make(target, *(f"{name}={value}" for name, value in values.items()))
    words = checkout.list_words()
    setup = words.index("setup")
    assert words[setup - 1 : setup + 3] == ["-m", "setup", CALLED.get(target, target), f"--goals={target}"]
    given = dict(word.split("=", 1) for word in words[setup + 3 : setup + 3 + len(PUBLIC)])
    assert given == {**values, "PYTHON": str(checkout.python)}
    assert not checkout.was_harmed()


@pytest.mark.parametrize("value", ["", "-x", "=x", "x ", "'", "\\", "\\'", "a'b'c", '"', "--port=1", "$(X)"])
def test_short_values_are_no_exception(checkout, value):
    assert checkout.make("stop", f"RUN_DIR={value}").returncode == 0
    assert f"RUN_DIR={value}" in checkout.list_words()


@pytest.mark.parametrize("value", ["x\ntouch F", "x\n:; touch F; '"])
def test_a_value_of_several_lines_is_rejected_by_name(checkout, value):
    done = checkout.make("serve", f"RUN_DIR={value}")
    assert (done.returncode, checkout.list_words(), checkout.was_harmed()) == (2, [], False)
    assert "*** RUN_DIR must be one line: got" in done.stderr


def test_goals_and_names_are_no_text_of_a_shell(checkout):
    first = HOSTILE.partition("=")[0]
    for word in (HOSTILE, first, f"{HOSTILE}=1", "x';touch${IFS}F;'=1", "$(shell touch F)"):
        checkout.make(word)
        checkout.make("stop", word)
        assert not checkout.was_harmed()


def test_only_the_command_line_gives_settings_and_programs_get_them_as_arguments_alone(checkout):
    names = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PRECISION", "PYTHONDONTWRITEBYTECODE")
    checkout.make("serve", "WORKERS=2", environment={"PORT": "9", **dict.fromkeys(names, "/x")})
    words = [word for word in checkout.list_words() if "=" in word]
    variables = ["variable PORT=9", "variable PYTHONUTF8=1"]
    assert [word for word in words if word.startswith("variable ")] == variables
    assert {*words} - {*variables} == {"--goals=serve", "WORKERS=2", f"PYTHON={checkout.python}"}


def test_below_another_make_only_that_is_said(checkout):
    """Its command line's values come too, and are no business of ours."""
    above = checkout.folder / "above"
    above.mkdir()
    (above / "Makefile").write_text(f"all: ; @$(MAKE) -s -C '{checkout.folder}' stop\n")
    own = {**os.environ, "CALLS": str(checkout.calls), "MAKEFLAGS": "", "MAKELEVEL": "0"}
    subprocess.run(["make", "all", "DESTDIR=/x"], cwd=above, env=own, check=True, capture_output=True)
    words = checkout.list_words()
    assert words[words.index("setup") :][:3] == ["setup", "stop", "--below"]
    assert "DESTDIR=/x" in words


def test_what_looks_at_a_server_runs_by_the_environment_that_is_there(checkout):
    (checkout.folder / ".venv/bin/python").write_text(STUB.replace('"$@"', '"venv" "$@"'))
    for target in ("status", "stop", "verify", "serve", "reload"):
        checkout.calls.unlink(missing_ok=True)
        checkout.make(target)
        assert ("venv" in checkout.list_words()) is (target not in ("serve", "reload")), target


def test_a_machine_without_python_says_so(checkout):
    shutil.rmtree(checkout.folder / ".venv")
    shutil.rmtree(checkout.folder / ".venv-current")
    checkout.python = "/nowhere/python3"
    for target in ("setup", "status"):
        done = checkout.make(target)
        assert (done.returncode, "/nowhere/python3: " in done.stderr) == (2, True)


def test_what_an_old_python_meets_is_a_sentence():
    for name in ("__init__", "__main__"):
        ast.parse((ROOT / f"setup/{name}.py").read_text(), feature_version=(3, 6))


@pytest.mark.parametrize("name", ["Makefile", ".ci/run", "pyproject.toml", "README.md", "CONTRIBUTING.md"])
def test_the_files_that_are_named_are_there(name):
    paths = re.findall(
        r"\b(?:tests|config|handlers|models|server|setup|requirements)/[\w/.-]*\w", (ROOT / name).read_text()
    )
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_makefile_is_short_and_has_a_target_for_each_command():
    text = (ROOT / "Makefile").read_text()
    assert len(text.splitlines()) <= 100
    lists = re.findall(r"^(?:\.PHONY:|COMMANDS =) (.*)", text.replace("\\\n", " "), re.MULTILINE)
    assert {*" ".join(lists).split()} - {"$(COMMANDS)"} == {*COMMANDS}
    shown = subprocess.run(["make", "help-dev"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    described = {*re.findall(r"^  make ([a-z0-9-]+)", shown, re.MULTILINE)}
    described |= {*re.findall(r"^([a-z0-9-]+):.*## ", text, re.MULTILINE)}
    assert described == {*COMMANDS} - {"dev", "load-tools", "benchmark-tools"}


def test_a_bare_python_runs_the_set_up():
    command = [sys.executable, "-S", "-E", "-m", "setup", "help"]
    done = subprocess.run(command, cwd=ROOT, env={}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def read_advice() -> set[tuple[str, str]]:
    """`make TARGET NAME=…` as documents, messages and comments say it."""
    folders = [folder for folder in ROOT.glob("[a-z]*/") if (folder / "__init__.py").exists()]
    files = [ROOT / "Makefile", *ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
    files += [file for folder in folders for end in ("py", "yaml") for file in folder.rglob(f"*.{end}")]
    found = set()
    for file in files:
        lines = re.findall(r"\bmake ([a-z][a-z-]*)((?: [A-Z][A-Z0-9_]*=[^ ]*)+)", file.read_text())
        found |= {(goal, name) for goal, given in lines for name in re.findall(r" ([A-Z][A-Z0-9_]*)=", given)}
    return found


def test_what_is_advised_is_not_rejected():
    advice = read_advice()
    assert ("serve", "PRECISION") in advice
    assert [pair for pair in sorted(advice) if pair[1] not in list_read(pair[0])] == []
