"""A small file system, a clock and a control group of the server's own: faults that harm nobody else."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

VOLUME_BYTES, SPARE_BYTES = 2 << 30, 64 << 10
"""More than unpacked archives and logs take; tmpfs takes memory for what is in it alone."""
GROUP_BYTES = 32 << 20
FORGET = """\
#include <stdlib.h>
__attribute__((constructor)) static void forget(void) { unsetenv("LD_PRELOAD"); }
"""
SCRIPT = """\
#!/bin/sh
if [ -e '{clock}' ]; then
	export FAKETIME_TIMESTAMP_FILE='{clock}' FAKETIME_CACHE_DURATION=1 FAKETIME_DONT_FAKE_MONOTONIC=1
	export FAKETIME_FORCE_MONOTONIC_FIX=0  # or each timed wait of the JVM ends at once, and is begun anew
	export LD_PRELOAD='{library} {forget}'
fi
exec '{java}' "$@"
"""


@dataclass(frozen=True, kw_only=True)
class Volume:
    """A file system that can be filled; needs root and a mount of tmpfs."""

    path: Path

    @classmethod
    @contextlib.contextmanager
    def mounted(cls, path: Path) -> Iterator[Volume | None]:
        """None where it cannot be mounted; the logs in it are copied beside it before it goes."""
        path.mkdir(parents=True)
        if not _call("mount", "-t", "tmpfs", "-o", f"size={VOLUME_BYTES},mode=0755", "tmpfs", str(path)):
            yield None
            return
        try:
            yield cls(path=path)
        finally:
            for logs in path.glob("**/logs"):
                shutil.copytree(logs, path.with_name("run-logs") / logs.relative_to(path), dirs_exist_ok=True)
            # Lazily, where somebody still looks at a file in it.
            _call("umount", str(path)) or _call("umount", "--lazy", str(path))

    @contextlib.contextmanager
    def filled(self) -> Iterator[None]:
        """No byte is left: the size becomes what is used, and a file takes the rest."""
        stat = os.statvfs(self.path)
        used = (stat.f_blocks - stat.f_bfree) * stat.f_frsize
        filler = self.path / "filler"
        try:
            assert _call("mount", "-o", f"remount,size={used + SPARE_BYTES}", str(self.path))
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
                while True:
                    file.write(b"\0" * 4096)
            yield
        finally:
            filler.unlink(missing_ok=True)
            _call("mount", "-o", f"remount,size={VOLUME_BYTES}", str(self.path))


@contextlib.contextmanager
def settable_clock(folder: Path) -> Iterator[Path | None]:
    """The file that sets the clock of JVMs which are started while it is there, by Debian's libfaketime.

    A script `java` stands before the real one in PATH. What TorchServe starts must not inherit the library
    (with jemalloc beside it the launchers fail): a second one takes LD_PRELOAD away. None without libfaketime
    or a C compiler.
    """
    folder.mkdir(parents=True)
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    library = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)
    forget = folder / "forget.so"
    if library is None or not _call("cc", "-shared", "-fPIC", "-x", "c", "-o", str(forget), "-", text=FORGET):
        yield None
        return
    script, clock = folder / "java", folder / "now"
    script.write_text(SCRIPT.format(clock=clock, library=library, forget=forget, java=java))
    script.chmod(0o755)
    before = {name: os.environ.get(name) for name in ("PATH", "JAVA_HOME")}
    os.environ["PATH"] = f"{folder}{os.pathsep}{before['PATH'] or ''}"
    os.environ.pop("JAVA_HOME", None)
    try:
        yield clock
    finally:
        os.environ.update({name: value for name, value in before.items() if value is not None})


@contextlib.contextmanager
def small_group() -> Iterator[Path | None]:
    """A memory control group of 32 MiB; None where none can be made. Whoever is left in it goes back.

    Moving a process moves none of the memory it has (cgroups(7)): only what it takes from then on counts.
    """
    group = next((parent / f"cpu-kit-test-{os.getpid()}" for parent in _find_own_groups()), None)
    try:
        yield group if group and _limit(group) else None
    finally:
        if group and group.is_dir():
            for pid in (group / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):
                    (group.parent / "cgroup.procs").write_text(pid)
            with contextlib.suppress(OSError):
                group.rmdir()


def _find_own_groups() -> Iterator[Path]:
    """Of this process, in the hierarchy that has the memory controller."""
    root = Path("/sys/fs/cgroup")
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            yield root / "memory" / path.strip("/")
        elif not controllers and (root / "cgroup.controllers").exists():
            yield root / path.strip("/")


def _limit(group: Path) -> bool:
    try:
        group.mkdir()
        files = [group / name for name in ("memory.limit_in_bytes", "memory.max")]
        next(file for file in files if file.exists()).write_text(str(GROUP_BYTES))
    except (OSError, StopIteration):
        return False
    return True


def count_kills(group: Path) -> int:
    """Processes of the group that the kernel ended for memory (version 1, 2)."""
    files = [group / name for name in ("memory.oom_control", "memory.events")]
    text = next(file for file in files if file.exists()).read_text()
    return int(dict(line.split() for line in text.splitlines()).get("oom_kill", 0))


def _call(*command: str, text: str | None = None) -> bool:
    try:
        return not subprocess.run(command, input=text, text=True, capture_output=True, timeout=60).returncode
    except OSError:
        return False
