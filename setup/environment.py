"""The environment: uv installs the locked files of requirements/ into it, and torch by its version."""

from __future__ import annotations

import argparse
import ast
import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from setup import doctor
from setup.doctor import ROOT, SetupError, hide_credentials

JAVA = ROOT / "server/java"
REQUIREMENTS = ROOT / "requirements"
STAMP = "setup.json"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"  # pytorch.org, "Get started"
DEFAULT = "default"
UV_SETTINGS = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
}
"""pip's settings, which uv does not read, by its own names."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m setup", description=__doc__)
    parser.add_argument("--doctor", action="store_true", help="only say what the machine lacks")
    parser.add_argument("--unused", action="store_true", help="only refuse while a server runs on it")
    parser.add_argument("--with", dest="purposes", action="append", default=[], help="loadtest, dev, audit")
    parser.add_argument("--set", default="ipex", help="of packages, a folder of requirements/")
    parser.add_argument("--torch-index", default="", help="an index's address, or `default` for pip's own")
    parser.add_argument("--venv", type=Path, help="default: .venv, or .venv-SET")
    options = parser.parse_args(arguments)
    own_name = ".venv" if options.set == "ipex" else f".venv-{options.set}"
    options.venv = (options.venv or ROOT / own_name).absolute()
    # Two set-ups at once would write into one environment: the second waits for the first.
    lock = os.open(ROOT, os.O_RDONLY)
    os.set_inheritable(lock, True)
    try:
        if options.unused:
            check_unused(options.venv, "it was to be removed")
            return 0
        check_torch_index(options.torch_index)
        doctor.check_machine()
        if options.doctor:
            missing = doctor.find_missing()
            print(doctor.explain(missing, "make setup") if missing else "nothing is missing")
            return bool(missing)
        fcntl.flock(lock, fcntl.LOCK_EX)
        doctor.complete_machine()
        complete_environment(options.venv, options.set, options.purposes, options.torch_index)
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    finally:
        os.close(lock)
    return 0


def complete_environment(venv: Path, name: str, purposes: Sequence[str], torch_index: str) -> None:
    """Its stamp is written last: an environment without it was not finished."""
    stamp: dict = {"purposes": {}}
    with contextlib.suppress(OSError, ValueError):
        stamp |= json.loads((venv / STAMP).read_text())
    haproxy = ["haproxy"] if doctor.find_missing([doctor.HAPROXY]) else []
    files = {purpose: find_file(name, purpose) for purpose in (*purposes, *haproxy, *stamp["purposes"])}
    serve, pins = find_file(name, "serve"), (REQUIREMENTS / name / "serve.in").read_text()
    wanted: dict = {
        "location": str(venv),
        "set": name,
        "python": "{}.{}".format(*sys.version_info),
        "serve": digest(serve),
        "torch": re.findall(r"^torch(?:vision)?==\S+", pins, re.MULTILINE),
        "torch_index": hide_credentials(torch_index) or stamp.get("torch_index"),
    }
    changed = [f"{key} was {stamp.get(key)}" for key in wanted if stamp.get(key) != wanted[key]]
    if changed or not os.access(venv / "bin/python", os.X_OK):
        check_unused(venv, ", ".join(changed))
        index = create(venv, serve, wanted["torch"], torch_index)
        stamp = {**wanted, "torch_index": hide_credentials(index), "purposes": {}}
    digests = {purpose: digest(file) for purpose, file in files.items()}
    for purpose, file in files.items():
        if digests[purpose] != stamp["purposes"].get(purpose):
            install(f"packages for {purpose}", venv, "--require-hashes", "--no-deps", "-r", str(file))
    (draft := venv / f"{STAMP}.part").write_text(json.dumps({**stamp, "purposes": digests}, indent=2))
    draft.replace(venv / STAMP)
    compile_java(venv)


def compile_java(venv: Path) -> None:
    """Where it is missing or older than its source; a start looks for it there (server/launch.py)."""
    sources, target = sorted(JAVA.rglob("*.java")), venv / "lib/cpukit"
    if target.exists() and target.stat().st_mtime > max(file.stat().st_mtime for file in sources):
        return
    (torchserve,) = venv.glob("lib/python3*/site-packages/ts/frontend/model-server.jar")
    draft = target.with_suffix(".part")
    shutil.rmtree(draft, ignore_errors=True)
    command = ["javac", "--release", "17", "-d", str(draft), "-cp", str(torchserve)]
    doctor.run("Java class", [*command, *map(str, sources)])
    shutil.rmtree(target, ignore_errors=True)
    draft.replace(target)


def find_file(package_set: str, purpose: str) -> Path:
    """The locked file: the set's, or the one of all sets."""
    own = REQUIREMENTS / package_set / f"{purpose}.txt"
    return own if own.exists() else REQUIREMENTS / own.name


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def check_unused(venv: Path, reason: str) -> None:
    """Raise when a server runs on it: a worker that comes back would load other packages."""
    if not venv.exists():  # nor are there other files of ours yet where an image is built
        return
    from server.processes import find_users_of, name_run

    if users := ", ".join(sorted({name_run(process) for process in find_users_of(venv)})):
        text = f"{venv.name} must not change under a running server ({reason}): got {users}"
        raise SetupError(f"{text}\n  do: stop it (make stop RUN_DIR=…), then run this again")


