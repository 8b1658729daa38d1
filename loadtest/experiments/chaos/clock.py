"""A JVM whose clock can be set from outside, by Debian's libfaketime: nobody else's clock is touched.

TorchServe is started with `java` from PATH, with little else of the caller's environment (server/launch.py);
so a script of that name stands before the real one. What TorchServe starts must not inherit the library: with
jemalloc beside it the launchers fail. So a second one takes LD_PRELOAD away once both are loaded.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

LIBRARIES = Path("/usr/lib")
FORGET = """\
#include <stdlib.h>
__attribute__((constructor)) static void forget(void) { unsetenv("LD_PRELOAD"); }
"""
SCRIPT = """\
#!/bin/sh
# Of `make chaos`, the fault `clock`: where the file is there, this JVM's clock is what it says.
if [ -e '{clock}' ]; then
	export FAKETIME_TIMESTAMP_FILE='{clock}' FAKETIME_CACHE_DURATION=1 FAKETIME_DONT_FAKE_MONOTONIC=1
	export LD_PRELOAD='{library} {forget}'
fi
exec '{java}' "$@"
"""


def find_library(folder: Path = LIBRARIES) -> Path | None:
    """For programs with threads; None where it is not installed."""
    return next(iter(sorted(folder.glob("*/faketime/libfaketimeMT.so.1"))), None)


@contextlib.contextmanager
def wrapped_java(folder: Path) -> Iterator[Path | None]:
    """Servers that are started meanwhile; gives the file that sets the clock, which is not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    java, library, forget = find_java(), find_library(), build_forget(folder)
    if java is None or library is None or forget is None:
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


def build_forget(folder: Path) -> Path | None:
    """None without a C compiler."""
    library = folder / "forget.so"
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-o", str(library), "-"]
    try:
        done = subprocess.run(command, input=FORGET, text=True, capture_output=True, check=False, timeout=60)
    except OSError:
        return None
    return library if done.returncode == 0 else None


def find_java() -> str | None:
    """The one that TorchServe would take."""
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin/java" if home else shutil.which("java")


def has_library(pid: int, proc: Path = Path("/proc")) -> bool:
    """Whether a process has it loaded."""
    with contextlib.suppress(OSError):
        return "libfaketime" in (proc / str(pid) / "maps").read_text()
    return False
