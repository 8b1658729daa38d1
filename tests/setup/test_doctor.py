"""The doctor: what is missing is found, said with what was got and what to do, and installed as root."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from setup import doctor
from setup.__main__ import explain_python
from setup.doctor import HAPROXY, JAVA, NEEDS


@pytest.fixture
def machine(monkeypatch, tmp_path) -> Path:
    """One without any program; they are put into its folder."""
    monkeypatch.setattr(doctor, "FOLDERS", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return tmp_path


def put(folder: Path, name: str, does: str = "", mode: int = 0o755) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{does}\n")
    (folder / name).chmod(mode)


@pytest.mark.parametrize(
    ("version", "fits"), [((3, 9, 18), False), ((3, 10, 0), True), ((3, 13, 2), True), ((3, 14, 0), False)]
)
def test_only_a_python_with_wheels_of_ipex_is_taken(version, fits):
    sentence = explain_python(version, "/usr/bin/python3")
    assert (not sentence) is fits
    assert fits or f"got {version[0]}.{version[1]} (/usr/bin/python3)\n  do: " in sentence


def test_an_empty_machine_lacks_everything_but_pythons_own(machine):
    assert [*doctor.find_missing()] == [what for what in NEEDS if what != "Python's venv"]
    assert [*doctor.find_missing(*NEEDS)] == []


@pytest.mark.parametrize(
    ("need", "name", "says", "lack"),
    [
        (JAVA, "java", 'openjdk version "17.0.15"', ""),
        (JAVA, "java", 'java version "1.8.0_392"', "1 (PATH)"),
        (JAVA, "java", "", "no version (PATH)"),
        (HAPROXY, "haproxy", "HAProxy version 2.6.12-1", ""),
        (HAPROXY, "haproxy", "HA-Proxy version 2.4.24-0ubuntu0.22.04", "2.4 (PATH)"),
        (HAPROXY, "haproxy", "HAProxy version 2.10", ""),
    ],
)
def test_versions_that_are_too_old_are_none(machine, need, name, says, lack):
    put(machine, name, f"echo '{says}' >&2")
    assert doctor.find_lack(need) == lack.replace("PATH", f"{machine}/{name}")


def test_java_home_wins_and_what_does_not_run_says_why(machine, monkeypatch):
    put(machine, "java", """echo 'openjdk version "17.0.15"'""")
    home = machine / "it's home"
    put(home / "bin", "java", """echo 'openjdk version "11.0.2"'""")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert doctor.find_lack(JAVA) == f"11 ({home}/bin/java)"
    put(home / "bin", "java", mode=0o644)
    assert "Permission denied" in doctor.find_lack(JAVA)


@pytest.mark.parametrize(
    ("checkout", "flags", "said"),
    [
        ("/srv/kit-1.0/übung", "fpu avx2", None),
        ("/srv/kit", "fpu avx", "AVX2"),
        ("/home/a b/kit", "avx2", "got /home/a b/kit"),
        ("/srv/x:y/kit", "avx2", "without blanks, colons, quotes"),
        ("/srv/it's/kit", "avx2", "without blanks, colons, quotes"),
    ],
)
def test_a_hopeless_machine_is_rejected(tmp_path, checkout, flags, said):
    (tmp_path / "cpuinfo").write_text(f"model name\t: x\nflags\t\t: {flags}\n")
    with pytest.raises(SystemExit, match=said) if said else nullcontext():
        doctor.check_machine(Path(checkout), tmp_path / "cpuinfo")


@pytest.fixture
def apt(monkeypatch, machine) -> list[str]:
    """What is run on a machine without Java, numactl and HAProxy, by root."""
    ran: list[str] = []
    for what in {*NEEDS} - {JAVA, "numactl", HAPROXY}:
        put(machine, NEEDS[what][1].split()[0].rpartition("/")[2])
    monkeypatch.setattr(doctor.os, "geteuid", lambda: 0)
    monkeypatch.setattr(doctor.subprocess, "getstatusoutput", lambda _: (0, ""))
    monkeypatch.setattr(doctor, "run", lambda _, command: ran.append(command))
    return ran


def test_without_root_the_line_that_installs_it_is_said(apt, monkeypatch):
    """HAProxy is no part of it: PyPI has one."""
    monkeypatch.setattr(doctor.subprocess, "getstatusoutput", lambda _: (1, ""))
    with pytest.raises(SystemExit) as caught:
        doctor.complete_machine()
    java, numactl, do, again = str(caught.value).splitlines()
    assert (java, numactl) == (f"{JAVA} is missing: got no java", "numactl is missing: got no numactl")
    assert do.startswith("  do: as root: apt-get update && apt-get satisfy -y ")
    assert do.endswith("default-jdk-headless (>= 2:1.17), numactl'")
    assert "make setup" in again
    assert apt == []


def test_by_root_it_is_installed_and_looked_for_again(apt, monkeypatch):
    with pytest.raises(SystemExit, match="update-alternatives"):
        doctor.complete_machine()
    assert apt[0] == "apt-get -q update"
    assert apt[1].startswith("env DEBIAN_FRONTEND=noninteractive apt-get satisfy ")
    assert apt[1].endswith(", numactl, haproxy'")
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(
        SystemExit, match=r"^Java 17 or newer is missing: got no /nowhere/bin/java\n  do: unset"
    ):
        doctor.complete_machine()
    assert len(apt) == 2


def test_a_failed_command_shows_its_end_and_no_passwords(tmp_path, monkeypatch):
    log = tmp_path / "run/setup.log"
    monkeypatch.setattr(doctor, "LOG", log)
    doctor.run("first", "echo earlier")
    with pytest.raises(SystemExit) as caught:
        doctor.run(
            "second",
            "sh -c 'yes line | head -40; echo $ADDRESS; exit 3'",
            {"ADDRESS": "https://me:secret@x.example"},
        )
    text = str(caught.value)
    assert "failed with exit code 3" in text
    assert text.count("  | line") == 11
    assert f"  | https://***@x.example\n  log: {log}\n  do: " in text
    assert log.read_text() == "earlier\n" + 40 * "line\n" + "https://***@x.example\n"
