"""Programs that look into one process at full speed: py-spy's flame graph, perf's top-down analysis.

Without a server: to look is to halt the process again and again, or to be one more load on its CPUs, and
TorchServe's keeper would take halted workers for dead ones. No rate of such a turn is quoted.
The flame graph has native frames too; oneDNN's compiled kernels have no names and stand under their callers.
perf names the groups TopdownL1 and L2 on Intel, PipelineL1 and L2 on AMD (Zen 4, perf 6.2 and later).
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.systems.inprocess import InProcess
from loadtest.systems.system import System
from loadtest.trials.block import Seen, Watching

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


def make_flames_command(pid: int, file: Path) -> Sequence[str]:
    py_spy = str(Path(sys.executable).with_name("py-spy"))
    return [py_spy, "record", "--native", "--pid", str(pid), "--rate", "100", "--output", str(file)]


FLAMES = Tool(
    key="flames",
    what="flame graph",
    command=make_flames_command,
    read=lambda drawn: drawn if "<svg" in drawn else None,
)


GROUPS = ("TopdownL1", "TopdownL2", "PipelineL1", "PipelineL2")
_UNIT = re.compile(r"^%(?:slots|ops)? +([a-z_]+)$")
"""`%  tma_backend_bound`, and AMD's `%slots  backend_bound`; other units are those of a counter."""
TRY_S = 30


def parse_metrics(text: str) -> dict[str, float] | None:
    """Of `perf stat -j`: metric → percent of the pipeline's slots; None where none was counted."""
    found = {}
    for line in text.splitlines():
        # Older perfs write `nan` as a bare word, which is no JSON.
        with contextlib.suppress(ValueError):
            row = json.loads(line)
            unit, value = _UNIT.match(row.get("metric-unit") or ""), float(row.get("metric-value") or "nan")
            if unit and math.isfinite(value):
                found[unit[1]] = value
    return found or None


def list_groups(known: str) -> list[str]:
    """Of what `perf list metricgroup` printed."""
    return [one for one in GROUPS if one in known.split()]


def make_perf_command(pid: int, file: Path) -> Sequence[str]:
    perf = find_program("perf", "linux-perf, on Ubuntu linux-tools-generic")
    tried = _ask([perf, "stat", "-e", "cycles", "true"])
    # perf ends well where a virtual machine has none, and shows that in the figure's place.
    if "<not" in tried:
        raise CannotLookError("no counters on this machine (perf: cycles are not supported)")
    groups = list_groups(_ask([perf, "list", "--raw-dump", "metricgroup"]))
    if not groups:
        raise CannotLookError(f"{_ask([perf, '--version']).strip()} knows no top-down metrics of this CPU")
    return [perf, "stat", "-j", "-M", ",".join(groups), "-o", str(file), "-p", str(pid)]


def _ask(command: Sequence[str]) -> str:
    """What it printed; CannotLookError with that where it could not."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TRY_S)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise CannotLookError(f"perf cannot be run: {problem}") from problem
    said = done.stdout + done.stderr
    if done.returncode:
        raise CannotLookError(f"perf may not count here: {' '.join(said.split())[:SHOWN]}")
    return said


COUNTERS = Tool(key="counters", what="top-down analysis", command=make_perf_command, read=parse_metrics)
