"""The doctor: what the machine must have, what of it is missing, and the apt line that brings it."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sysconfig
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LOG = ROOT / "run/setup.log"
APT = "apt-get install -y --no-install-recommends -o DPkg::Lock::Timeout=120"
JDK = ("openjdk-17-jdk-headless", "openjdk-21-jdk-headless", "default-jdk-headless")
LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/lib", "/usr/lib")
# Where distributions put servers such as haproxy; users often lack them on PATH.
FOLDERS = (*os.environ.get("PATH", "").split(os.pathsep), "/usr/local/sbin", "/usr/sbin", "/sbin", *LIBRARIES)


class SetupError(Exception):
    """The set-up cannot go on; the text says what, got, do."""


class Need(NamedTuple):
    """Something the machine must have: itself, not the package that brings it."""

    what: str
    packages: tuple[str, ...]  # Debian's and Ubuntu's names of it: the first one that is offered is installed
    files: tuple[str, ...]  # a program or library: one of these
    version: str = ""
    oldest: tuple[int, ...] = ()


# 2.4 (Ubuntu 22.04) takes no http-request rules in `defaults`. PyPI has one too: requirements/haproxy.in.
HAPROXY = Need("HAProxy 2.5 or newer", ("haproxy",), ("haproxy",), r"HA-?Proxy version (\d+\.\d+)", (2, 5))
VENV = f"{sysconfig.get_path('stdlib')}/ensurepip/__init__.py"
NEEDS = (
    Need("Java 17 or newer", JDK, ("java",), r'version "(\d+)', (17,)),  # "1.8.0" is 8
    Need("javac", JDK, ("javac",)),
    Need("jemalloc", ("libjemalloc2",), ("libjemalloc.so.2",)),
    Need("tcmalloc", ("libtcmalloc-minimal4",), ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4")),
    Need("numactl", ("numactl",), ("numactl",)),
    Need("lscpu", ("util-linux",), ("lscpu",)),
    Need("ApacheBench", ("apache2-utils",), ("ab",)),
    Need("curl", ("curl",), ("curl",)),
    Need("Python's venv", ("python{python}-venv", "python3-venv"), (VENV,)),
    HAPROXY,
)


def find_lack(need: Need) -> str:
    """What was got instead of it; empty where it is there."""
    home = os.environ.get("JAVA_HOME")  # TorchServe takes it before PATH
    files = (f"{home}/bin/java",) if home and "java" in need.files else need.files
    found = next(
        (path for file in files for folder in FOLDERS if (path := Path(folder, file)).is_file()), None
    )
    if not found or not need.version:
        return "" if found else f"no {files[0]}"
    try:
        done = subprocess.run([found, "-version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{found}, which does not run: {error}"
    version = re.search(need.version, done.stderr + done.stdout)
    fits = version and tuple(map(int, version[1].split("."))) >= need.oldest
    return "" if fits else f"{version[1] if version else 'no version'} ({found})"


def find_missing(needs: Sequence[Need] = NEEDS) -> list[Need]:
    return [need for need in needs if find_lack(need)]


def explain(missing: Sequence[Need], do: str) -> str:
    return "".join(f"{need.what} is missing: got {find_lack(need)}\n" for need in missing) + f"  do: {do}"


def check_machine(checkout: Path = ROOT, cpuinfo: Path = Path("/proc/cpuinfo")) -> None:
    """Raise where nothing is worth installing."""
    if (machine := f"{platform.system()} {platform.machine()}") != "Linux x86_64":
        raise SetupError(f"the machine must be Linux on x86-64, which IPEX is for: got {machine}")
    if "avx2" not in cpuinfo.read_text(errors="replace").split():
        raise SetupError(f"the processor must have AVX2: got none in {cpuinfo}; do: pass the host's model on")
    if re.search(r"[\s:]", str(checkout)):
        raise SetupError(
            f"the checkout's path must be without blanks and colons: got {checkout}; do: move it"
        )


def complete_machine() -> None:
    """Install what is missing as root, or raise with the line that does it; HAProxy can come from PyPI."""
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    may = succeeds([*as_root, "apt-get", "--version"])
    if not (missing := [need for need in find_missing() if may or need is not HAPROXY]):
        return
    if os.environ.get("JAVA_HOME") and missing[0] is NEEDS[0]:
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
    there = shutil.which(command[0])
    return bool(there) and not subprocess.run(command, capture_output=True, check=False).returncode


def run(name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    """One line with its seconds; what it says goes to the log, without names and passwords in addresses."""
    print(f"  {name} ".ljust(70, "."), end="", flush=True)
    began = time.monotonic()
    # Programs inherit the lock of `make setup`: what outlives a killed one is waited for.
    done = subprocess.run(
        command, stdin=-3, stdout=-1, stderr=-2, env=environment, close_fds=False, check=False
    )
    print(f" {time.monotonic() - began:4.0f} s {'failed' if done.returncode else 'ok'}", flush=True)
    LOG.parent.mkdir(exist_ok=True)
    said = hide_credentials(done.stdout.decode(errors="replace"))
    LOG.write_text(LOG.read_text() + said if LOG.exists() else said)
    if done.returncode:
        shown = "".join(f"  | {line[:200]}\n" for line in said.splitlines()[-12:])
        text = f"`{' '.join(command[:4])} …` failed with exit code {done.returncode}\n{shown}  log: {LOG}"
        raise SetupError(f"{text}\n  do: fix that (the network? `pip config list`?), then the command again")


def hide_credentials(text: str) -> str:
    return re.sub(r"(://)[^/?#\s]*@", r"\1***@", text)
