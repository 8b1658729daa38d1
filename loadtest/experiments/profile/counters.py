"""Top-down analysis of a process by perf-stat(1), where machine and perf have counters and metrics for it.

perf names the groups TopdownL1 and L2 on Intel, PipelineL1 and L2 on AMD (Zen 4, perf 6.2 and later).
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from loadtest.experiments.profile.tools import SHOWN, CannotLookError, Tool, find_program

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


def make_command(pid: int, file: Path) -> Sequence[str]:
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


COUNTERS = Tool(key="counters", what="top-down analysis", command=make_command, read=parse_metrics)
