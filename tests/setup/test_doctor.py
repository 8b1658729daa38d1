"""The doctor: what is missing is found, said with what was got and what to do, and installed as root."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from setup import doctor
from setup.__main__ import explain_python
from setup.doctor import HAPROXY, NEEDS, Need, SetupError


@pytest.fixture
def machine(monkeypatch, tmp_path) -> Path:
    """One without any program; they are put into its folder."""
    monkeypatch.setattr(doctor, "FOLDERS", (str(tmp_path),))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return tmp_path


def put(folder: Path, name: str, says: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("version", "fits"), [((3, 9, 18), False), ((3, 10, 0), True), ((3, 13, 2), True), ((3, 14, 0), False)]
)
def test_only_a_python_with_wheels_of_ipex_is_taken(version, fits):
    sentence = explain_python(version, "/usr/bin/python3")
    assert (sentence is None) is fits
    assert fits or f"got {version[0]}.{version[1]} (/usr/bin/python3)\n  do: " in sentence


def test_an_empty_machine_lacks_everything_but_pythons_own(machine):
    lacking = [need.what for need in doctor.find_missing()]
    assert lacking == [need.what for need in NEEDS if need.what != "Python's venv"]


@pytest.mark.parametrize(
    ("need", "name", "says", "fits"),
    [
        (NEEDS[0], "java", 'openjdk version "17.0.15"', True),
        (NEEDS[0], "java", 'java version "1.8.0_392"', False),
        (NEEDS[0], "java", "", False),
        (HAPROXY, "haproxy", "HAProxy version 2.6.12-1", True),
        (HAPROXY, "haproxy", "HA-Proxy version 2.0.33", False),
        (HAPROXY, "haproxy", "HAProxy version 2.10", True),
    ],
)
def test_versions_that_are_too_old_are_none(machine, need, name, says, fits):
    put(machine, name, says)
    assert (not doctor.find_lack(need)) is fits


def test_java_home_wins(machine, monkeypatch):
    put(machine, "java", 'openjdk version "17.0.15"')
    put(machine / "home/bin", "java", 'openjdk version "11.0.2"')
    monkeypatch.setenv("JAVA_HOME", str(machine / "home"))
    assert doctor.find_lack(NEEDS[0]) == f"11 ({machine}/home/bin/java)"


@pytest.mark.parametrize(
    ("checkout", "flags", "said"),
    [
        ("/srv/kit-1.0/übung", "fpu avx2", None),
        ("/srv/kit", "fpu avx", "AVX2"),
        ("/home/a b/kit", "avx2", "got /home/a b/kit"),
        ("/srv/x:y/kit", "avx2", "without blanks and colons"),
    ],
)
def test_a_hopeless_machine_is_rejected(tmp_path, checkout, flags, said):
    (tmp_path / "cpuinfo").write_text(f"model name\t: x\nflags\t\t: {flags}\n")
    with pytest.raises(SetupError, match=said) if said else nullcontext():
        doctor.check_machine(Path(checkout), tmp_path / "cpuinfo")


LACKING = Need("numactl", ("numactl",), ("numactl",))


def lack(monkeypatch, *needs: Need) -> None:
    monkeypatch.setattr(doctor, "find_missing", lambda *_: list(needs))


def test_without_root_the_line_that_installs_it_is_said(monkeypatch, machine):
    lack(monkeypatch, LACKING, HAPROXY)
    monkeypatch.setattr(doctor.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(doctor, "succeeds", lambda _: False)
    with pytest.raises(SetupError) as caught:
        doctor.complete_machine()
    assert str(caught.value).startswith(
        "numactl is missing: got no numactl\n  do: as root: apt-get update && "
    )
    assert str(caught.value).splitlines()[1].endswith(" numactl")


def test_as_root_it_is_installed_and_looked_for_again(monkeypatch, machine):
    monkeypatch.setattr(doctor.os, "geteuid", lambda: 0)
    monkeypatch.setattr(
        doctor, "succeeds", lambda command: command[-1] in ("--version", "default-jdk-headless")
    )
    ran: list[str] = []
    monkeypatch.setattr(doctor, "run", lambda _, command: ran.append(" ".join(command)))
    java = Need("Java 17 or newer", doctor.JDK, ("java",))
    lack(monkeypatch, LACKING, java)
    with pytest.raises(SetupError, match="update-alternatives"):
        doctor.complete_machine()
    assert ran[0] == "apt-get -q update"
    assert ran[1].endswith(" numactl default-jdk-headless")


def test_a_failed_command_shows_its_end_and_no_passwords(tmp_path, monkeypatch):
    log = tmp_path / "run/setup.log"
    monkeypatch.setattr(doctor, "LOG", log)
    doctor.run("first", [sys.executable, "-c", "print('earlier')"])
    script = "import os; print('first\\n' * 40, flush=True); raise SystemExit(os.environ['ADDRESS'])"
    with pytest.raises(SetupError) as caught:
        doctor.run(
            "second", [sys.executable, "-c", script], {"ADDRESS": "https://name:secret@index.example/x"}
        )
    text = str(caught.value)
    assert "failed with exit code 1" in text
    assert f"log: {log}" in text
    assert text.count("  | first") <= 12
    assert "earlier" not in text
    assert "earlier" in log.read_text()
    for shown in (text, log.read_text()):
        assert "https://***@index.example/x" in shown
        assert "secret" not in shown
