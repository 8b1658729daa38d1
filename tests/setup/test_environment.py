"""The environment is judged right in whatever state an earlier run, or a person, left it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from setup import environment
from setup.environment import Stamp
from setup.errors import SetupError
from setup.torch_wheel import TorchSource

WANTED = {"serve": "a1"}
PYTHON = (3, 11)
PINS = {"torch": "2.8.0", "torchvision": "0.23.0"}


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """A finished environment for Python 3.11."""
    folder = tmp_path / ".venv"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/python").symlink_to(sys.executable)
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.11.7\n")
    environment.write_stamp(folder, Stamp(location=str(folder), digests=dict(WANTED)))
    return folder


def judge(venv: Path, wanted: dict[str, str] = WANTED, index: str = "") -> environment.Verdict:
    return environment.judge(venv, wanted, PYTHON, index)


def test_a_finished_environment_is_left_as_it_is(venv: Path) -> None:
    assert judge(venv) == environment.Verdict(rebuild=False, install=(), reason="")


def test_an_absent_one_is_made(tmp_path: Path) -> None:
    assert judge(tmp_path / ".venv") == environment.Verdict(rebuild=True, install=("serve",), reason="")


def test_one_that_was_killed_before_the_end_is_completed(venv: Path) -> None:
    (venv / environment.STAMP).unlink()
    verdict = judge(venv)
    assert (verdict.rebuild, verdict.install) == (False, ("serve",))
    assert verdict.reason == "its set-up was not finished: checking and completing it"


def test_half_a_stamp_is_none(venv: Path) -> None:
    (venv / environment.STAMP).write_text('{"location": "')
    assert judge(venv).install == ("serve",)


def test_half_an_environment_is_made_anew(venv: Path) -> None:
    (venv / "pyvenv.cfg").unlink()
    assert judge(venv).rebuild


def test_one_without_its_python_is_made_anew(venv: Path) -> None:
    (venv / "bin/python").unlink()
    (venv / "bin/python").symlink_to("/nowhere/python3.11")
    assert judge(venv).rebuild


def test_one_of_another_python_is_made_anew(venv: Path) -> None:
    (venv / "pyvenv.cfg").write_text("version = 3.10.13\n")
    verdict = judge(venv)
    assert verdict.rebuild
    assert verdict.reason == "it was made for Python 3.10, this is 3.11: making it anew"


def test_one_that_was_moved_is_made_anew(venv: Path) -> None:
    moved = venv.rename(venv.with_name("moved"))
    verdict = judge(moved)
    assert verdict.rebuild
    assert verdict.reason == f"it was moved from {venv}: making it anew"


def test_changed_requirements_are_installed(venv: Path) -> None:
    verdict = judge(venv, {"serve": "b2"})
    assert (verdict.rebuild, verdict.install) == (False, ("serve",))
    assert verdict.reason == "requirements changed: serve"


def test_a_set_on_top_is_installed_alone(venv: Path) -> None:
    verdict = judge(venv, {"serve": "a1", "dev": "d1"})
    assert (verdict.rebuild, verdict.install, verdict.reason) == (False, ("dev",), "")


def test_another_torch_index_makes_it_anew(venv: Path) -> None:
    assert judge(venv, index="default").install == ()
    verdict = judge(venv, index="https://mirror.example/cpu")
    assert verdict.rebuild
    assert verdict.reason == (
        "its torch came from default, now TORCH_INDEX=https://mirror.example/cpu: making it anew"
    )


def test_earlier_sets_stay_wanted() -> None:
    stamp = Stamp(location="/x", digests={"serve": "a1", "dev": "d1"})
    assert environment.all_sets(stamp, ["serve"]) == ["serve", "dev"]
    assert environment.all_sets(None, ["serve"]) == ["serve"]


def test_stamp_comes_back(venv: Path) -> None:
    stamp = Stamp(location="/x", digests={"serve": "a1"}, torch_index="https://i.example", torch_bytes=7)
    environment.write_stamp(venv, stamp)
    assert environment.read_stamp(venv) == stamp
    assert environment.read_stamp(venv / "absent") is None


def package(site: Path, name: str, *, record: bool = True, lost: bool = False) -> Path:
    """An installed package; killed before its RECORD, or with a file deleted later."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").touch()
    if not lost:
        (site / f"{name}.py").touch()
    if record:
        (info / "RECORD").write_text(f"{name}.py,,\n__pycache__/{name}.cpython-311.pyc,,\n")
    return info


