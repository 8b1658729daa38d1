"""Prints a recording of this machine: `python -m config.record > DIR/recording.txt`, to plan for it
elsewhere.

It holds exactly the files that reading the topology asks for, and of the long ones only the lines that count.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

from config import probes
from config.files import MachineFiles
from config.topology import parse_topology

LINES_THAT_COUNT = {
    "proc/cpuinfo": r"(vendor_id|model name|flags)\s*:",
    "proc/meminfo": r"MemTotal:",
    "proc/self/status": r"(CapEff|Seccomp|Cpus_allowed_list|Mems_allowed_list):",
    "proc/self/mountinfo": r".* - cgroup2? ",
}


@dataclass(frozen=True, kw_only=True)
class TracingFiles(MachineFiles):
    """Reads like a recorded machine and keeps what was there."""

    seen: dict[str, str] = field(default_factory=dict)
    """Path → content of each file that was asked for."""

    @property
    def live(self) -> bool:
        """Never, so that the files are read that a recorded machine will need."""
        return False

    def read(self, path: str) -> str | None:
        """As for any machine."""
        text = super().read(path)
        if text is not None:
            self.seen[path.lstrip("/")] = text
        return text


def render_recording(root: Path = Path("/")) -> str:
    """The lines `path:content` of recording.txt."""
    files = TracingFiles(root=root)
    parse_topology(files)
    contents = {**files.seen, **_probe_outcomes(MachineFiles(root=root))}
    lines = (f"{path}:{line}" for path, text in sorted(contents.items()) for line in _shorten(path, text))
    return "\n".join(lines) + "\n"


def _shorten(path: str, text: str) -> list[str]:
    """Every CPU repeats the lines of /proc/cpuinfo; the first of each name is kept."""
    pattern = LINES_THAT_COUNT.get(path)
    lines = text.splitlines() or [""]
    if pattern is None:
        return lines
    kept = [line for line in lines if re.match(pattern, line)]
    if path == "proc/cpuinfo":
        return list({line.split(":")[0]: line for line in reversed(kept)}.values())[::-1]
    return kept


def _probe_outcomes(files: MachineFiles) -> dict[str, str]:
    """What the commands answer on the live machine."""
    if not files.live:
        return {}
    topology = parse_topology(files)
    outcomes = {"probe/lscpu": "\n".join(probes.read_lscpu(files, topology.cpus_allowed))}
    if topology.numactl:
        outcomes["probe/numactl"] = "installed"
        outcomes["probe/membind"] = "ok" if topology.can_bind_memory else "refused"
    return outcomes


if __name__ == "__main__":
    sys.stdout.write(render_recording())
