"""Reads a machine's small text files below a root folder: "/" on the live machine, or a recorded one.

A recorded machine is a folder. Its files lie below it at their own paths, or all of them in one
`recording.txt` with lines `path:content`, which is what `grep -s "" path …` prints from "/"; a file of many
lines has many such lines.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

RECORDING = "recording.txt"


@dataclass(frozen=True, kw_only=True)
class MachineFiles:
    """The text files of one machine."""

    root: Path
    """The folder that stands for "/"."""
    recorded: dict[str, str] = field(default_factory=dict)
    """Path relative to the root → content, from recording.txt."""

    @property
    def live(self) -> bool:
        """True on the machine this runs on, where more can be asked than files tell."""
        return self.root == Path("/")

    def read(self, path: str) -> str | None:
        """The stripped content, or None where there is no such file (or it may not be read)."""
        path = path.lstrip("/")
        if path in self.recorded:
            return self.recorded[path].strip()
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None


def read_machine(root: Path) -> MachineFiles:
    """The files of the machine below `root`."""
    recording = root / RECORDING
    if root == Path("/") or not recording.is_file():
        return MachineFiles(root=root)
    return MachineFiles(root=root, recorded=parse_recording(recording.read_text(encoding="utf-8")))


def parse_recording(text: str) -> dict[str, str]:
    """`path:content` lines to path → content; `#` starts a comment line."""
    contents: dict[str, list[str]] = {}
    for line in text.splitlines():
        path, colon, content = line.partition(":")
        if colon and not line.startswith("#"):
            contents.setdefault(path.strip().lstrip("/"), []).append(content)
    return {path: "\n".join(lines) for path, lines in contents.items()}


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
