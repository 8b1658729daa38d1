"""Programs that look into one process at full speed: py-spy's flame graph, perf's top-down analysis.

Without a server: to look is to halt a process again and again, and the supervisor would take it for dead.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import Any, NamedTuple

from loadtest.errors import LoadTestError
from loadtest.servers.base import Running
from loadtest.servers.inprocess import InProcess

SECONDS, TRY_S, LATE_S, SHOWN = 5.0, 30, 60, 300
"""Of a look; until a program must answer, and end; characters of what it said where it could not look."""
LOOKED = (0, -signal.SIGINT, 128 + signal.SIGINT)
GROUPS = ("TopdownL1", "TopdownL2", "PipelineL1", "PipelineL2")
_METRIC = re.compile(r'"metric-value" : "?([\d.]+)"?, "metric-unit" : "%(?:slots|ops)? +([a-z_]+)"')
"""Percent of slots: `%  tma_backend_bound` on Intel, `%slots  backend_bound` on AMD (Zen 4, perf 6.2)."""


class Told(dict[str, Any]):
    """A watch: plain values that are put in when the load is over."""

    def cut(self, begin: float, end: float) -> Mapping[str, Any]:
        return self


class Tool(NamedTuple):
    """One program, which looks until it is interrupted. `command` takes the process and the file to write, or
    raises LoadTestError in words for the page; `read` gives None where what it wrote tells nothing."""

    key: str
    what: str
    command: Callable[[int, Path], Sequence[str]]
    read: Callable[[str], Any]


@contextlib.contextmanager
def watch_by(tool: Tool, running: Running) -> Iterator[Told]:
    """Of the first process without a server: what was `seen`, or in the tool's own words the `problem`."""
    assert isinstance(running.runner, InProcess)
    told = Told()
    with tempfile.TemporaryDirectory(prefix=f"{tool.key}-") as folder:
        file = Path(folder) / tool.key
        try:
            command = tool.command(running.runner.children[0].process.pid, file)
        except LoadTestError as problem:
            told["problem"] = str(problem)
            yield told
            return
        with subprocess.Popen(command, stdout=PIPE, stderr=STDOUT, text=True) as looking:
            try:
                yield told
                looking.send_signal(signal.SIGINT)
                said, _ = looking.communicate(timeout=LATE_S)
            finally:
                looking.kill()
        # The command with this machine's paths may be part of what it wrote.
        text = file.read_text().replace(" ".join(command), tool.what) if file.exists() else ""
        seen = tool.read(text) if looking.returncode in LOOKED else None
        why = said.strip()[:SHOWN] or f"{Path(command[0]).name} wrote nothing that tells"
        told.update({"problem": why} if seen is None else {"seen": seen})


def find_program(name: str, package: str) -> str:
    if found := shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name):
        return found
    raise LoadTestError(f"{name} is not installed ({package})")


def make_perf_command(pid: int, file: Path) -> Sequence[str]:
    perf = find_program("perf", "apt-get install linux-perf, on Ubuntu linux-tools-generic")
    # perf ends well where a virtual machine has no counters, and shows that in the figure's place.
    if "<not" in _ask([perf, "stat", "-e", "cycles", "true"]):
        raise LoadTestError("no counters on this machine (perf: cycles are not supported)")
    known = _ask([perf, "list", "--raw-dump", "metricgroup"]).split()
    if not (groups := [one for one in GROUPS if one in known]):
        raise LoadTestError(f"{_ask([perf, '--version']).strip()} knows no top-down metrics of this CPU")
    return [perf, "stat", "-j", "-M", ",".join(groups), "-o", str(file), "-p", str(pid)]


def _ask(command: Sequence[str]) -> str:
    try:
        return subprocess.check_output(command, stderr=STDOUT, text=True, timeout=TRY_S)
    except (OSError, subprocess.SubprocessError) as problem:
        said = " ".join(str(getattr(problem, "output", "") or problem).split())
        raise LoadTestError(f"perf may not count here: {said[:SHOWN]}") from problem


FLAMES = Tool("flames", "flame graph", lambda pid, file: [
    find_program("py-spy", "make load-tools"), "record", "--native", "--rate", "100", "--pid", str(pid),
    "--output", str(file),
], lambda drawn: drawn if "<svg" in drawn else None)  # fmt: skip
COUNTERS = Tool("counters", "top-down analysis", make_perf_command, lambda text: {
    name: float(value) for value, name in _METRIC.findall(text)} or None)  # fmt: skip
