"""Compares an archive's files, packed or unpacked, with the hashes that its build wrote down.

They stand in the archive's own SHA256SUMS, in the form of sha256sum(1), and that file's hash is the archive's
id. It is no signature: who rewrites it too makes another archive, with another id.
"""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO

from server.archives import SUMS_FILE, Archive
from server.errors import ServerError

_BLOCK_BYTES = 1 << 20
_SHOWN = 3
_DAMAGED = "damaged"
# What Python writes beside the handlers that it imports.
_BYTE_CODE = "__pycache__"


def check_packed(archives: Iterable[Archive]) -> None:
    """ServerError when an archive holds anything else than what was built; 440 MB take half a second."""
    for archive in archives:
        changes = find_changes(archive, hash_packed(archive.path))
        if changes:
            raise ServerError(
                f"{archive.path}: not as it was built: {render_changes(changes)}; "
                f"build it again: make models MODELS={archive.name}"
            )


def check_unpacked(archive: Archive, folder: Path) -> list[str]:
    """What differs between an archive and the folder it was unpacked to, in words."""
    return find_changes(archive, hash_unpacked(folder))


def find_changes(archive: Archive, found: Mapping[str, str]) -> list[str]:
    """Every file that differs, is missing or was not built in, by name."""
    built = {**archive.files, SUMS_FILE: archive.archive_id}
    words = {
        **dict.fromkeys(built.keys() - found.keys(), "is missing"),
        **dict.fromkeys(found.keys() - built.keys(), "was not built in"),
        **{name: _tell(built[name], found[name]) for name in built.keys() & found.keys()},
    }
    return [f"{name} {words[name]}" for name in sorted(words) if words[name]]


def _tell(built: str, found: str) -> str:
    if built == found:
        return ""
    return "is damaged" if found == _DAMAGED else f"has sha256 {found[:12]}…, {built[:12]}… was built"


def render_changes(changes: list[str]) -> str:
    """The first few, and how many more there are."""
    more = f" and {len(changes) - _SHOWN} more" if len(changes) > _SHOWN else ""
    return ", ".join(changes[:_SHOWN]) + more


def hash_packed(file: Path) -> dict[str, str]:
    """SHA-256 of every member by name; what is packed twice, or fails the zip's own sum, is damaged."""
    with zipfile.ZipFile(file) as archive:
        found = {name: _hash_member(archive, name) for name in archive.namelist()}
        times = Counter(archive.namelist())
    return {name: digest if times[name] == 1 else _DAMAGED for name, digest in found.items()}


def _hash_member(archive: zipfile.ZipFile, name: str) -> str:
    try:
        with archive.open(name) as stream:
            return _hash(stream)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError):
        return _DAMAGED


def hash_unpacked(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder by its name there, but for byte code; a link is damage."""
    found = (path for path in folder.rglob("*") if path.is_symlink() or path.is_file())
    names = {str(path.relative_to(folder)): path for path in found}
    return {name: _hash_file(path) for name, path in names.items() if f"{_BYTE_CODE}/" not in name}


def _hash_file(path: Path) -> str:
    if path.is_symlink():
        return _DAMAGED
    with path.open("rb") as stream:
        return _hash(stream)


def _hash(stream: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while block := stream.read(_BLOCK_BYTES):
        digest.update(block)
    return digest.hexdigest()
