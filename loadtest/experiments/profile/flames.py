"""Flame graph of a process at full speed by py-spy, native frames too: an SVG that needs but a browser.

Taken without a server: py-spy halts what it looks at for each sample, and TorchServe's keeper would take
halted workers for dead ones. oneDNN's compiled kernels have no names, and stand under who called them.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from loadtest.systems.inprocess import InProcess
from loadtest.systems.system import System
from loadtest.trials.watch import Seen

FLAME, PROBLEM = "flame", "flame_problem"
"""In a trial's seen: the SVG, or why there is none."""
RATE, SECONDS = 100, 5
"""Samples a second."""
LATE_S = 60
TITLE = f"{RATE} samples a second for {SECONDS} s"


@contextlib.contextmanager
def watch_flames(system: System) -> Iterator[Seen]:
    """The first process; where py-spy may not look (ptrace), its own words."""
    assert isinstance(system.reference, InProcess)
    pid = system.reference.children[0].process.pid
    with tempfile.TemporaryDirectory(prefix="flames-") as folder:
        file = Path(folder) / "flame.svg"
        command = [str(Path(sys.executable).with_name("py-spy")), "record", "--native", "--pid", str(pid)]
        command += ["--rate", str(RATE), "--duration", str(SECONDS), "--output", str(file)]
        looking = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        seen, said = Seen(), ""
        try:
            yield seen
            said, _ = looking.communicate(timeout=LATE_S)
        finally:
            if looking.poll() is None:
                looking.kill()
                looking.communicate()
        # Its title is the command with this machine's paths.
        drawn = file.read_text().replace(" ".join(command), TITLE) if file.exists() else ""
        seen.values |= {FLAME: drawn} if drawn else {PROBLEM: said.strip()[:300]}
