"""Runs the long commands with their output in a log; a failure becomes a sentence with the log's tail."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from setup.errors import SetupError
from setup.torch_wheel import hide_credentials

TAIL_LINES, TAIL_WIDTH = 12, 200

# What a caller's shell may hold that would send packages or imports somewhere else than into the environment.
FOREIGN_VARIABLES = (
    "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT",
    "PIP_REQUIRE_VIRTUALENV", "PIP_CONSTRAINT", "__PYVENV_LAUNCHER__",
)  # fmt: skip

AGAIN = "then run `make setup` again: it continues where it stopped"
LACKING = "the package index lacks this version for this Python: check the index pip uses (`pip config list`)"
UNREACHABLE = f"the network or its name service is unreachable: check it (or the proxy), {AGAIN}"

# The first pattern found in a failed command's output chooses the advice.
ADVICE = (
    ("No space left on device", f"free disk space, {AGAIN}"),
    ("Could not get lock", f"another apt or dpkg is running: wait for it, {AGAIN}"),
    ("Unable to locate package", "the package lists lack it: check /etc/apt/sources.list"),
    ("CERTIFICATE_VERIFY_FAILED", "a proxy re-signs the traffic: set PIP_CERT to its CA file and run again"),
    ("Failed to establish a new connection", UNREACHABLE),
    ("Temporary failure", UNREACHABLE),
    ("Name or service not known", UNREACHABLE),
    ("Could not find a version that satisfies", LACKING),
    ("No matching distribution found", LACKING),
)


def own_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The caller's environment without what would lead pip astray."""
    kept = {name: value for name, value in os.environ.items() if name not in FOREIGN_VARIABLES}
    return {**kept, "PYTHONUNBUFFERED": "1", **(extra or {})}


def run_logged(command: Sequence[str], log: Path, *, extra: Mapping[str, str] | None = None) -> None:
    """Run to the end with output in `log`; a failure raises with the end of that output and what to do."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as sink:
        sink.write(f"\n$ {' '.join(command)}\n".encode())
        sink.flush()
        start = sink.tell()
        code = subprocess.call(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            env=own_environment(extra),
            close_fds=False,  # the lock of cli.only_one
        )
    output = hide_credentials_in(log, start)
    if code != 0:
        raise SetupError(describe_failure(command, code, output, log))


def hide_credentials_in(log: Path, start: int) -> str:
    """What was logged from `start` on, there and here without credentials: Debian's pip hides an index's name
    and password in its messages, but not in a traceback."""
    output = read_from(log, start)
    hidden = "".join(hide_credentials(line) for line in output.splitlines(keepends=True))
    if hidden != output:
        with log.open("r+b") as file:
            file.truncate(start)
            file.seek(start)
            file.write(hidden.encode())
    return hidden


def read_from(log: Path, start: int) -> str:
    with log.open("rb") as source:
        source.seek(start)
        return source.read().decode(errors="replace")


def describe_failure(command: Sequence[str], code: int, output: str, log: Path) -> str:
    """What failed, the end of its output, where the rest is, what to do."""
    tail = [line for line in output.splitlines() if line.strip()][-TAIL_LINES:]
    shown = "\n".join(f"  | {line[:TAIL_WIDTH]}" for line in tail)
    head = f"`{' '.join(command[:4])} …` failed with exit code {code}"
    return f"{head}\n{shown}\n  log: {log}\n  do: {advise(output)}"


def advise(output: str) -> str:
    for pattern, advice in ADVICE:
        if pattern in output:
            return advice
    return f"read the log, cure the cause, {AGAIN}"
