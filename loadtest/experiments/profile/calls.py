"""System calls of a process by strace(1): how an allocator gives memory back, who yields."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from loadtest.experiments.profile.tools import Tool, find_program

COUNTED = ("madvise", "munmap", "mmap", "brk", "sched_yield", "futex")
_ROW = re.compile(r"^ *[\d.]+ +[\d.]+ +\d+ +(\d+) +(?:\d+ +)?(\w+)$", re.MULTILINE)


def parse_summary(text: str) -> dict[str, int]:
    """Of `strace -c`: system call → how often; a column for errors is there where calls failed. Of a process
    that called nothing it writes nothing."""
    counted = {name: int(count) for count, name in _ROW.findall(text)}
    return {name: counted.get(name, 0) for name in COUNTED}


def make_command(pid: int, file: Path) -> Sequence[str]:
    """All threads, also those that it will start."""
    asked = ["-c", "-f", "-e", f"trace={','.join(COUNTED)}", "-o", str(file), "-p", str(pid)]
    return [find_program("strace", "strace"), *asked]


CALLS = Tool(key="calls", what="system calls", command=make_command, read=parse_summary)
