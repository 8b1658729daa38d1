"""Where archives and timings may be written: nothing of anybody else's is overwritten or mixed with them."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path

from models.errors import InputError

KNOWN_SUFFIXES = (".mar", ".part")
OF_FILE_SYSTEMS = {"lost+found"}
TIMINGS_KEYS = {"schema", "settings", "models"}
NAMES_SHOWN = 3


def check_store(store: Path, names: Sequence[str]) -> None:
    """Raise unless the folder is new or holds archives alone, and those to be replaced are the kit's."""
    if not store.exists():
        return
    if not store.is_dir():
        raise InputError(f"--store must be a folder: got the file {store}")
    others = sorted(entry.name for entry in store.iterdir() if not _belongs(entry))
    if others:
        more = f" and {len(others) - NAMES_SHOWN} more" if len(others) > NAMES_SHOWN else ""
        raise InputError(
            f"--store must be a new folder, or one of archives (*.mar) alone: {store} holds "
            f"{', '.join(others[:NAMES_SHOWN])}{more}; nothing was written; give another folder"
        )
    for name in names:
        _check_archive(store / f"{name}.mar")


def check_timings_file(file: Path) -> None:
    """Raise when the file exists and was not written by `python -m models time`."""
    if not file.exists():
        return
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raw = None
    if not isinstance(raw, dict) or not raw.keys() >= TIMINGS_KEYS:
        raise InputError(
            f"--output must be a new file, or one of timings: {file} is something else; nothing was "
            "written; remove it or give another"
        )


def _belongs(entry: Path) -> bool:
    """Hidden files such as .gitkeep do not matter."""
    if entry.name.startswith(".") or entry.name in OF_FILE_SYSTEMS:
        return True
    return entry.suffix in KNOWN_SUFFIXES and not entry.is_dir()


def _check_archive(archive: Path) -> None:
    """One that cannot be opened is no loss; one without our definition is another's work."""
    try:
        with zipfile.ZipFile(archive) as packed:
            ours = "definition.json" in packed.namelist()
    except (OSError, zipfile.BadZipFile):
        return
    if not ours:
        raise InputError(
            f"--store: {archive} was not built by this kit and would be overwritten; move it away, or give "
            "another folder"
        )
