"""The environment: uv installs the locked files of requirements/ into it, and torch by its version."""

from __future__ import annotations

import argparse
import ast
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
from urllib.parse import urlsplit

from setup import doctor
from setup.doctor import SetupError, hide_credentials, step

ROOT = Path(__file__).resolve().parents[1]
JAVA = ROOT / "server/java"
REQUIREMENTS = ROOT / "requirements"
SETS = ("ipex", "current")
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
    parser.add_argument("--set", default="", help=f"of packages: {' or '.join(SETS)}")
    parser.add_argument("--torch-index", default="", help="an index's address, or `default` for pip's own")
    parser.add_argument("--venv", type=Path, help="default: .venv, or .venv-current")
    parser.add_argument("--log", type=Path, default=ROOT / "run/setup.log", help="what apt, pip and uv say")
    options = parser.parse_args(arguments)
    options.set = options.set or SETS[0]
    options.venv = (
        options.venv or ROOT / (".venv" if options.set == SETS[0] else ".venv-current")
    ).absolute()
    lock = os.open(ROOT, os.O_RDONLY)
    try:
        if options.unused:
            check_unused(options.venv, "it was to be removed")
            return 0
        check_torch_index(options.torch_index)
        doctor.check_machine(ROOT)
        if options.doctor:
            missing = doctor.find_missing()
            print(doctor.explain(missing, "make setup") if missing else "nothing is missing")
            return bool(missing)
        # Two set-ups at once would write into one environment: the second waits for the first, and for what
        # a killed one left running.
        os.set_inheritable(lock, True)
        fcntl.flock(lock, fcntl.LOCK_EX)
        doctor.complete_machine(options.log)
        complete_environment(options)
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    finally:
        os.close(lock)
    return 0


def complete_environment(options: argparse.Namespace) -> None:
    """Its stamp is written last: an environment without it was not finished."""
    venv, folder = options.venv, REQUIREMENTS / options.set
    try:
        stamp = json.loads((venv / STAMP).read_text())
    except (OSError, ValueError):
        stamp = {"purposes": {}}
    haproxy = ["haproxy"] if doctor.find_missing([doctor.HAPROXY]) else []
    purposes = {name: digest(folder, name) for name in (*options.purposes, *haproxy, *stamp["purposes"])}
    wanted = {
        "location": str(venv),
        "stack": options.set,
        "python": "{}.{}".format(*sys.version_info),
        "serve": digest(folder, "serve"),
        "torch": read_torch_pins(folder),
        **({"torch_index": hide_credentials(options.torch_index)} if options.torch_index else {}),
    }
    changed = [f"{name} was {stamp.get(name)}" for name in wanted if stamp.get(name) != wanted[name]]
    if changed or not os.access(venv / "bin/python", os.X_OK):
        check_unused(venv, ", ".join(changed))
        stamp = {**wanted, "torch_index": create(venv, options), "purposes": {}}
    for name in purposes:
        if purposes[name] != stamp["purposes"].get(name):
            with step(f"packages for {name}"):
                install(venv, options.log, *locked(folder, name))
    (draft := venv / f"{STAMP}.part").write_text(json.dumps({**stamp, "purposes": purposes}, indent=2))
    draft.replace(venv / STAMP)
    compile_java(venv, options.log)


def compile_java(venv: Path, log: Path) -> None:
    """Where it is missing or older than its source; a start looks for it there (server/launch.py)."""
    sources, target = sorted(JAVA.rglob("*.java")), venv / "lib/cpukit"
    if target.exists() and target.stat().st_mtime > max(file.stat().st_mtime for file in sources):
        return
    (torchserve,) = venv.glob("lib/python3*/site-packages/ts/frontend/model-server.jar")
    draft = target.with_suffix(".part")
    with step("Java class"):
        shutil.rmtree(draft, ignore_errors=True)
        doctor.run(
            ["javac", "--release", "17", "-d", str(draft), "-cp", str(torchserve), *map(str, sources)], log
        )
        shutil.rmtree(target, ignore_errors=True)
        draft.replace(target)


