"""Flame graph of a process by py-spy, native frames too: an SVG that needs but a browser.

oneDNN's compiled kernels have no names, and stand under who called them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from loadtest.experiments.profile.tools import Tool

RATE = 100
"""Samples a second."""


def make_command(pid: int, file: Path) -> Sequence[str]:
    py_spy = str(Path(sys.executable).with_name("py-spy"))
    return [py_spy, "record", "--native", "--pid", str(pid), "--rate", str(RATE), "--output", str(file)]


FLAMES = Tool(
    key="flames",
    what="flame graph",
    command=make_command,
    read=lambda drawn: drawn if "<svg" in drawn else None,
)
