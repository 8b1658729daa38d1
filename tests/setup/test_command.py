"""What a command of the Makefile installs, checks and runs, and in which order."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from setup import command, doctor, environment


class ReplacedError(Exception):
    """The process is another program now; its words."""


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout without an environment, and what is done for one."""
    done: list[str] = []
    venvs = {"ipex": tmp_path / ".venv", "current": tmp_path / ".venv-current"}
    answer = {
        "arguments": ["PORT=9"],
        "set": "ipex",
        "torch_index": "",
        "extras": [],
        "builds": False,
        "program": [],
    }

    def begin(venv: Path) -> None:
        done.append(f"begin {venv.name}")
        make_base(venv)

    def call(venv: Path, *words: str) -> str:
        done.append(" ".join(words[:3] if words[0] == "config.settings" else words[:2]))
        if words[0] == "config.settings":
            return json.dumps(answer)
        return ""

    def execute(venv: Path, *words: str) -> None:
        raise ReplacedError(venv.name, *words)

    monkeypatch.setattr(command, "VENVS", venvs)
    monkeypatch.setattr(command, "call", call)
    monkeypatch.setattr(command, "execute", execute)
    monkeypatch.setattr(doctor, "check_machine", lambda: None)
    monkeypatch.setattr(doctor, "complete_machine", lambda: None)
    monkeypatch.setattr(environment, "begin", begin)
    monkeypatch.setattr(
        environment, "complete_environment",
        lambda venv, name, purposes, index: done.append(" ".join([f"install {name} {venv.name}", *purposes])),
    )  # fmt: skip
    return done, answer, venvs


def make_base(venv: Path, *, complete: bool = False) -> None:
    (venv / "bin").mkdir(parents=True, exist_ok=True)
    (venv / "bin/python").touch(mode=0o755)
    (venv / "lib/python3.11/site-packages/pydantic_settings").mkdir(parents=True, exist_ok=True)
    if complete:
        (venv / "setup.json").write_text('{"serve": "0"}')


def run(*words: str) -> tuple[str, ...]:
    with pytest.raises(ReplacedError) as replaced:
        command.main(words)
    return replaced.value.args


def test_settings_are_validated_before_anything_large_is_installed(checkout):
    done, answer, _ = checkout
    answer |= {"builds": True, "program": ["server", "serve"]}
    assert run("serve", "--goals=serve", "PORT=9") == (".venv", "server", "serve", "PORT=9")
    assert done == ["begin .venv", "config.settings check serve", "models check", "install ipex .venv"]


def test_a_value_that_is_rejected_ends_it_with_its_code(checkout, monkeypatch):
    done, _, _ = checkout

    def reject(*words: object) -> str:
        raise subprocess.CalledProcessError(2, [])

    monkeypatch.setattr(command, "call", reject)
    assert command.main(["serve", "PORT=x"]) == 2
    assert done == ["begin .venv"]


@pytest.mark.parametrize(
    ("name", "known", "installed"),
    [
        ("loadtest", {"extras": ["loadtest"], "program": ["loadtest", "run"]}, "install ipex .venv loadtest"),
        ("models", {"set": "current", "program": ["models", "build"]}, "install current .venv-current"),
        ("dev", {"extras": ["dev"]}, "install ipex .venv dev"),
        ("test-current", {"extras": ["dev"]}, "install current .venv-current dev"),
    ],
)
def test_each_command_installs_what_it_needs_of_the_right_set(checkout, name, known, installed):
    done, answer, venvs = checkout
    make_base(venvs["ipex"], complete=True)
    answer |= known
    if answer["program"]:
        assert run(name)[1:3] == (*answer["program"],)
    else:
        assert command.main([name]) == 0
    assert done[-1] == installed


def test_what_runs_is_looked_at_before_a_second_set_is_installed(checkout):
    done, answer, venvs = checkout
    make_base(venvs["ipex"], complete=True)
    answer |= {"set": "current", "program": ["server", "reload"], "builds": True}
    run("reload", "BACKEND=openvino")
    assert done[1:] == ["models check", "server check-reload", "install current .venv-current"]


@pytest.mark.parametrize("name", ["status", "verify", "stop", "clean"])
def test_what_looks_at_a_server_installs_nothing(checkout, name, capsys):
    done, _, venvs = checkout
    assert command.main([name, "RUN_DIR=x"]) == (0 if name == "clean" else 1)
    assert "got no environment (.venv); do: make setup" in capsys.readouterr().out
    make_base(venvs["current"])
    assert run(name, "--goals=x", "RUN_DIR=x") == (".venv-current", "server", name, "--goals=x", "RUN_DIR=x")
    assert done == []


def test_a_plan_installs_nothing(checkout, capsys):
    done, answer, venvs = checkout
    answer |= {"program": ["server", "plan"]}
    make_base(venvs["ipex"])
    assert command.main(["plan"]) == 1
    assert "make plan installs nothing: got no .venv; do: make setup" in capsys.readouterr().err
    make_base(venvs["ipex"], complete=True)
    assert run("plan") == (".venv", "server", "plan", "PORT=9")
    assert done == ["config.settings check plan"] * 2


def test_an_image_needs_no_more_than_what_reads_settings(checkout):
    done, _, _ = checkout
    assert run("image", "--goals=image") == (".venv", "docker", "PORT=9")
    assert done == ["begin .venv", "config.settings check image"]


def test_within_an_image_one_set_is_installed_where_it_is_said(checkout, tmp_path):
    done, _, _ = checkout
    assert command.main(["install", "current", f"{tmp_path}/.venv", ""]) == 0
    assert done == ["install current .venv"]
