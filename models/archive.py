"""Packs a staging folder with torch-model-archiver, then rewrites the zip: same inputs, same bytes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from handlers.shared.definition import WEIGHTS_FILE
from models.errors import BuildError

MODEL_VERSION = "1.0"
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
        # In the target's folder, so that the last step is a rename.
        canonical = target.with_suffix(f".{os.getpid()}.part")
        try:
            rewrite_archive(work / f"{name}.mar", canonical, added={WEIGHTS_FILE: weights})
            canonical.replace(target)
        finally:
            canonical.unlink(missing_ok=True)


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
    """Copy a zip and more files, with members sorted and all times, modes and the manifest's date fixed."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as new:
        for name in sorted([*old.namelist(), *added]):
            entry = zipfile.ZipInfo(name, date_time=EPOCH)
            entry.external_attr = 0o644 << 16
            if name == MANIFEST:
                new.writestr(entry, _fix_manifest(old.read(name)))
                continue
            opened = added[name].open("rb") if name in added else old.open(name)
            with opened as reader, new.open(entry, "w", force_zip64=True) as writer:
                shutil.copyfileobj(reader, writer, 1 << 20)


def _fix_manifest(content: bytes) -> str:
    return json.dumps({**json.loads(content), "createdOn": CREATED_ON}, indent=2, sort_keys=True)
