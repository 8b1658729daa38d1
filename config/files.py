"""Reads a machine's small text files below a root folder: "/" on the live machine, or a recorded one.

A recorded machine is a folder. Its files lie below it at their own paths, or all of them in one
`recording.txt` with lines `path:content`, which is what `grep -s "" path …` prints from "/"; a file of many
lines has many such lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

RECORDING = "recording.txt"


@dataclass(frozen=True, kw_only=True)
class MachineFiles:
    """The text files of one machine."""

    root: Path
    """The folder that stands for "/"."""
    live: bool = False
    """It is the machine this runs on, where more can be found out than files tell."""
    contents: dict[str, str] = field(default_factory=dict)
    """Path relative to the root → content, of recording.txt and of what was read so far."""

    def read(self, path: str) -> str | None:
        """The stripped content, or None where there is no such file (or it may not be read)."""
        path = path.lstrip("/")
        if path not in self.contents:
            try:
                text = (self.root / path).read_text(encoding="utf-8", errors="replace")
            except OSError:
                return None
            self.contents[path] = text.strip()
        return self.contents[path]

    def read_field(self, path: str, name: str) -> str | None:
        """The first `name: value` of a file like /proc/meminfo."""
        match = re.search(rf"^{re.escape(name)}\s*:[ \t]*(.*)$", self.read(path) or "", re.MULTILINE)
        return match.group(1).strip() if match else None

    def read_ids(self, path: str) -> tuple[int, ...]:
        """Of a file that holds a list of the kernel's; () where there is none."""
        return parse_id_list(self.read(path) or "")


def read_machine(root: Path) -> MachineFiles:
    """The files of the machine below `root`; in recording.txt `#` starts a comment line."""
    live = root == Path("/")
    lines: dict[str, list[str]] = {}
    if not live and (root / RECORDING).is_file():
        for line in (root / RECORDING).read_text(encoding="utf-8").splitlines():
            path, colon, content = line.partition(":")
            if colon and not line.startswith("#"):
                lines.setdefault(path.strip().lstrip("/"), []).append(content)
    contents = {path: "\n".join(parts).strip() for path, parts in lines.items()}
    return MachineFiles(root=root, live=live, contents=contents)


def parse_id_list(text: str) -> tuple[int, ...]:
    """The kernel's list format: "0-3,8" → (0, 1, 2, 3, 8); an empty text is an empty list."""
    ids: set[int] = set()
    for part in text.replace("\n", ",").split(","):
        first, _, last = part.strip().partition("-")
        if first:
            ids.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(ids))


def render_id_list(ids: Iterable[int]) -> str:
    """The kernel's list format back: (0, 1, 2, 3, 8) → "0-3,8"."""
    runs: list[list[int]] = []
    for number in sorted(ids):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
