"""The commands of the Makefile: settings are checked, what one needs is installed by uv, it runs there."""

import ast
import contextlib
import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

from setup import doctor
from setup.doctor import ROOT, conceal, run

VENVS = {"ipex": ROOT / ".venv", "current": ROOT / ".venv-current"}
LOOKS = ("help", "status", "verify", "stop", "clean")  # where there is no environment, no server runs
PYTHON, PROC = "{}.{}".format(*sys.version_info), Path("/proc")
PINS, LOCKED = ROOT / "requirements", "--require-hashes --no-deps -r"
# Of both package sets; and what a start puts on Java's class path (server/launch.py).
OF_ALL = {"haproxy": PINS / "haproxy.txt", "java": next(ROOT.glob("server/java/**/*.java"), ROOT)}
CPU_INDEX, DEFAULT = "https://download.pytorch.org/whl/cpu", "default"  # pytorch.org, "Get started"
UV_SETTINGS = {  # pip's settings, which uv does not read, by its own names
    "index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX", "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX", "trusted-host": "UV_INSECURE_HOST", "cert": "SSL_CERT_FILE",
}  # fmt: skip


def main(words: list[str]) -> None:
    """`COMMAND [--goals=…|--below] NAME=VALUE…`; in an image's build `install SET VENV TORCH_INDEX`."""
    command, *given = words
    base = next((venv for venv in VENVS.values() if "python" in read_stamp(venv)), None)
    if command in LOOKS and base:
        program = [f"{base}/bin/python", "-m", "config.settings" if command == "help" else "server", *words]
    elif command in LOOKS:
        lack = f"{command}: no server: got no environment (.venv); do: make setup"
        print("docs/settings.md lists the settings" if command == "help" else lack)
        sys.exit(command not in ("help", "clean"))
    else:
        doctor.check_machine()
        if command == "doctor":
            missing = doctor.find_missing()
            print(doctor.explain(missing, "make setup") if missing else "nothing is missing")
            sys.exit(bool(missing))
        lock = os.open(ROOT, os.O_RDONLY)  # a second set-up would write into the same environment: it waits
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.set_inheritable(lock, True)
        program = prepare(command, given, base)
        os.close(lock)
    if program:
        os.execvp(program[0], program)


def prepare(command: str, given: list[str], base: Path | None) -> list[str]:
    """The program of a command, once its environment is there; settings are checked before, by `base`."""
    if command == "distclean":
        for venv in VENVS.values():
            check_unused(venv, "it was to be removed")
        return []
    if command == "install":
        complete(Path(given[1]).absolute(), given[0], [], given[2])
        return []
    if base is None:
        begin(base := VENVS["ipex"], "it has no pydantic-settings")
    known = json.loads(call(base, "config.settings", "check", command, *given))
    package_set = "current" if command.startswith(("test-current", "benchmark-tools")) else known["set"]
    venv, own = base if command == "image" else VENVS[package_set], known["arguments"]
    if command == "plan" and "serve" not in read_stamp(venv):
        sys.exit(f"make plan installs nothing: got no {venv.name}; do: make setup")
    if known["builds"]:
        call(base, "models", "check", *own)
    if command in ("serve", "reload") and "serve" in read_stamp(base) and "serve" not in read_stamp(venv):
        call(base, "server", f"check-{command}", *own)
    if command not in ("plan", "image"):
        complete(venv, package_set, known["extras"], known["torch_index"])
    if command == "audit":
        return ["sh", "requirements/audit.sh", f"{venv}/bin/python"]
    return [f"{venv}/bin/python", "-m", *known["program"], *own] if known["program"] else []


def call(venv: Path, *words: str) -> str:
    """What a program of the kit prints; where it rejects something, it said why."""
    done = subprocess.run([f"{venv}/bin/python", "-m", *words], stdout=subprocess.PIPE, text=True)
    return done.stdout if done.returncode == 0 else sys.exit(done.returncode)


def read_stamp(venv: Path) -> dict:
    """What an environment has; written last, so that one without it was not finished."""
    with contextlib.suppress(OSError, ValueError):
        if os.access(venv / "bin/python", os.X_OK):
            return {"purposes": {}, **json.loads((venv / "setup.json").read_text())}
    return {"purposes": {}}


def begin(venv: Path, reason: str) -> None:
    """A new one with uv and what settings are read with; a link's target, of another checkout, stays."""
    check_unused(venv, reason)
    doctor.complete_machine()
    if venv.is_symlink():
        venv.unlink()
    run("virtual environment", f"'{sys._base_executable}' -m venv --clear {venv}")  # type: ignore[attr-defined]
    run("uv", f"{venv}/bin/pip install --no-compile --disable-pip-version-check {LOCKED} {PINS}/first.txt")
    (venv / "setup.json").write_text(json.dumps({"location": str(venv), "python": PYTHON}))


