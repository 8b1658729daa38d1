"""Archives for baselines: a built one with other values in its definition, and every other byte the same."""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

from loadtest.errors import LoadTestError
from server.archives import SUMS_FILE, parse_sums

DEFINITION = "definition.json"
COPY_BYTES = 1 << 20


def vary_archive(source: Path, folder: Path, *, model: dict[str, Any]) -> Path:
    """A copy of an archive in `folder` with other values in its definition's `model`; its path.

    Its id is another one, and its notes say what it is, so describe never passes it off as the original.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / source.name
    if target.exists() and target.samefile(source):
        raise LoadTestError(f"the variant of {source} must go to another folder: got {folder}")
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as new:
        varied = vary_definition(old.read(DEFINITION), model=model).encode()
        own = {DEFINITION: varied, SUMS_FILE: vary_sums(old.read(SUMS_FILE), varied).encode()}
        for entry in old.infolist():
            if entry.filename in own:
                new.writestr(_copy_entry(entry), own[entry.filename])
                continue
            with old.open(entry) as reader, new.open(_copy_entry(entry), "w", force_zip64=True) as writer:
                shutil.copyfileobj(reader, writer, COPY_BYTES)
    return target


def _copy_entry(entry: zipfile.ZipInfo) -> zipfile.ZipInfo:
    copy = zipfile.ZipInfo(entry.filename, date_time=entry.date_time)
    copy.external_attr = entry.external_attr
    return copy


def vary_definition(text: bytes, *, model: dict[str, Any]) -> str:
    """The definition with other values; only fields that are there can be changed."""
    definition = json.loads(text)
    unknown = sorted(set(model) - set(definition["model"]))
    if unknown:
        known = ", ".join(sorted(definition["model"]))
        raise LoadTestError(f"{DEFINITION}: model has {known}: got {', '.join(unknown)}")
    change = json.dumps(model, sort_keys=True)
    note = f"a variant for a baseline: model {change}"
    varied = {
        **definition,
        "model": {**definition["model"], **model},
        "notes": [*definition.get("notes", []), note],
    }
    return json.dumps(varied, indent=1, ensure_ascii=False)


def vary_sums(sums: bytes, definition: bytes) -> str:
    """The archive's sums with that of another definition, which gives it another id."""
    files = {**parse_sums(sums.decode()), DEFINITION: hashlib.sha256(definition).hexdigest()}
    return "".join(f"{digest}  {name}\n" for name, digest in files.items())
