"""The environment: uv installs the locked files of requirements/ into it, and torch by its version."""

from __future__ import annotations

import ast
import contextlib
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

JAVA, REQUIREMENTS, STAMP = ROOT / "server/java", ROOT / "requirements", "setup.json"
PROC = Path("/proc")
CPU_INDEX, DEFAULT = "https://download.pytorch.org/whl/cpu", "default"  # pytorch.org, "Get started"
FIRST = re.compile(
    r"^(?:pydantic|pydantic-core|pydantic-settings|python-dotenv|annotated-types|typing-extensions|typing-inspection"
    r"|tomli)==.*(?:\n +--hash.*)+", re.MULTILINE
)  # fmt: skip
"""What settings are read with, of a serve.txt."""
UV_SETTINGS = {  # pip's settings, which uv does not read, by its own names
    "index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX", "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX", "trusted-host": "UV_INSECURE_HOST", "cert": "SSL_CERT_FILE",
}  # fmt: skip
SERVES = {"org.pytorch.serve.ModelServer", "model_service_worker.py"}
FOREIGN = {"PYTHONPATH", "PYTHONHOME", "PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_CONSTRAINT"}
"""They would send packages or imports somewhere else."""


def read_stamp(venv: Path) -> dict:
    with contextlib.suppress(OSError, ValueError):
        return {"purposes": {}, **json.loads((venv / STAMP).read_text())}
    return {"purposes": {}}


def is_complete(venv: Path) -> bool:
    return "serve" in read_stamp(venv) and os.access(venv / "bin/python", os.X_OK)


def identify(venv: Path) -> dict[str, str]:
    return {"location": str(venv), "python": "{}.{}".format(*sys.version_info)}


def begin(venv: Path) -> None:
    """A new one with uv and what settings are read with; a link's target, of another checkout, stays."""
    check_unused(venv, "it has no pydantic-settings")
    if venv.is_symlink():
        venv.unlink()
    base = getattr(sys, "_base_executable", sys.executable)
    doctor.run("virtual environment", [base, "-m", "venv", "--clear", str(venv)], own_variables())
    pip = [f"{venv}/bin/python", "-m", "pip", "install", "--no-compile", "--disable-pip-version-check"]
    doctor.run("uv", [*pip, "--require-hashes", "-r", str(REQUIREMENTS / "uv.txt")], own_variables())
    (first := venv / "first.txt").write_text("\n".join(FIRST.findall(find_file("ipex", "serve").read_text())))
    install("settings", venv, "--require-hashes", "--no-deps", "-r", str(first))
    write_stamp(venv, {**identify(venv), "purposes": {}})


def complete_environment(venv: Path, name: str, purposes: Sequence[str], torch_index: str) -> None:
    """Its stamp is written last: an environment without it was not finished."""
    check_torch_index(torch_index)
    stamp = read_stamp(venv)
    haproxy = ["haproxy"] if doctor.find_missing([doctor.HAPROXY]) else []
    files = {purpose: find_file(name, purpose) for purpose in (*purposes, *haproxy, *stamp["purposes"])}
    serve, pins = find_file(name, "serve"), (REQUIREMENTS / name / "serve.in").read_text()
    wanted: dict = {
        **identify(venv), "set": name, "serve": digest(serve),
        "torch_index": hide_credentials(torch_index) or stamp.get("torch_index"),
        "torch": re.findall(r"^torch(?:vision)?==\S+", pins, re.MULTILINE),
    }  # fmt: skip
    changed = [f"{key} was {stamp.get(key)}" for key in wanted if stamp.get(key) != wanted[key]]
    if changed or not os.access(venv / "bin/python", os.X_OK):
        check_unused(venv, ", ".join(changed))
        if stamp != {**identify(venv), "purposes": {}}:
            begin(venv)
        install("packages", venv, "--require-hashes", "--no-deps", "-r", str(serve))
        index, reason = choose_torch_index(torch_index, wanted["torch"][0].replace("==", "-"))
        print(f"  torch from {hide_credentials(index)} index: {reason}", flush=True)
        install(" and ".join(wanted["torch"]), venv, *wanted["torch"], index=index)
        stamp = {**wanted, "torch_index": hide_credentials(index), "purposes": {}}
    digests = {purpose: digest(file) for purpose, file in files.items()}
    for purpose, file in files.items():
        if digests[purpose] != stamp["purposes"].get(purpose):
            install(f"packages for {purpose}", venv, "--require-hashes", "--no-deps", "-r", str(file))
    write_stamp(venv, {**stamp, "purposes": digests})
    compile_java(venv)


