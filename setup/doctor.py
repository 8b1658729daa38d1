"""The doctor: what the machine must have, what of it is missing, and the apt line that brings it."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LOG = ROOT / "run/setup.log"
APT = "apt-get install -y --no-install-recommends -o DPkg::Lock::Timeout=120"
JDK = ("openjdk-17-jdk-headless", "openjdk-21-jdk-headless", "default-jdk-headless")
TCMALLOC = ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4")
LIBRARY_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/lib", "/usr/lib")
# Where distributions put servers such as haproxy; users often lack them on PATH.
PATHS = os.pathsep.join((os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"))


class SetupError(Exception):
    """The set-up cannot go on; the text says what, got, do."""


def look_for_program(name: str) -> tuple[bool, str]:
    path = shutil.which(name, path=PATHS)
    return bool(path), path or f"no {name}"


def look_for_version(program: str, option: str, pattern: str, oldest: tuple[int, ...]) -> tuple[bool, str]:
    there, path = look_for_program(program)
    try:
        done = there and subprocess.run(
            [path, option], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return False, f"{path}, which does not run: {error}"
    found = done and re.search(pattern, done.stderr + done.stdout, re.MULTILINE)
    fits = bool(found and tuple(map(int, found[1].split("."))) >= oldest)
    return fits, f"{found[1]} ({path})" if found else path


def look_for_java() -> tuple[bool, str]:
    """TorchServe takes JAVA_HOME/bin/java if JAVA_HOME is set, else `java` from PATH. "1.8.0" is 8."""
    home = os.environ.get("JAVA_HOME")
    return look_for_version(f"{home}/bin/java" if home else "java", "-version", r'version "(\d+)', (17,))


def look_for_library(*files: str) -> tuple[bool, str]:
    paths = (Path(folder) / file for file in files for folder in LIBRARY_FOLDERS)
    found = next((str(path) for path in paths if path.is_file()), "")
    return bool(found), found or f"no {files[0]} in {', '.join(LIBRARY_FOLDERS)}"


class Need(NamedTuple):
    """Something the machine must have."""

    what: str
    packages: tuple[str, ...]
    """Debian's and Ubuntu's names of it: the first one that is offered is installed."""
    look: Callable[[], tuple[bool, str]]
    """Whether the thing itself is there, and what was found."""


# 2.4 (Ubuntu 22.04) takes no http-request rules in `defaults`. PyPI has one too: requirements/haproxy.in.
HAPROXY = Need(
    "HAProxy 2.5 or newer",
    ("haproxy",),
    lambda: look_for_version("haproxy", "-v", r"^HA-?Proxy version (\d+\.\d+)", (2, 5)),
)
NEEDS = (
    Need("Java 17 or newer", JDK, look_for_java),
    Need("javac", JDK, partial(look_for_program, "javac")),
    Need("jemalloc", ("libjemalloc2",), partial(look_for_library, "libjemalloc.so.2")),
    Need("tcmalloc", ("libtcmalloc-minimal4",), partial(look_for_library, *TCMALLOC)),
    Need("numactl", ("numactl",), partial(look_for_program, "numactl")),
    Need("lscpu", ("util-linux",), partial(look_for_program, "lscpu")),
    Need("ApacheBench", ("apache2-utils",), partial(look_for_program, "ab")),
    Need("curl", ("curl",), partial(look_for_program, "curl")),
    Need(
        "Python's venv",
        ("python{python}-venv", "python3-venv"),
        lambda: (bool(find_spec("venv") and find_spec("ensurepip")), "a Python without it"),
    ),
    HAPROXY,
)


def check_machine(checkout: Path = ROOT, cpuinfo: Path = Path("/proc/cpuinfo")) -> None:
    """Raise where nothing is worth installing."""
    machine = f"{platform.system()} {platform.machine()}"
    if machine != "Linux x86_64":
        raise SetupError(f"the machine must be Linux on x86-64, which IPEX is for: got {machine}")
    if "avx2" not in cpuinfo.read_text(errors="replace").split():
        raise SetupError(
            f"the processor must have AVX2: got none in {cpuinfo}; do: pass the host's model through"
        )
    if re.search(r"[\s:]", str(checkout)):
        raise SetupError(
            f"the checkout's path must be without blanks and colons, for LD_PRELOAD: got {checkout}"
        )


def find_missing(needs: Sequence[Need] = NEEDS) -> list[Need]:
    return [need for need in needs if not need.look()[0]]


def explain(missing: Sequence[Need], do: str) -> str:
    return "".join(f"{need.what} is missing: got {need.look()[1]}\n" for need in missing) + f"  do: {do}"


def complete_machine() -> None:
    """Install what is missing as root, or raise with the line that does it; HAProxy can come from PyPI."""
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    may = look_for_program("apt-get")[0] and succeeds([*as_root, "true"])
    missing = [need for need in find_missing() if may or need is not HAPROXY]
    if not missing:
        return
    if os.environ.get("JAVA_HOME") and not look_for_java()[0]:
        raise SetupError(explain(missing[:1], "unset JAVA_HOME, or set it to a Java 17 or newer"))
    if may:
        run("package lists", [*as_root, "apt-get", "-q", "update"])
    packages = list(dict.fromkeys(choose_package(need.packages) for need in missing))
    if not may:
        line = f"apt-get update && {APT} {' '.join(packages)}"
        raise SetupError(explain(missing, f"as root: {line}\n  then `make setup` again"))
    run(", ".join(packages), [*as_root, "env", "DEBIAN_FRONTEND=noninteractive", *APT.split(), *packages])
    if still := [need for need in find_missing() if need is not HAPROXY]:
        raise SetupError(explain(still, "is /usr/bin on PATH? Which Java: update-alternatives --config java"))


def choose_package(names: Sequence[str]) -> str:
    """The first that the distribution offers; without its lists the first, of which apt may know more."""
    own = [name.replace("{python}", platform.python_version().rpartition(".")[0]) for name in names]
    return next((name for name in own if succeeds(["apt-cache", "show", name])), own[0])


def succeeds(command: Sequence[str]) -> bool:
    return (
        bool(shutil.which(command[0]))
        and not subprocess.run(command, capture_output=True, check=False).returncode
    )


def run(name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    """One line with its seconds; what it says goes to the log, without names and passwords in addresses."""
    print(f"  {name} ".ljust(70, "."), end="", flush=True)
    began, tail = time.monotonic(), deque[str](maxlen=12)
    LOG.parent.mkdir(exist_ok=True)
    # Programs inherit the lock of `make setup`: what outlives a killed one is waited for.
    process = subprocess.Popen(
        command, stdin=-3, stdout=-1, stderr=-2, env=environment, close_fds=False, text=True, errors="replace"
    )
    with LOG.open("a", encoding="utf-8") as sink, process:
        for line in process.stdout or ():
            tail.append(hide_credentials(line))
            sink.write(tail[-1])
    print(f" {time.monotonic() - began:4.0f} s {'failed' if process.returncode else 'ok'}", flush=True)
    if process.returncode:
        shown = "".join(f"  | {line.rstrip()[:200]}\n" for line in tail)
        raise SetupError(
            f"`{' '.join(command[:4])} …` failed with exit code {process.returncode}\n{shown}  log: {LOG}\n"
            "  do: cure that (the network? the index, `pip config list`?), then `make setup` again"
        )


def hide_credentials(text: str) -> str:
    return re.sub(r"(://)[^/?#\s]*@", r"\1***@", text)
