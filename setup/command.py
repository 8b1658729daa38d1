"""The commands of the Makefile: the environment is completed as far as each needs it, and then runs it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]
VENVS = {"ipex": ROOT / ".venv", "current": ROOT / ".venv-current"}
LOOKS = ("help", "status", "verify", "stop", "clean")
"""With the environment that is there: where there is none, no server of this checkout runs."""


def main(words: Sequence[str]) -> int:
    """`COMMAND [--goals=…|--below] NAME=VALUE…`; in an image's build `install SET VENV TORCH_INDEX`."""
    command, *given = words
    usable = "bin/python", "lib/python3*/site-packages/pydantic_settings"
    base = next((one for one in VENVS.values() if all(any(one.glob(name)) for name in usable)), None)
    if command in LOOKS:
        if base:
            execute(base, "config.settings" if command == "help" else "server", command, *given)
        lack = "no server: got no environment (.venv); do: make setup"
        print("docs/settings.md lists the settings" if command == "help" else f"{command}: {lack}")
        return 0 if command in ("help", "clean") else 1
    from setup import doctor  # `make status` need not load it

    try:
        doctor.check_machine()
        if command == "doctor":
            missing = doctor.find_missing()
            print(doctor.explain(missing, "make setup") if missing else "nothing is missing")
            return bool(missing)
        with hold_lock():
            venv, program = complete(command, given, base)
    except doctor.SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:  # it said why
        return error.returncode
    if command == "audit":
        os.execvp("sh", ["sh", "requirements/audit.sh", f"{venv}/bin/python"])
    if program:
        execute(venv, *program)
    return 0


@contextlib.contextmanager
def hold_lock() -> Iterator[None]:
    """Two set-ups at once would write into one environment: the second waits for the first."""
    lock = os.open(ROOT, os.O_RDONLY)
    os.set_inheritable(lock, True)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(lock)


def complete(command: str, given: Sequence[str], base: Path | None) -> tuple[Path, list[str]]:
    """The environment that a command needs, and what runs in it; settings are validated first, by `base`."""
    from setup import doctor, environment

    if command == "distclean":
        for one in VENVS.values():
            environment.check_unused(one, "it was to be removed")
        return ROOT, []
    if base is None or command == "install":
        doctor.complete_machine()
    if command == "install":
        environment.complete_environment(Path(given[1]).absolute(), given[0], (), given[2])
        return ROOT, []
    if base is None:
        environment.begin(base := VENVS["ipex"])
    known = json.loads(call(base, "config.settings", "check", command, *given))
    if command == "image":
        return base, ["docker", *known["arguments"]]
    package_set = "current" if command.startswith("test-current") else known["set"]
    venv, program = VENVS[package_set], [*known["program"], *known["arguments"]] if known["program"] else []
    there = environment.is_complete(venv)
    if command == "plan":
        if not there:
            raise doctor.SetupError(f"make plan installs nothing: got no {venv.name}; do: make setup")
        return venv, program
    if known["builds"]:
        call(base, "models", "check", *known["arguments"])
    if command in ("serve", "reload") and not there and environment.is_complete(base):
        call(base, "server", f"check-{command}", *known["arguments"])
    doctor.complete_machine()
    environment.complete_environment(venv, package_set, known["extras"], known["torch_index"])
    return venv, program


def call(venv: Path, *words: str) -> str:
    """What a program of the kit prints; CalledProcessError where it rejects something."""
    command = [f"{venv}/bin/python", "-m", *words]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


def execute(venv: Path, *words: str) -> NoReturn:
    """This process becomes it."""
    os.chdir(ROOT)
    os.execv(f"{venv}/bin/python", [f"{venv}/bin/python", "-m", *words])
