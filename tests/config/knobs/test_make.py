"""make itself: what it refuses before anything runs, what it hands over, and what it hides."""

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

from config.knobs import commands
from config.knobs.commands import render_help
from config.knobs.table import KNOBS, find

ROOT = Path(__file__).resolve().parents[3]
Done = subprocess.CompletedProcess[str]


def make(*words: str, environment: Mapping[str, str] | None = None, folder: Path = ROOT) -> Done:
    """Not as a part of `make test`, whose values would be in the environment too."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    given = {**own, **(environment or {})}
    return subprocess.run(
        ["make", *words], cwd=folder, env=given, capture_output=True, text=True, check=False
    )


def assert_refused(done: Done, text: str) -> None:
    assert done.returncode == 2
    assert re.match(r"Makefile:\d+: \*\*\* refused: ", done.stderr), done.stderr
    assert text in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("serve PORT=1 WORKER=2", "got WORKER; do: write WORKERS= ("),
        ("serve DESTDIR=/x", "got DESTDIR; do: "),
        ("models WORKERS=2", "WORKERS is read by make plan, serve, "),
        ("stop status USERS=3", "got make stop status; do: "),
    ],
)
def test_the_command_line_is_judged_first(words, text):
    assert_refused(make(*words.split()), text)


@pytest.mark.parametrize(
    "words",
    [
        "loadtest PRECISION=int8 USERS=3",
        "loadtest-slo WEIGHTS=random SLO_P99_MS=500",
        "stop serve PRECISION=int8",
        "inputs WEIGHTS=random RUN_DIR=x",
        "load-tools TORCH_INDEX=default",
        "lint PYTHON=python3",
        "clean PYTHON=python3 RUN_DIR=x",
        "help PYTHON=python3",
        "serve SHELL=/bin/sh",
        "plan DRY_RUN=1 TOPOLOGY=x WORKERS=",
    ],
)
def test_what_is_shared_goes_on_working(words):
    done = make("-n", *words.split())
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("goal", ["serve", "loadtest"])
def test_a_misspelt_name_in_the_environment_is_refused_where_it_would_be_read(goal):
    text = "has PRECISON, which nothing reads and which is nearly PRECISION; do: name it PRECISION, or unset"
    assert_refused(make("-n", goal, environment={"PRECISON": "int8"}), text)
    for other in ("stop", "lint", "help"):
        assert make("-n", other, environment={"PRECISON": "int8"}).returncode == 0


def test_knobs_in_the_environment_are_read_and_never_refused():
    done = make("-n", "serve", environment={"PRECISION": "int8", "SCENARIO": "x"})
    assert done.returncode == 0
    assert "--precision='int8'" in done.stdout
    assert make("-n", "stop", environment={"PRECISION": "int8"}).returncode == 0


def test_the_values_of_a_make_above_are_its_own(tmp_path):
    """Of them only a misspelt one is refused."""
    (tmp_path / "Makefile").write_text(
        f"all: ; @$(MAKE) -s -C {ROOT} -n stop\nup: ; @$(MAKE) -s -C {ROOT} -n serve\n"
    )
    done = make("all", "DESTDIR=/x", "SCENARIO=x", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "nearly PRECISION" in make("up", "PRECISON=int8", folder=tmp_path).stderr


def test_programs_get_values_as_arguments_alone():
    others = {"PYTHONPATH": "/x", "OTHER": "kept"}
    given = {**dict.fromkeys(KNOBS, "1"), "PYTHON": sys.executable, "BACKEND": "ipex", **others}
    done = make("--eval=show: ; @env", "show", environment=given)
    seen = {line.partition("=")[0] for line in done.stdout.splitlines()}
    assert seen & {*KNOBS, "PYTHONPATH"} == set()
    assert "OTHER" in seen


def test_help_is_short_and_help_dev_lists_every_setting():
    assert make("help-dev").stdout.endswith(f"\n{render_help()}\n")
    assert len(make("help").stdout.splitlines()) <= 60
    named = re.findall(r"^  ([A-Z][A-Z0-9_]*) ", render_help(), re.MULTILINE)
    assert named == [*KNOBS]


def test_a_machine_without_python_says_so(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copytree(ROOT / "config", tmp_path / "config")
    done = make("setup", "PYTHON=/nowhere/python3", folder=tmp_path)
    assert done.returncode == 2
    assert "/nowhere/python3: not found" in done.stderr


def test_what_an_old_python_meets_is_a_sentence():
    for name in ("__init__", "__main__"):
        ast.parse((ROOT / f"config/knobs/{name}.py").read_text(), feature_version=(3, 6))


def test_it_needs_the_standard_library_alone():
    command = [sys.executable, "-S", "-E", "-m", "config.knobs", "check", "serve", "0", "PRECISION=int8"]
    done = subprocess.run(command, cwd=ROOT, env={}, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["ipex", *KNOBS]


def test_compose_is_told_of_a_misspelt_name_in_the_shell(monkeypatch):
    monkeypatch.setenv("SCENARO", "x")  # nothing of compose's
    assert commands.main(["compose"]) == 0
    monkeypatch.setenv("PRECISON", "int8")
    with pytest.raises(
        SystemExit, match=r"^refused: the environment has PRECISON, .* name it PRECISION, or unset"
    ):
        commands.main(["compose"])


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


def test_what_is_advised_is_not_refused():
    advice = read_advice()
    assert ("serve", "PRECISION") in advice
    assert [pair for pair in sorted(advice) if not find(pair[1]).is_read_by(pair[0])] == []
