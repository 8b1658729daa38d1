"""The doctor: what the machine must have, what of it is missing, and the apt line that brings it."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
APT = "apt-get satisfy -y --no-install-recommends -o DPkg::Lock::Timeout=120"
# Distributions put servers such as haproxy where users' PATH often does not lead; behind those, libraries.
OTHERS = "/usr/local/sbin:/usr/sbin:/sbin:/usr/lib/x86_64-linux-gnu:/usr/lib64:/usr/local/lib:/usr/lib"
FOLDERS = f"{os.environ.get('PATH', '')}:{OTHERS}"
LOG, STDLIB = ROOT / "run/setup.log", Path(os.__file__).parent
# HAProxy 2.4 (Ubuntu 22.04) takes no http-request rules in `defaults`; PyPI has one, too.
JAVA, HAPROXY = "Java 17 or newer", "HAProxy 2.5 or newer"
VERSIONS = {JAVA: r'version "(\d+)', HAPROXY: r"HA-?Proxy version (\d+\.\d+)"}  # Java 8 says "1.8.0"
JDK = "openjdk-17-jdk-headless | openjdk-21-jdk-headless | default-jdk-headless (>= 2:1.17)"
# Packages of Debian and Ubuntu, of which the first that is offered is installed; files, of which one will do.
NEEDS = {
    JAVA: (JDK, "java"), "javac": (JDK, "javac"), "jemalloc": ("libjemalloc2", "libjemalloc.so.2"),
    "tcmalloc": ("libtcmalloc-minimal4", "libtcmalloc_minimal.so.4 libtcmalloc.so.4"),
    "numactl": ("numactl", "numactl"), "lscpu": ("util-linux", "lscpu"), "curl": ("curl", "curl"),
    "ApacheBench": ("apache2-utils", "ab"), HAPROXY: ("haproxy", "haproxy"),
    "Python's venv": (f"{STDLIB.name}-venv", f"{STDLIB}/ensurepip/__init__.py"),
}  # fmt: skip


def find_lack(what: str) -> str:
    """What was got instead of a need; empty where it is met."""
    home = os.environ.get("JAVA_HOME")  # TorchServe takes it before PATH
    files = [f"{home}/bin/java"] if home and what == JAVA else NEEDS[what][1].split()
    found = next(filter(None, (shutil.which(file, os.F_OK, FOLDERS) for file in files)), None)
    if not found or what not in VERSIONS:
        return "" if found else f"no {files[0]}"
    said = subprocess.getstatusoutput(f"timeout 10 {shlex.quote(found)} -version")[1]
    got = [*re.findall(VERSIONS[what], said), "0"][0]
    fits = [int(part) for part in got.split(".")] >= [int(part) for part in what.split()[1].split(".")]
    return "" if fits else f"{got if got != '0' else said[-99:] or 'no version'} ({found})"


def find_missing(*without: str) -> dict[str, str]:
    return {what: lack for what in NEEDS if what not in without and (lack := find_lack(what))}


def explain(missing: dict[str, str], do: str) -> str:
    return "".join(f"{what} is missing: got {lack}\n" for what, lack in missing.items()) + f"  do: {do}"


def check_machine(checkout: Path = ROOT, cpuinfo: Path = Path("/proc/cpuinfo")) -> None:
    """Exit where nothing is worth installing."""
    if (machine := f"{os.uname().sysname} {os.uname().machine}") != "Linux x86_64":
        sys.exit(f"the machine must be Linux on x86-64, which IPEX is for: got {machine}")
    if "avx2" not in cpuinfo.read_text(errors="replace").split():
        sys.exit(f"the processor must have AVX2: got none in {cpuinfo}; do: pass the host's model on")
    if re.search(r"""[\s:'"\\]""", str(checkout)):
        sys.exit(f"the path must be without blanks, colons, quotes: got {checkout}; do: move the checkout")


def complete_machine() -> None:
    """Install what is missing as root, or exit with the line that does it; HAProxy can come from PyPI."""
    sudo = "" if os.geteuid() == 0 else "sudo -n "
    may = subprocess.getstatusoutput(f"{sudo}apt-get --version")[0] == 0
    if not (missing := find_missing() if may else find_missing(HAPROXY)):
        return
    if os.environ.get("JAVA_HOME") and JAVA in missing:
        sys.exit(explain({JAVA: missing[JAVA]}, "unset JAVA_HOME, or set it to a Java 17 or newer"))
    if may:
        run("package lists", f"{sudo}apt-get -q update")
    packages = ", ".join(dict.fromkeys(NEEDS[what][0] for what in missing))
    if not may:
        sys.exit(
            explain(missing, f"as root: apt-get update && {APT} '{packages}'\n  then `make setup` again")
        )
    run(", ".join(missing), f"{sudo}env DEBIAN_FRONTEND=noninteractive {APT} '{packages}'")
    if missing := find_missing(HAPROXY):
        sys.exit(explain(missing, "is /usr/bin on PATH? Which Java: update-alternatives --config java"))


def run(name: str, command: str, environment: dict[str, str] | None = None) -> None:
    """One line with its seconds; what it says goes to the log, without names and passwords in addresses."""
    print(f"  {name} ".ljust(70, "."), end="", flush=True)
    words, began = shlex.split(command), time.monotonic()
    # Programs inherit the lock of `make setup`: what outlives a killed one is waited for.
    done = subprocess.run(words, stdin=-3, stdout=-1, stderr=-2, env=environment, close_fds=False)
    print(f" {time.monotonic() - began:4.0f} s {'failed' if done.returncode else 'ok'}", flush=True)
    said = conceal(done.stdout.decode(errors="replace"))
    LOG.parent.mkdir(exist_ok=True)
    with LOG.open("a") as log:
        log.write(said)
    if done.returncode:
        shown = "".join(f"  | {line[:200]}\n" for line in said.splitlines()[-12:])
        text = f"`{command[:70]} …` failed with exit code {done.returncode}\n{shown}  log: {LOG}"
        sys.exit(f"{text}\n  do: fix that (the network? `pip config list`?), then the command again")


def conceal(text: str) -> str:
    return re.sub(r"(://)[^/?#\s]*@", r"\1***@", text)
