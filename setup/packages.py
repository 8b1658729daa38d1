"""System packages: what is missing by the thing itself, and how Debian and Ubuntu install it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from setup.commands import run_logged
from setup.errors import SetupError
from setup.facts import Facts
from setup.preflight import OLDEST_HAPROXY, check_haproxy, check_java
from setup.progress import step

HAPROXY = "HAProxy"
APT_OPTIONS = ("-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=120")


@dataclass(frozen=True, kw_only=True)
class Need:
    """Something the machine must have, and the package that brings it."""

    name: str
    """As a person calls it."""
    packages: tuple[str, ...]
    """In order of preference: the first one the distribution offers is installed."""
    present: Callable[[Facts], bool]
    """Looks for the thing, not for the package: it may have come another way."""


# Java 21 is for distributions without 17 (Debian 13). `libtcmalloc-minimal4` got a new name with 64-bit time
# (Ubuntu 24.04, Debian 13); there the old one is a virtual name without a candidate.
NEEDS = (
    Need(
        name="Java 17",
        packages=("openjdk-17-jdk-headless", "openjdk-21-jdk-headless", "default-jdk-headless"),
        present=lambda facts: check_java(facts) is None,
    ),
    # The agent in front of TorchServe is compiled against the TorchServe that is installed.
    Need(
        name="javac",
        packages=("openjdk-17-jdk-headless", "openjdk-21-jdk-headless", "default-jdk-headless"),
        present=lambda facts: "javac" in facts.tools,
    ),
    Need(name="jemalloc", packages=("libjemalloc2",), present=lambda facts: "jemalloc" in facts.libraries),
    Need(
        name="tcmalloc",
        packages=("libtcmalloc-minimal4", "libtcmalloc-minimal4t64"),
        present=lambda facts: "tcmalloc" in facts.libraries,
    ),
    Need(name="numactl", packages=("numactl",), present=lambda facts: "numactl" in facts.tools),
    Need(name="lscpu", packages=("util-linux",), present=lambda facts: "lscpu" in facts.tools),
    Need(name="ApacheBench", packages=("apache2-utils",), present=lambda facts: "ab" in facts.tools),
    Need(name="curl", packages=("curl",), present=lambda facts: "curl" in facts.tools),
    # FRONT=haproxy: the door in front of TorchServe. Installed whatever FRONT is, as both allocators are: a
    # server may get a door later. The package's own service listens nowhere; the kit starts its own process.
    Need(name=HAPROXY, packages=("haproxy",), present=lambda facts: check_haproxy(facts) is None),
    Need(
        name="Python's venv module",
        packages=("python{python}-venv", "python3-venv"),
        present=lambda facts: facts.can_make_venv,
    ),
)


def find_missing(facts: Facts) -> list[Need]:
    return [need for need in NEEDS if not need.present(facts)]


def install_missing(facts: Facts, read_again: Callable[[], Facts], log: Path) -> None:
    """Install what is missing, or end with the one line that does it."""
    missing = find_missing(facts)
    if not missing:
        return
    _refuse_foreign_java_home(facts, missing)
    if "apt-get" not in facts.tools:
        raise SetupError(explain_without_apt(missing) + explain_haproxy(facts))
    prefix = find_privilege()
    if prefix is None:
        rest = [need for need in missing if need.name != HAPROXY]
        packages = choose_packages(rest, facts, read_candidates(package_names(rest, facts)))
        raise SetupError(explain_without_root(rest, packages) + explain_haproxy(facts))
    print(f"  missing: {', '.join(need.name for need in missing)}", flush=True)
    with step("package lists"):
        run_logged([*prefix, "apt-get", "-q", "update"], log)
    candidates = read_candidates(package_names(missing, facts))
    if any(need.name == HAPROXY for need in missing) and is_too_old(candidates.get("haproxy", "")):
        raise SetupError(explain_haproxy(facts))
    packages = choose_packages(missing, facts, candidates)
    with step(f"{len(packages)} system packages"):
        run_logged([*prefix, *_apt_install(packages)], log)
    _insist(find_missing(read_again()), packages, log)


def find_privilege() -> list[str] | None:
    """The words before a command that make it root's: none for root, sudo when it asks for no password."""
    if os.geteuid() == 0:
        return []
    sudo = shutil.which("sudo")
    if (
        sudo
        and subprocess.call([sudo, "-n", "true"], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0
    ):
        return [sudo, "-n"]
    return None


def package_names(missing: Sequence[Need], facts: Facts) -> list[str]:
    return [package for need in missing for package in _spelled(need, facts)]


def choose_packages(missing: Sequence[Need], facts: Facts, candidates: Collection[str]) -> list[str]:
    """One package per need; without package lists the preferred name, which apt resolves itself."""
    chosen = []
    for need in missing:
        names = _spelled(need, facts)
        chosen.append(next((name for name in names if name in candidates), names[0]))
    return list(dict.fromkeys(chosen))


def is_too_old(candidate: str) -> bool:
    """Of HAProxy, as `2.4.24-0ubuntu0.22.04.1`; where no version is known the installation says."""
    found = re.match(r"(?:\d+:)?(\d+)\.(\d+)", candidate)
    return found is not None and (int(found[1]), int(found[2])) < OLDEST_HAPROXY


def read_candidates(names: Sequence[str]) -> dict[str, str]:
    """Which of the names the distribution offers, and in which version."""
    command = ["apt-cache", "policy", *names]
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        run = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    except OSError:
        return {}
    return parse_candidates(run.stdout)


def parse_candidates(policy: str) -> dict[str, str]:
    found = re.findall(r"^(\S+):\n\s+Installed: .*\n\s+Candidate: (\S+)", policy, re.MULTILINE)
    return {name: candidate for name, candidate in found if candidate != "(none)"}


def explain_haproxy(facts: Facts) -> str:
    """The one line that needs no root; empty where it is there."""
    problem = check_haproxy(facts)
    return problem.render() if problem else ""


def explain_without_root(missing: Sequence[Need], packages: Sequence[str]) -> str:
    if not missing:
        return ""
    names = ", ".join(need.name for need in missing)
    line = f"apt-get update && apt-get install -y --no-install-recommends {' '.join(packages)}"
    become = "sudo sh -c" if shutil.which("sudo") else "su -c"
    return (
        f"system packages are missing ({names}) and only root may install them; run this one line, "
        f"then `make setup` again:\n\n  {become} '{line}'\n"
    )


def explain_without_apt(missing: Sequence[Need]) -> str:
    rows = "\n".join(f"  {need.name} (Debian's {need.packages[0]})" for need in missing)
    rows = rows.replace("{python}", "3")
    return (
        f"only apt is known here, and there is no apt-get; install by hand, then `make setup` again:\n{rows}"
    )


def _apt_install(packages: Sequence[str]) -> list[str]:
    return ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "install", *APT_OPTIONS, *packages]


def _spelled(need: Need, facts: Facts) -> list[str]:
    version = f"{facts.python[0]}.{facts.python[1]}"
    return [package.replace("{python}", version) for package in need.packages]


def _refuse_foreign_java_home(facts: Facts, missing: Sequence[Need]) -> None:
    problem = check_java(facts)
    if facts.java_home and problem and any(need.name == NEEDS[0].name for need in missing):
        raise SetupError(problem.render())


def _insist(still: Sequence[Need], packages: Sequence[str], log: Path) -> None:
    if still:
        names = ", ".join(need.name for need in still)
        raise SetupError(
            f"{names}: still not found after installing {' '.join(packages)}\n  log: {log}\n"
            "  do: check that PATH holds /usr/bin; `update-alternatives --config java` chooses the Java"
        )
