"""No value of a knob is text of a shell or of make: each reaches the programs as it was given."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from config.knobs.table import ABLATION, EVERY, KNOBS, LOADS, SWITCH

ROOT = Path(__file__).resolve().parents[3]
HOSTILE = (
    r"""x'; touch F;echo '"; touch F;" $(touch F) `touch F` $(shell touch F) ${HOME} $$HOME \ #% é,b=c"""
)
LISTED = ("RESULT",)
"""Several words, each an argument of its own."""
NOT_TRIED = {*EVERY, "lock", "audit"}
"""They start uv, and a script that is not there."""
TARGETS = sorted({goal for knob in KNOBS.values() for goal in knob.commands} - NOT_TRIED)
DECIDES_ALONE = {
    **dict.fromkeys(("setup", "soak", "profile", *ABLATION), "BACKEND"),
    "reload": "TUNED",
    "tune": "TUNED",
    **dict.fromkeys(LOADS, "URL"),
}
"""Compared within make: with a URL, for one, a load test starts no server, and nothing else would be seen."""
STUB = """#!/bin/sh
case "$*" in *"config.knobs check"*) cd "$ROOT" && exec "$REAL" "$@" ;; esac
{ env | sed -n 's/^KIT_[A-Z_]*=//p'; printf '%s\\n' "$@"; } >> "$CALLS"
case "$*" in *"server status"*) exit 1 ;; esac
"""
"""Writes down what it is given. No server runs, so a load test begins with all that starts one."""


class Checkout:
    """The Makefile with such a Python, in a folder that a shell would trip over, too."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls = folder, folder / "calls"
        self.python = folder / HOSTILE / "python"
        shutil.copy(ROOT / "Makefile", folder)
        tools = (folder / "bin/docker", folder / ".venv/bin/python", folder / ".venv-current/bin/python")
        for file in (self.python, *tools):
            file.parent.mkdir(parents=True)
            file.write_text(STUB)
            file.chmod(0o755)

    def make(
        self, target: str, values: dict[str, str], *, by_environment: bool = False
    ) -> subprocess.CompletedProcess[bytes]:
        """In the POSIX locale."""
        own = {"PATH": f"{self.folder}/bin:{os.environ['PATH']}", "HOME": os.environ["HOME"]}
        own |= {"ROOT": str(ROOT), "REAL": sys.executable, "CALLS": str(self.calls), "LC_ALL": "C"}
        words = [] if by_environment else [f"{name}={value}" for name, value in values.items()]
        given = own | values if by_environment else own
        return subprocess.run(
            ["make", target, *words], cwd=self.folder, env=given, capture_output=True, check=False
        )

    def list_words(self) -> set[str]:
        """All that programs were given, as arguments and in variables of the kit."""
        return set(self.calls.read_text(encoding="utf-8").splitlines()) if self.calls.exists() else set()

    def was_harmed(self) -> bool:
        return any(self.folder.rglob("F"))


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def list_arguments(name: str, value: str) -> set[str]:
    """How a value is handed over: to our programs, or to docker."""
    return {*value.split()} if name in LISTED else {f"{KNOBS[name].option}={value}"}


@pytest.mark.parametrize("by_environment", [False, True], ids=["command-line", "environment"])
@pytest.mark.parametrize("target", TARGETS)
def test_each_value_arrives_as_it_was_given(checkout, target, by_environment):
    left_out = {"PYTHON", DECIDES_ALONE.get(target)}
    left_out |= {name for name, knob in KNOBS.items() if knob.choices == SWITCH}
    read = [name for name, knob in KNOBS.items() if knob.is_read_by(target) and name not in left_out]
    values = {name: name + HOSTILE for name in read}
    done = checkout.make(target, {**values, "PYTHON": str(checkout.python)}, by_environment=by_environment)
    assert done.returncode == 0 or target == "status", done.stderr
    words = checkout.list_words()
    arguments = {name: list_arguments(name, value) for name, value in values.items()}
    bare = {name: {value, f"{name}={value}"} for name, value in values.items()}
    assert [name for name in read if not (arguments[name] <= words or bare[name] & words)] == []
    # And none arrives in another spelling, or in part.
    folder = values.get("RUN_DIR")
    of_folder = (("timings", "timings"), ("output", "timings"), ("tuned", "tuned"))
    derived = {f"--{option}={folder}/{name}.json" for option, name in of_folder}
    derived |= {*values.values(), *(f"{name}={value}" for name, value in values.items())}
    assert {word for word in words if "touch" in word} <= derived.union(*arguments.values())
    assert not checkout.was_harmed()


@pytest.mark.parametrize("value", ["", "-x", "=x", " x", "x ", "'", "\\", "\\'", "a'b'c", '"', "--port=1"])
def test_short_values_are_no_exception(checkout, value):
    assert checkout.make("stop", {"RUN_DIR": value}, by_environment=True).returncode == 0
    assert f"--run-dir={value}" in checkout.list_words()


def test_words_are_no_options(checkout):
    assert checkout.make("report", {"RESULT": "--check", "PYTHON": str(checkout.python)}).returncode == 0
    words = checkout.calls.read_text().splitlines()
    assert words[words.index("--check", words.index("--")) - 1] == "--"


@pytest.mark.parametrize("by_environment", [False, True], ids=["command-line", "environment"])
@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x\ntouch F", b"RUN_DIR must be one line"),
        ("x\n:; touch F; '", b"RUN_DIR must be one line"),
        ("a\tb", b"RUN_DIR must be one line"),
        (os.fsdecode(b"caf\xe9"), b"RUN_DIR must be UTF-8: got b'caf\\xe9'"),
        ("~/run", b"RUN_DIR must be a path that the shell has expanded: got ~/run; do: write $HOME"),
    ],
)
def test_what_no_file_could_hold_is_refused_by_name(checkout, value, text, by_environment):
    done = checkout.make("serve", {"RUN_DIR": value}, by_environment=by_environment)
    assert (done.returncode, checkout.list_words(), checkout.was_harmed()) == (2, set(), False)
    assert b"*** refused: " + text in done.stderr


def test_what_is_in_the_environment_for_others_stops_nothing(checkout):
    values = {"TOPOLOGY": "~/x", "A": "x\ny", "RESULT": os.fsdecode(b"\xe9")}
    assert checkout.make("stop", values, by_environment=True).returncode == 0


def test_the_package_set_has_an_environment_of_its_own(checkout):
    assert checkout.make("models", {"BACKEND": "openvino", "PYTHON": str(checkout.python)}).returncode == 0
    assert "--set=current" in checkout.list_words()


def test_goals_and_names_are_no_text_of_a_shell(checkout):
    for word in (HOSTILE, HOSTILE.partition("=")[0], f"{HOSTILE}=1", "x';touch${IFS}F;'=1"):
        checkout.make(word, {})
        assert not checkout.was_harmed()


def test_without_a_python_nothing_is_expanded_either(checkout):
    (checkout.folder / ".venv/bin/python").unlink()
    checkout.make("setup", {"PYTHON": "/nowhere/python", "RUN_DIR": "$(shell touch F)"})
    assert not checkout.was_harmed()


def test_the_makefile_names_a_value_in_no_other_way():
    """Only `value` and what is made of it leaves a value as it was given."""
    named = re.findall(r"\$\(([A-Z0-9_]+)\)|\$\{(\w+)\}", (ROOT / "Makefile").read_text())
    assert {name for pair in named for name in pair} & {*KNOBS} == set()
