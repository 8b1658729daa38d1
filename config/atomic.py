"""Writes a text file whole or not at all: nobody reads half of one."""

from __future__ import annotations

from pathlib import Path


def write_text_atomically(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Write beside the file and rename over it; `mode`, less the umask, holds from the first byte on."""
    draft = name_draft(path)
    draft.unlink(missing_ok=True)
    draft.touch(mode, exist_ok=False)
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def name_draft(path: Path) -> Path:
    """What a killed writer leaves; hidden, so that no pattern for finished files finds it."""
    return path.with_name(f".{path.name}.new")