def find_file(folder: Path, name: str) -> Path:
    """The locked file of a purpose: the set's, or the one of all sets."""
    return file if (file := folder / f"{name}.txt").exists() else REQUIREMENTS / f"{name}.txt"


def locked(folder: Path, name: str) -> list[str]:
    return ["--require-hashes", "--no-deps", "-r", str(find_file(folder, name))]


def digest(folder: Path, name: str) -> str:
    return hashlib.sha256(find_file(folder, name).read_bytes()).hexdigest()


def read_torch_pins(folder: Path) -> list[str]:
    return re.findall(r"^torch(?:vision)?==\S+", (folder / "serve.in").read_text(), re.MULTILINE)


def check_unused(venv: Path, reason: str) -> None:
    """Raise when a server runs on it: a worker that comes back would load other packages."""
    if not venv.exists():  # nor are there other files of ours yet where an image is built
        return
    from server.processes import find_users_of, name_run

    if users := find_users_of(venv):
        names = ", ".join(sorted({name_run(process) for process in users}))
        raise SetupError(
            f"{venv.name} must not change under a running server ({reason}): got {names}\n"
            "  do: stop it (make stop RUN_DIR=…), then run this again"
        )


def create(venv: Path, options: argparse.Namespace) -> str:
    """Make it from nothing; where torch came from. What a link leads to is another checkout's, and stays."""
    folder, log = REQUIREMENTS / options.set, options.log
    if venv.is_symlink():
        venv.unlink()
    base = getattr(sys, "_base_executable", sys.executable)
    with step("virtual environment and uv"):
        doctor.run([base, "-m", "venv", "--clear", str(venv)], log, own_variables())
        pip = [f"{venv}/bin/python", "-m", "pip", "install", "--no-compile", "--disable-pip-version-check"]
        doctor.run([*pip, *locked(folder, "uv")], log, own_variables())
    with step("packages"):
        install(venv, log, *locked(folder, "serve"))
    pins = read_torch_pins(folder)
    index, reason = choose_torch_index(options.torch_index, pins[0].replace("==", "-"))
    print(f"  torch from {hide_credentials(index)} index: {reason}", flush=True)
    with step(" and ".join(pins)):
        install(venv, log, *pins, index=index)
    return hide_credentials(index)


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


def install(venv: Path, log: Path, *arguments: str, index: str = DEFAULT) -> None:
    """By uv, from where pip would take it, or from one index alone; addresses are in its environment only."""
    python = f"{venv}/bin/python"
    settings = {**read_pip_settings(python), **own_variables(), "UV_PYTHON_DOWNLOADS": "never"}
    # As pip does. Without it an extra index with an older release would hide the one that is wanted.
    settings["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    if index != DEFAULT:
        settings |= {"UV_DEFAULT_INDEX": index, "UV_INDEX": "", "UV_FIND_LINKS": ""}
        arguments = ("--no-deps", *arguments)
    doctor.run([f"{venv}/bin/uv", "pip", "install", "--python", python, *arguments], log, settings)


def read_pip_settings(python: str) -> dict[str, str]:
    """As uv's variables; those of the environment are listed first, and win."""
    command = [python, "-m", "pip", "config", "list"]
    listed = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, env=own_variables()
    ).stdout
    found: dict[str, str] = {}
    for key, value in re.findall(r"^(?::env:|global|install)\.([\w-]+)=(.*)$", listed, re.MULTILINE):
        if key in UV_SETTINGS:
            words = ast.literal_eval(value).split()
            found.setdefault(UV_SETTINGS[key], ("," if key == "find-links" else " ").join(words))
    return found


def check_torch_index(asked: str) -> None:
    """Refuse a mistyped TORCH_INDEX, and one that anybody on the way can answer."""
    parts = urlsplit(asked)
    here = parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1", "::1")
    if asked not in ("", DEFAULT) and parts.scheme not in ("https", "file") and not here:
        raise SetupError(
            "TORCH_INDEX must be `default`, or an address: https://…, file://…, or http://… on this machine "
            f"(without TLS it can be anybody's): got {hide_credentials(asked)}"
        )


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
