"""Packs a staging folder with torch-model-archiver, then writes the zip anew: same inputs, same bytes.

The last member, SHA256SUMS, holds the hash of every other one in the form of sha256sum(1); its own hash is
the archive's id. By it the archive is known from then on: here, before a server starts, and in the worker.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO

from handlers.definition import MODEL_VERSION, WEIGHTS_FILE
from handlers.sums import SUMS_FILE, hash_stream
from models.errors import BuildError

EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time a zip can hold; real times would make each build differ."""
MANIFEST = "MAR-INF/MANIFEST.json"
CREATED_ON = "01/01/1980 00:00:00"


def pack_archive(*, name: str, staging: Path, handler: Path, requirements: Path, target: Path) -> None:
    """Write `target` (.mar) from the staged files; the old one stays whole until the new one is.

    The weights are taken out of `staging`: the archiver would copy them twice.
    """
    # Private, because the archiver stages in $TMPDIR/<name> after deleting it and two builds would
    # destroy each other's files.
    with tempfile.TemporaryDirectory(prefix=".pack-", dir=staging.parent) as folder:
        work = Path(folder)
        weights = (staging / WEIGHTS_FILE).rename(work / WEIGHTS_FILE)
        _run_archiver(name, staging, handler, requirements, work)
        with _replace_whole(target) as draft:
            rewrite_archive(work / f"{name}.mar", draft, added={WEIGHTS_FILE: weights})


def unpack_archive(archive: Path, folder: Path) -> None:
    """All members as files of a new folder."""
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(folder)


def repack_archive(folder: Path, target: Path) -> None:
    """Write an unpacked archive anew, with what was changed or added; the old one stays whole until then."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    files = {str(path.relative_to(folder)): path for path in paths}
    del files[SUMS_FILE]
    with _replace_whole(target) as draft:
        _write_archive(draft, {name: partial(_open_file, path) for name, path in files.items()})


@contextmanager
def _replace_whole(target: Path) -> Iterator[Path]:
    """A file beside `target` that becomes it once it is whole and on disk; else it is gone.

    It is locked while it is written, so that the next build tells it from one of a build that was killed.
    """
    for old in target.parent.glob("*.part"):
        _remove_unless_locked(old)
    # In the target's folder, so that the last step is a rename.
    draft = target.with_suffix(f".{os.getpid()}.part")
    with draft.open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        try:
            yield draft
            # Else the rename can reach the disk first, and after a power cut the archive is empty.
            _sync(draft)
            draft.replace(target)
            _sync(target.parent)
        finally:
            draft.unlink(missing_ok=True)


def _remove_unless_locked(part: Path) -> None:
    with suppress(FileNotFoundError, BlockingIOError), part.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        part.unlink()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _run_archiver(name: str, staging: Path, handler: Path, requirements: Path, work: Path) -> None:
    command = [sys.executable, "-m", "model_archiver.model_packaging", "--model-name", name]
    command += ["--version", MODEL_VERSION, "--handler", str(handler), "--extra-files", str(staging)]
    command += ["--requirements-file", str(requirements), "--export-path", str(work)]
    # zip-store: weights do not compress, and TorchServe unpacks the archive at each start.
    command += ["--archive-format", "zip-store"]
    done = subprocess.run(command, env={**os.environ, "TMPDIR": str(work)}, capture_output=True, text=True)
    if done.returncode != 0 or not (work / f"{name}.mar").is_file():
        raise BuildError(f"torch-model-archiver failed for {name}: {done.stderr.strip()[-500:]}")


def rewrite_archive(source: Path, target: Path, *, added: dict[str, Path]) -> None:
    """Copy a zip and more files, with the manifest's date fixed."""
    with zipfile.ZipFile(source) as old:
        members: dict[str, Callable[[], IO[bytes]]] = {n: partial(old.open, n) for n in old.namelist()}
        members |= {name: partial(_open_file, path) for name, path in added.items()}
        manifest = _fix_manifest(old.read(MANIFEST))
        _write_archive(target, {**members, MANIFEST: lambda: io.BytesIO(manifest)})


def _write_archive(target: Path, members: Mapping[str, Callable[[], IO[bytes]]]) -> None:
    """Members sorted, times and modes fixed; then the sums."""
    sums = ""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as new:
        for name in sorted(members):
            with members[name]() as reader, new.open(_make_entry(name), "w", force_zip64=True) as writer:
                sums += f"{hash_stream(reader, copy_to=writer)}  {name}\n"
        new.writestr(_make_entry(SUMS_FILE), sums)


def _open_file(path: Path) -> IO[bytes]:
    return path.open("rb")


def _make_entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, date_time=EPOCH)
    entry.external_attr = 0o644 << 16
    return entry


def _fix_manifest(content: bytes) -> bytes:
    return json.dumps({**json.loads(content), "createdOn": CREATED_ON}, indent=2, sort_keys=True).encode()
