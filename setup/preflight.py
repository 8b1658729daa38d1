"""Every conflict that would kill a worker, found from facts alone before TorchServe starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from setup.errors import Problem
from setup.facts import Facts

OLDEST_PYTHON, NEWEST_PYTHON = (3, 10), (3, 13)  # of all that is pinned
OLDEST_JAVA = 17  # TorchServe's maintainers: "Java 17 is required … older java versions are not supported"
# The pairs this kit was tried with; another torch lacks its operators.
TORCH_OF_TORCHVISION = {"0.23": "2.8", "0.29": "2.14"}
TRANSFORMERS_MAJOR = "4"  # 5.x takes no mask by which texts share a row
ENGINE_OF_STACK = {"ipex": "intel_extension_for_pytorch", "current": "openvino"}

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
    needed = ("torch", "torchvision", ENGINE_OF_STACK[facts.stack], "transformers", "torchserve")
    missing = [name for name in needed if name not in facts.versions]
    if not missing:
        return None
    return Problem(
        what="environment",
        needed=f"one with {', '.join(needed)}",
        got=f"no {', '.join(missing)} in it",
        do="run `make setup`",
    )


def check_torch_and_ipex(facts: Facts) -> Problem | None:
    torch, ipex = facts.versions.get("torch"), facts.versions.get("intel_extension_for_pytorch")
    if not torch or not ipex or _minor(torch) == _minor(ipex):
        return None
    return Problem(
        what="torch and IPEX",
        needed="of the same minor version (else IPEX ends the worker with exit code 127)",
        got=f"torch {torch}, intel_extension_for_pytorch {ipex}",
        do="run `make distclean setup` for the pinned pair",
    )


def check_torch_and_torchvision(facts: Facts) -> Problem | None:
    torch, vision = facts.versions.get("torch"), facts.versions.get("torchvision")
    if not torch or not vision or TORCH_OF_TORCHVISION.get(_minor(vision)) == _minor(torch):
        return None
    return Problem(
        what="torch and torchvision",
        needed="releases made for each other: " + _pairs(TORCH_OF_TORCHVISION),
        got=f"torch {torch}, torchvision {vision}",
        do="run `make distclean setup` for the pinned pair",
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


def check_transformers(facts: Facts) -> Problem | None:
    version = facts.versions.get("transformers")
    if not version or version.split(".")[0] == TRANSFORMERS_MAJOR:
        return None
    return Problem(
        what="transformers",
        needed=f"{TRANSFORMERS_MAJOR}.x (5.x takes no mask by which texts share a row)",
        got=version,
        do="run `make distclean setup` for the pinned version",
    )


# What makes the rest pointless first: nothing is worth installing on a machine that fails these.
MACHINE_CHECKS: tuple[Check, ...] = (check_system, check_architecture, check_python, check_avx2)
CHECKS: tuple[Check, ...] = (
    *MACHINE_CHECKS,
    check_java,
    check_jemalloc,
    check_tcmalloc,
    check_numactl,
    check_lscpu,
    check_installed,
    check_openmp,
    check_torch_and_ipex,
    check_torch_and_torchvision,
    check_torch_builds,
    check_transformers,
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


def _pairs(pairs: dict[str, str]) -> str:
    return ", ".join(f"torchvision {vision} with torch {torch}" for vision, torch in pairs.items())