def create(venv: Path, serve: Path, torch: Sequence[str], asked: str) -> str:
    """Make it from nothing; where torch came from. What a link leads to is another checkout's, and stays."""
    if venv.is_symlink():
        venv.unlink()
    base = getattr(sys, "_base_executable", sys.executable)
    doctor.run("virtual environment", [base, "-m", "venv", "--clear", str(venv)], own_variables())
    pip = [f"{venv}/bin/python", "-m", "pip", "install", "--no-compile", "--disable-pip-version-check"]
    doctor.run("uv", [*pip, "--require-hashes", "-r", str(REQUIREMENTS / "uv.txt")], own_variables())
    install("packages", venv, "--require-hashes", "--no-deps", "-r", str(serve))
    index, reason = choose_torch_index(asked, torch[0].replace("==", "-"))
    print(f"  torch from {hide_credentials(index)} index: {reason}", flush=True)
    install(" and ".join(torch), venv, *torch, index=index)
    return index


def own_variables() -> dict[str, str]:
    """The caller's, without what would send packages or imports somewhere else."""
    foreign = (
        "PYTHONPATH",
        "PYTHONHOME",
        "PIP_USER",
        "PIP_TARGET",
        "PIP_PREFIX",
        "PIP_ROOT",
        "PIP_CONSTRAINT",
    )
    return {name: value for name, value in os.environ.items() if name not in foreign}


def install(name: str, venv: Path, *arguments: str, index: str = DEFAULT) -> None:
    """By uv, from where pip would take it, or from one index alone; addresses are in its environment only."""
    python = f"{venv}/bin/python"
    settings = {**read_pip_settings(python), **own_variables(), "UV_PYTHON_DOWNLOADS": "never"}
    # As pip does. Without it an extra index with an older release would hide the one that is wanted.
    settings["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    if index != DEFAULT:
        settings |= {"UV_DEFAULT_INDEX": index, "UV_INDEX": "", "UV_FIND_LINKS": ""}
        arguments = ("--no-deps", *arguments)
    doctor.run(name, [f"{venv}/bin/uv", "pip", "install", "--python", python, *arguments], settings)


def read_pip_settings(python: str) -> dict[str, str]:
    """As uv's variables; those of the environment are listed first, and win."""
    command = [python, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, stdout=-1, text=True, check=True, env=own_variables()).stdout
    found: dict[str, str] = {}
    for key, value in re.findall(r"^(?::env:|global|install)\.([\w-]+)=(.*)$", listed, re.MULTILINE):
        if key in UV_SETTINGS:
            words = ast.literal_eval(value).split()
            found.setdefault(UV_SETTINGS[key], ("," if key == "find-links" else " ").join(words))
    return found


def check_torch_index(asked: str) -> None:
    """Refuse a mistyped TORCH_INDEX, and one that anybody on the way can answer."""
    if not re.match(rf"$|{DEFAULT}$|https://|file://|http://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?/", asked):
        forms = "`default`, https://…, file://…, or http://… on this machine (else it can be anybody's)"
        raise SetupError(f"TORCH_INDEX must be {forms}: got {hide_credentials(asked)}")


def choose_torch_index(asked: str, wheel: str) -> tuple[str, str]:
    """That of the CPU-only wheels (0.2 GB against 6.8) where it answers and has this one; and why."""
    if asked:
        return asked, "TORCH_INDEX"
    try:
        with urllib.request.urlopen(f"{CPU_INDEX}/torch/", timeout=4) as answer:
            page = answer.read().decode().replace("%2B", "+")
    except (OSError, ValueError) as error:
        return DEFAULT, f"the CPU-only wheels' cannot be reached ({getattr(error, 'reason', error)})"
    if "{}+cpu-cp{}{}-".format(wheel, *sys.version_info) in page:
        return CPU_INDEX, "the CPU-only wheels'"
    return DEFAULT, f"the CPU-only wheels' has no {wheel} for this Python"
