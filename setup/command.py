"""The commands of the Makefile: the environment is completed as far as each needs it, and then runs it."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]
VENVS = {"ipex": ROOT / ".venv", "current": ROOT / ".venv-current"}
LOOKS = ("status", "verify", "stop", "clean")
"""They look at a server, or end it, with the environment that is there."""
PLANS = ("serve", "reload")
USAGE_ERROR = 2


def main(words: Sequence[str]) -> int:
    """`COMMAND [--goals=…|--below] NAME=VALUE…`; of an image's build `install SET VENV TORCH_INDEX`."""
    command, *given = words
    base = next((venv for venv in VENVS.values() if has_settings(venv)), None)
    if command in LOOKS or command == "help":
        return look(command, given, base)
    from setup import doctor, environment  # `make status` need not load it

    try:
        doctor.check_machine()
        if command == "doctor":
            missing = doctor.find_missing()
            print(doctor.explain(missing, "make setup") if missing else "nothing is missing")
            return bool(missing)
        # Two set-ups at once would write into one environment: the second waits for the first.
        lock = os.open(ROOT, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if command == "install":
            package_set, venv, torch_index = given
            doctor.complete_machine()
            environment.complete_environment(Path(venv).absolute(), package_set, (), torch_index)
            return 0
        if command == "distclean":
            for venv in VENVS.values():
                environment.check_unused(venv, "it was to be removed")
            return 0
        if base is None:
            doctor.complete_machine()
            environment.begin(base := VENVS["ipex"])
        known = read_check(base, command, given)
        if command == "image":
            execute(base, "docker", *known["arguments"])
        venv = VENVS["current" if command.startswith("test-current") else known["set"]]
        if command == "plan":
            if not environment.is_complete(venv):
                raise environment.SetupError(
                    f"make plan installs nothing: got no {venv.name}; do: make setup"
                )
        else:
            if known["builds"]:
                call(base, "models", "check", *known["arguments"])
            if command in PLANS and environment.is_complete(base) and not environment.is_complete(venv):
                call(base, "server", f"check-{command}", *known["arguments"])
            doctor.complete_machine()
            purposes = [known["extra"]] if known["extra"] else []
            environment.complete_environment(venv, venv.name[6:] or "ipex", purposes, known["torch_index"])
        os.close(lock)
        if command == "audit":
            os.execvp("sh", ["sh", "requirements/audit.sh", f"{venv}/bin/python"])
        if known["program"]:
            execute(venv, *known["program"], *known["arguments"])
    except doctor.SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:  # it said why
        return error.returncode
    return 0


def has_settings(venv: Path) -> bool:
    """Whether settings can be judged in it."""
    return os.access(venv / "bin/python", os.X_OK) and any(
        venv.glob("lib/python3*/site-packages/pydantic_settings")
    )


def look(command: str, given: Sequence[str], base: Path | None) -> int:
    """With the environment that is there: where there is none, no server of this checkout runs."""
    if base:
        execute(base, "config.settings" if command == "help" else "server", command, *given)
    lack = "got no environment (.venv); do: make setup"
    print("docs/settings.md lists the settings" if command == "help" else f"{command}: no server: {lack}")
    return 0 if command in ("help", "clean") else 1


def read_check(base: Path, command: str, given: Sequence[str]) -> dict:
    """What config.settings says of a command; CalledProcessError where it rejects a value."""
    words = [f"{base}/bin/python", "-m", "config.settings", "check", command, *given]
    return dict(json.loads(subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout))


def call(venv: Path, *words: str) -> None:
    subprocess.run([f"{venv}/bin/python", "-m", *words], cwd=ROOT, check=True)


def execute(venv: Path, *words: str) -> NoReturn:
    """This process becomes it."""
    sys.stdout.flush()
    os.chdir(ROOT)
    os.execv(f"{venv}/bin/python", [f"{venv}/bin/python", "-m", *words])
