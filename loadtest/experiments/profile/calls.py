"""System calls of a process at full speed by strace(1): how an allocator gives memory back, who yields.

Taken without a server, as the flame graph is: strace halts a thread at each call. Nothing of its turn's rate
is quoted, only how many calls a request cost.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from loadtest.systems.inprocess import InProcess
from loadtest.systems.system import System
from loadtest.trials.watch import Seen

CALLS, PROBLEM = "calls", "calls_problem"
"""In a trial's seen: system call → how often, or why they were not counted."""
COUNTED = ("madvise", "munmap", "mmap", "brk", "sched_yield", "futex")
SECONDS = 5
LATE_S = 20
MISSING = "strace is not installed (apt-get install strace)"
_ROW = re.compile(r"^ *[\d.]+ +[\d.]+ +\d+ +(\d+) +(?:\d+ +)?(\w+)$", re.MULTILINE)


def parse_summary(text: str) -> dict[str, int]:
    """Of `strace -c`: system call → how often; a column for errors is there where calls failed."""
    return {name: int(count) for count, name in _ROW.findall(text) if name in COUNTED}


@contextlib.contextmanager
def watch_calls(system: System) -> Iterator[Seen]:
    """Of all threads of the first process; where strace may not look (ptrace), its own words."""
    assert isinstance(system.reference, InProcess)
    strace = shutil.which("strace")
    if strace is None:
        yield Seen(values={PROBLEM: MISSING})
        return
    pid = system.reference.children[0].process.pid
    with tempfile.TemporaryDirectory(prefix="calls-") as folder:
        file = Path(folder) / "summary"
        command = [strace, "-c", "-f", "-e", f"trace={','.join(COUNTED)}", "-o", str(file), "-p", str(pid)]
        looking = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        seen, said = Seen(), ""
        try:
            yield seen
            # It lets go of the process, and writes what it counted.
            looking.send_signal(signal.SIGINT)
            said, _ = looking.communicate(timeout=LATE_S)
        finally:
            if looking.poll() is None:
                looking.kill()
                looking.communicate()
        text = file.read_text() if file.exists() else ""
        counted = {name: parse_summary(text).get(name, 0) for name in COUNTED}
        seen.values |= {CALLS: counted} if text else {PROBLEM: said.strip()[:300]}