def write_stamp(venv: Path, stamp: dict) -> None:
    (draft := venv / f"{STAMP}.part").write_text(json.dumps(stamp, indent=2))
    draft.replace(venv / STAMP)


def compile_java(venv: Path) -> None:
    """Where it is missing or older than its source; a start looks for it there (server/launch.py)."""
    sources, target = sorted(JAVA.rglob("*.java")), venv / "lib/cpukit"
    if target.exists() and target.stat().st_mtime > max(file.stat().st_mtime for file in sources):
        return
    (torchserve,) = venv.glob("lib/python3*/site-packages/ts/frontend/model-server.jar")
    shutil.rmtree(draft := target.with_suffix(".part"), ignore_errors=True)
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
    if users := ", ".join(find_users(venv)):
        text = f"{venv.name} must not change under a running server ({reason}): got {users}"
        raise SetupError(f"{text}\n  do: stop it (make stop RUN_DIR=…), then run this again")


def find_users(venv: Path) -> list[str]:
    """TorchServes and workers of any user that run on its Python; of one's own with the run directory."""
    pythons, found = {f"{venv.absolute()}/bin/python", f"{venv.resolve()}/bin/python"}, []
    for folder in PROC.glob("[0-9]*"):
        run = b""
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_text(errors="replace").split("\0")
            if pythons & {*words} and SERVES & {word.rpartition("/")[2] for word in words}:
                with contextlib.suppress(PermissionError):
                    run = b"".join(
                        re.findall(rb"CPU_KIT_RUN=([^\0]*)", (folder / "environ").read_bytes())[:1]
                    )
                found.append(f"process {folder.name}" + (f" of RUN_DIR={os.fsdecode(run)}" if run else ""))
    return sorted(found)


def own_variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in FOREIGN}


def install(name: str, venv: Path, *arguments: str, index: str = DEFAULT) -> None:
    """By uv, from where pip would take it, or from one index alone; addresses are in its environment only."""
    settings = {**read_pip_settings(f"{venv}/bin/python"), **own_variables(), "UV_PYTHON_DOWNLOADS": "never"}
    # As pip does. Without it an extra index with an older release would hide the one that is wanted.
    settings["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    if index != DEFAULT:
        settings |= {"UV_DEFAULT_INDEX": index, "UV_INDEX": "", "UV_FIND_LINKS": ""}
        arguments = ("--no-deps", *arguments)
    doctor.run(
        name, [f"{venv}/bin/uv", "pip", "install", "--python", f"{venv}/bin/python", *arguments], settings
    )


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


def check_torch_index(given: str) -> None:
    """Reject a mistyped TORCH_INDEX, and one that anybody on the way can answer."""
    if not re.match(rf"$|{DEFAULT}$|https://|file://|http://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?/", given):
        forms = "`default`, https://…, file://…, or http://… on this machine (else it can be anybody's)"
        raise SetupError(f"TORCH_INDEX must be {forms}: got {hide_credentials(given)}")


def choose_torch_index(given: str, wheel: str) -> tuple[str, str]:
    """That of the CPU-only wheels (0.2 GB against 6.8) where it answers and has this one; and why."""
    if given:
        return given, "TORCH_INDEX"
    try:
        with urllib.request.urlopen(f"{CPU_INDEX}/torch/", timeout=4) as answer:
            page = answer.read().decode().replace("%2B", "+")
    except (OSError, ValueError) as error:
        return DEFAULT, f"the CPU-only wheels' cannot be reached ({getattr(error, 'reason', error)})"
    if "{}+cpu-cp{}{}-".format(wheel, *sys.version_info) in page:
        return CPU_INDEX, "the CPU-only wheels'"
    return DEFAULT, f"the CPU-only wheels' has no {wheel} for this Python"
