"""Prints a recording of this machine: `python -m config.record > DIR/recording.txt`, to plan for it
elsewhere.

It holds exactly the files that reading the topology asks for, and of the long ones only the lines that count.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from config.files import MachineFiles
from config.topology import parse_topology, read_topology

LINES_THAT_COUNT = {
    "proc/cpuinfo": r"(vendor_id|model name|flags)\s*:",
    "proc/meminfo": r"MemTotal:",
    "proc/self/status": r"(CapEff|Seccomp|Cpus_allowed_list|Mems_allowed_list):",
    "proc/self/mountinfo": r".* - cgroup2? ",
}


def render_recording(root: Path = Path("/")) -> str:
    """The lines `path:content` of recording.txt."""
    files = MachineFiles(root=root)  # not live: the files are read that a recorded machine will need
    parse_topology(files)
    contents = files.contents
    if root == Path("/"):
        live = read_topology()
        contents["probe/lscpu"] = "\n".join(live.lscpu_view)
        if live.numactl:
            contents["probe/numactl"] = "installed"
            contents["probe/membind"] = "ok" if live.can_bind_memory else "rejected"
    lines = (f"{path}:{line}" for path, text in sorted(contents.items()) for line in _shorten(path, text))
    return "\n".join(lines) + "\n"


def _shorten(path: str, text: str) -> list[str]:
    """Every CPU repeats the lines of /proc/cpuinfo; the first of each name is kept."""
    lines = [line for line in text.splitlines() or [""] if re.match(LINES_THAT_COUNT.get(path, ""), line)]
    if path == "proc/cpuinfo":
        return list({line.split(":")[0]: line for line in reversed(lines)}.values())[::-1]
    return lines


if __name__ == "__main__":
    sys.stdout.write(render_recording())