def test_half_written_packages_are_found(tmp_path: Path) -> None:
    package(tmp_path, "whole")
    killed = package(tmp_path, "killed", record=False)
    lost = package(tmp_path, "lost", lost=True)
    assert environment.damaged_packages(tmp_path) == [killed, lost]


def test_repair_lets_pip_see_them(venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = venv / "lib/python3.11/site-packages"
    package(site, "whole")
    package(site, "killed", record=False)
    monkeypatch.setattr(environment.subprocess, "call", lambda *_, **__: 0)
    environment.repair(venv, tmp_path / "log")
    assert [path.name for path in site.glob("*.dist-info")] == ["whole-1.0.dist-info"]


def test_repair_without_a_working_pip_starts_anew(
    venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    monkeypatch.setattr(environment.subprocess, "call", lambda *_, **__: 1)
    monkeypatch.setattr(environment, "create", lambda folder, log: made.append(folder))
    environment.repair(venv, tmp_path / "log")
    assert made == [venv]


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    ran: list[list[str]] = []
    monkeypatch.setattr(
        environment,
        "run_logged",
        lambda command, log, extra=None: ran.append([*command, *(extra or {}).items()]),
    )
    return ran


def test_default_torch_obeys_the_constraints(commands: list[list[str]], tmp_path: Path) -> None:
    source = TorchSource(index="default", suffix="", reason="")
    environment.install_torch(tmp_path, tmp_path / "requirements", source, PINS, tmp_path / "log")
    constraints = str(tmp_path / "requirements/constraints.txt")
    assert commands[0][-4:] == ["-c", constraints, "torch==2.8.0", "torchvision==0.23.0"]


def test_cpu_only_torch_names_its_build(commands: list[list[str]], tmp_path: Path) -> None:
    """The full version: another source pip is set up with may offer a newer `+cpu` build."""
    source = TorchSource(index="https://index.example", suffix="+cpu", reason="")
    environment.install_torch(tmp_path, tmp_path / "requirements", source, PINS, tmp_path / "log")
    assert commands[0][-4:] == [
        "--no-deps", "torch==2.8.0+cpu", "torchvision==0.23.0+cpu", ("PIP_INDEX_URL", "https://index.example"),
    ]  # fmt: skip


def test_credentials_are_not_written_down(venv: Path, tmp_path: Path) -> None:
    """Neither by the command in the log nor by what an image is made of, nor taken for another index."""
    address = "file://name:secret@localhost/none"
    source = TorchSource(index=address, suffix="", reason="")
    with pytest.raises(SetupError) as error:
        environment.install_torch(venv, tmp_path, source, PINS, tmp_path / "log")
    assert "secret" not in str(error.value) + (tmp_path / "log").read_text()
    shown = "https://***@mirror.example/cpu"
    stamp = Stamp(location=str(venv), digests=dict(WANTED), torch_index=shown)
    environment.write_stamp(venv, stamp)
    assert judge(venv, index="https://name:secret@mirror.example/cpu").install == ()
    verdict = judge(venv, index="https://name:secret@other.example/cpu")
    assert verdict.reason.endswith("now TORCH_INDEX=https://***@other.example/cpu: making it anew")


def test_a_set_is_installed_by_its_hashes(commands: list[list[str]], tmp_path: Path) -> None:
    environment.install_set(tmp_path, tmp_path / "requirements", "serve", tmp_path / "log")
    locked = str(tmp_path / "requirements/hashes/serve.txt")
    assert commands[0][-4:] == ["--require-hashes", "--no-deps", "-r", locked]


@pytest.mark.parametrize("version", ["2.8.0", "2.8.0+cpu"])
def test_a_torch_of_the_pinned_version_is_in_place(version: str) -> None:
    assert environment.torch_is_in_place({"torch": version, "torchvision": "0.23.0"}, PINS)
    assert not environment.torch_is_in_place({"torch": version}, PINS)
    assert not environment.torch_is_in_place({"torch": "2.13.0+cpu", "torchvision": "0.23.0"}, PINS)


def test_torch_is_measured_as_du_counts(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/a").write_bytes(b"x" * 10_000)
    du = subprocess.run(
        ["du", "-s", "--block-size=1", str(tmp_path / "lib/a")], capture_output=True, check=True
    )
    assert environment.disk_usage(tmp_path) == int(du.stdout.split()[0])


def test_stamp_is_replaced_whole(venv: Path) -> None:
    stamp = environment.read_stamp(venv)
    assert stamp
    environment.write_stamp(venv, replace(stamp, torch_bytes=1))
    assert not list(venv.glob("*.part"))