def complete(venv: Path, name: str, extras: list[str], torch_index: str) -> None:
    """What is wanted of a package set, a part of which may be there."""
    doctor.complete_machine()
    stamp, folder = read_stamp(venv), PINS / name
    haproxy = ["haproxy"] if doctor.find_lack(doctor.HAPROXY) else []
    names = ("serve", "java", *extras, *haproxy, *stamp["purposes"])
    files = {one: OF_ALL.get(one, folder / f"{one}.txt") for one in names}
    digests = {one: hashlib.sha256(file.read_bytes()).hexdigest() for one, file in files.items()}
    torch = re.findall(r"(?m)^torch(?:vision)?==\S+", (folder / "serve.in").read_text())
    begun = {"location": str(venv), "python": PYTHON}
    wanted: dict = {**begun, "set": name, "serve": digests.pop("serve"), "torch": torch}
    wanted["torch_index"] = conceal(torch_index) or stamp.get("torch_index")
    if changed := [f"{key} was {stamp.get(key)}" for key in wanted if stamp.get(key) != wanted[key]]:
        index, reason = choose_torch_index(torch_index, torch[0].replace("==", "-"))
        if stamp != {**begun, "purposes": {}}:
            begin(venv, ", ".join(changed))
        install("packages", venv, f"{LOCKED} {files['serve']}")
        print(f"  torch from {conceal(index)} index: {reason}", flush=True)
        install(" and ".join(torch), venv, " ".join(torch), index)
        stamp = {**wanted, "torch_index": conceal(index), "purposes": {}}
    for one in (one for one in digests if digests[one] != stamp["purposes"].get(one)):
        if one == "java":
            (jar,) = venv.glob("lib/python3*/site-packages/ts/frontend/model-server.jar")
            run("Java class", f"javac --release 17 -d {venv}/lib/cpukit -cp {jar} {files[one]}")
        else:
            install(f"packages for {one}", venv, f"{LOCKED} {files[one]}")
    (venv / "setup.json").write_text(json.dumps({**stamp, "purposes": digests}))


def check_unused(venv: Path, reason: str) -> None:
    """Exit when a server of any user runs on it: a worker that comes back would load other packages."""
    pythons, users = {f"{one}/bin/python" for one in (venv.absolute(), venv.resolve())}, []
    for folder in PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_text(errors="replace").split("\0")
            if pythons & {*words} and re.search("ModelServer|model_service_worker", " ".join(words)):
                users.append(f"process {folder.name}")
                run_dir = re.findall(
                    rb"CPU_KIT_RUN=([^\0]+)", (folder / "environ").read_bytes()
                )  # of one's own
                users += [f"of RUN_DIR={os.fsdecode(one)}" for one in run_dir]
    if users:
        text = f"{venv.name} must not change under a running server ({reason}): got {' '.join(users)}"
        sys.exit(f"{text}\n  do: stop it (make stop RUN_DIR=…), then run this again")


def install(name: str, venv: Path, arguments: str, index: str = DEFAULT) -> None:
    """By uv, from where pip would take it, or from one index alone; addresses are in its environment only."""
    listed = subprocess.check_output([f"{venv}/bin/python", "-m", "pip", "config", "list"], text=True)
    found = re.findall(r"(?m)^(?::env:|global|install)\.([\w-]+)=(.*)$", listed)[::-1]  # the first one wins
    words = {UV_SETTINGS[key]: ast.literal_eval(value).split() for key, value in found if key in UV_SETTINGS}
    settings = {key: ("," if key == "UV_FIND_LINKS" else " ").join(words[key]) for key in words}
    # As pip does. Without it an extra index with an older release would hide the one that is wanted.
    settings |= {**os.environ, "UV_INDEX_STRATEGY": "unsafe-best-match"}
    if index != DEFAULT:
        settings |= {"UV_DEFAULT_INDEX": index, "UV_INDEX": "", "UV_FIND_LINKS": ""}
        arguments = f"--no-deps {arguments}"
    run(name, f"{venv}/bin/uv pip install --python {venv}/bin/python {arguments}", settings)


def choose_torch_index(given: str, wheel: str) -> tuple[str, str]:
    """That of the CPU-only wheels (0.2 GB against 6.8) where it answers and has this one; and why."""
    if not re.match(rf"$|{DEFAULT}$|https://|file://|http://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?/", given):
        sys.exit(f"TORCH_INDEX must be default, https:, file:, or http://localhost: got {conceal(given)}")
    if given:
        return given, "TORCH_INDEX"
    try:
        page = urllib.request.urlopen(f"{CPU_INDEX}/torch/", timeout=4).read().decode()
    except (OSError, ValueError) as error:
        return DEFAULT, f"the CPU-only wheels' cannot be reached ({getattr(error, 'reason', error)})"
    has = re.search(rf"{wheel}(\+|%2B)cpu-cp{PYTHON.replace('.', '')}-", page)
    lack = f"the CPU-only wheels' has no {wheel} for this Python"
    return (CPU_INDEX, "the CPU-only wheels'") if has else (DEFAULT, lack)
