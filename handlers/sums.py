"""SHA256SUMS: what was built into an archive, and whether it still is.

The last member of an archive, in the form of sha256sum(1), holds the hash of every other one; its own hash is
the archive's id. It is no signature: who rewrites it too makes another archive, with another id. Standard
library alone: builder, plan, server and verify ask it too.
"""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import IO

SUMS_FILE = "SHA256SUMS"
"""A folder that is not packed yet has none."""
DAMAGED = "damaged"
BYTE_CODE = "__pycache__"
"""What Python writes beside the handlers that it imports."""
SHOWN = 3
_BLOCK_BYTES = 1 << 20


def identify(sums: bytes) -> str:
    """The id of the archive with this SHA256SUMS: two archives with one id hold the same bytes."""
    return hashlib.sha256(sums).hexdigest()


def identify_packed(archive: Path) -> str | None:
    """None where there is no archive of the kit."""
    try:
        with zipfile.ZipFile(archive) as packed:
            return identify(packed.read(SUMS_FILE))
    except (OSError, zipfile.BadZipFile, KeyError):
        return None


def identify_folder(directory: Path) -> str:
    """Of an unpacked archive; empty for a folder that is not packed yet."""
    file = directory / SUMS_FILE
    return identify(file.read_bytes()) if file.exists() else ""


def parse_sums(text: str) -> dict[str, str]:
    """`<sha256>  <name>` a line → name → hash; ValueError for anything else."""
    pairs = (line.split("  ", 1) for line in text.splitlines())
    return {name: digest for digest, name in pairs}


def find_damage(archive: Path, sums: bytes | None = None) -> str:
    """What is not as it was built, in words; empty where nothing is. 440 MB take half a second. `sums` are
    those that it had when it was read, by default its own."""
    try:
        with zipfile.ZipFile(archive) as packed:
            built = packed.read(SUMS_FILE) if sums is None else sums
            return render_changes(find_changes(built, _hash_members(packed)))
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        return f"it cannot be read: {error}"


def find_changed_files(sums: bytes, folder: Path) -> list[str]:
    """What differs between an archive with these sums and the folder it was unpacked to, in words; a link is
    damage, and byte code is not looked at."""
    found = (path for path in folder.rglob("*") if path.is_symlink() or path.is_file())
    names = {str(path.relative_to(folder)): path for path in found}
    hashes = {name: _hash_file(path) for name, path in names.items() if f"{BYTE_CODE}/" not in name}
    return find_changes(sums, hashes)


def find_changes(sums: bytes, found: Mapping[str, str]) -> list[str]:
    """Every file that differs, is missing or was not built in, by name."""
    built = {**parse_sums(sums.decode()), SUMS_FILE: identify(sums)}
    words = {
        **dict.fromkeys(built.keys() - found.keys(), "is missing"),
        **dict.fromkeys(found.keys() - built.keys(), "was not built in"),
        **{name: _tell(built[name], found[name]) for name in built.keys() & found.keys()},
    }
    return [f"{name} {words[name]}" for name in sorted(words) if words[name]]


def _tell(built: str, found: str) -> str:
    if built == found:
        return ""
    return "is damaged" if found == DAMAGED else f"has sha256 {found[:12]}…, {built[:12]}… was built"


def render_changes(changes: list[str]) -> str:
    """The first few, and how many more there are; empty for none."""
    more = f" and {len(changes) - SHOWN} more" if len(changes) > SHOWN else ""
    return ", ".join(changes[:SHOWN]) + more


def _hash_members(packed: zipfile.ZipFile) -> dict[str, str]:
    """SHA-256 of every member by name; what is packed twice, or fails the zip's own sum, is damaged."""
    times = Counter(packed.namelist())
    return {name: _hash_member(packed, name) if times[name] == 1 else DAMAGED for name in times}


def _hash_member(packed: zipfile.ZipFile, name: str) -> str:
    try:
        with packed.open(name) as stream:
            return hash_stream(stream)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError):
        return DAMAGED


def _hash_file(path: Path) -> str:
    if path.is_symlink():
        return DAMAGED
    with path.open("rb") as stream:
        return hash_stream(stream)


def hash_stream(stream: IO[bytes], *, copy_to: IO[bytes] | None = None) -> str:
    """The SHA-256 of what is read, which may be copied on the way."""
    digest = hashlib.sha256()
    while block := stream.read(_BLOCK_BYTES):
        digest.update(block)
        if copy_to:
            copy_to.write(block)
    return digest.hexdigest()
