"""A program that looks into one process at full speed: py-spy or perf.

Without a server: to look is to halt the process again and again, or to be one more load on its CPUs, and
TorchServe's keeper would take halted workers for dead ones. No rate of such a turn is quoted.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.systems.inprocess import InProcess
from loadtest.systems.system import System
from loadtest.trials.watch import Seen, Watching

SECONDS = 5
LATE_S = 60
LOOKED = (0, -signal.SIGINT, 128 + signal.SIGINT)
"""Exit codes of who was interrupted and had looked until then."""
SHOWN = 300
"""Characters of what a program said where it could not look."""


class CannotLookError(Exception):
    """Why, in words for the page."""


@dataclass(frozen=True, kw_only=True)
class Tool:
    """One program, which looks until it is interrupted."""

    key: str
    """In a trial's seen."""
    what: str
    """What it shows, as a person says it."""
    command: Callable[[int, Path], Sequence[str]]
    """From the process and the file to write; CannotLookError where it is not there, or knows it cannot."""
    read: Callable[[str], Any]
    """From what it wrote; None where that tells nothing."""

    @property
    def problem(self) -> str:
        """In a trial's seen, where it could not look."""
        return f"{self.key}_problem"


def find_program(name: str, package: str) -> str:
    """Its path, or who brings it."""
    found = shutil.which(name)
    if found is None:
        raise CannotLookError(f"{name} is not installed (apt-get install {package})")
    return found


def watch_by(tool: Tool) -> Watching:
    """Of the first process; where the program may not look (ptrace), its own words."""

    @contextlib.contextmanager
    def watch(system: System) -> Iterator[Seen]:
        assert isinstance(system.reference, InProcess)
        pid, seen = system.reference.children[0].process.pid, Seen()
        with tempfile.TemporaryDirectory(prefix=f"{tool.key}-") as folder:
            file = Path(folder) / tool.key
            try:
                command = tool.command(pid, file)
            except CannotLookError as problem:
                yield seen
                seen.values[tool.problem] = str(problem)
                return
            with _run(command) as looking:
                yield seen
                looking.send_signal(signal.SIGINT)
                said, _ = looking.communicate(timeout=LATE_S)
            # The command with this machine's paths may be part of what it wrote.
            text = file.read_text().replace(" ".join(command), tool.what) if file.exists() else ""
            told = tool.read(text) if looking.returncode in LOOKED else None
            why = said.strip()[:SHOWN] or f"{Path(command[0]).name} wrote nothing that tells"
            seen.values |= {tool.problem: why} if told is None else {tool.key: told}

    return watch


@contextlib.contextmanager
def _run(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    looking = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield looking
    finally:
        if looking.poll() is None:
            looking.kill()
            looking.communicate()
