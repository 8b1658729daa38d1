"""Decides whether an archive is built again: what it was built from against what is asked for now."""

from __future__ import annotations

import hashlib
import json
import zipfile
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from handlers.shared.definition import SUMS_FILE
from models.definition import ModelDefinition
from models.errors import DownloadError
from models.files import hash_data, hash_user_files
from models.kinds import fetch_pretrained
from models.request import DataRequest, WeightsRequest

ROOT = Path(__file__).parent.parent
NOT_BUILDING = ("__main__.py", "drift.py", "progress.py", "timing.py", "timings.py")
"""Modules of this folder that read archives, show, or only call those that make them."""
BUILD_DISTRIBUTIONS = ("torch", "torchvision", "transformers", "tokenizers", "safetensors", "numpy", "pillow")


@dataclass(frozen=True, kw_only=True)
class BuildPlan:
    """What an archive shall be built from."""

    weights: WeightsRequest
    record: dict[str, str]
    """The request as definition.json keeps it: source, path, and the hash of the person's files."""
    inputs: str
    """The fingerprint."""


def read_archive_definition(archive: Path) -> dict[str, Any] | None:
    """`definition.json` of a built archive, and the archive's id; None when it is missing or unreadable."""
    try:
        with zipfile.ZipFile(archive) as file:
            # Without sums it was built by an earlier kit; what it was built from is still worth knowing.
            sums = file.read(SUMS_FILE) if SUMS_FILE in file.namelist() else b""
            return {**json.loads(file.read("definition.json")), "id": hashlib.sha256(sums).hexdigest()}
    except (OSError, KeyError, ValueError, zipfile.BadZipFile):
        return None


def plan_build(
    definition: ModelDefinition, request: WeightsRequest, data: DataRequest, packed: dict[str, Any] | None
) -> BuildPlan:
    """What is asked for; where WEIGHTS is not given, what the packed archive was asked for."""
    record = _record(request) if request.source else _recall(packed)
    path = Path(record["path"]) if record["path"] else None
    return BuildPlan(
        weights=replace(request, source=record["source"], path=path),
        record=record,
        inputs=fingerprint(definition, record, data),
    )


def _record(request: WeightsRequest) -> dict[str, str]:
    if request.path is None:
        return {"source": request.source, "path": "", "files": ""}
    return {"source": request.source, "path": str(request.path), "files": hash_user_files(request.path)}


def _recall(packed: dict[str, Any] | None) -> dict[str, str]:
    record = (packed or {}).get("request") or _record(WeightsRequest(source="auto"))
    path = Path(record["path"]) if record["path"] else None
    if path is None or not path.exists():
        return dict(record)
    return _record(WeightsRequest(source=record["source"], path=path))


def fingerprint(definition: ModelDefinition, record: dict[str, str], data: DataRequest) -> str:
    """SHA-256 over all that decides an archive's bytes: definition, our code, weights asked for, versions."""
    digest = hashlib.sha256()
    for path in [definition.path, *_own_sources()]:
        digest.update(f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name}\0".encode())
        digest.update(path.read_bytes())
    digest.update(f"{record['source']}\0{record['files']}\0".encode())
    for own in (data.calibration, data.evaluation):
        digest.update(f"{hash_data(own) if own else ''}\0".encode())
    for name in BUILD_DISTRIBUTIONS:
        digest.update(f"{name}={version(name)}\0".encode())
    return digest.hexdigest()


def _own_sources() -> list[Path]:
    building = [file for file in (ROOT / "models").rglob("*.py") if file.name not in NOT_BUILDING]
    return sorted([*(ROOT / "handlers").rglob("*.py"), *building])


def explain_fresh(
    definition: ModelDefinition, request: WeightsRequest, plan: BuildPlan, packed: dict[str, Any] | None
) -> str | None:
    """Why the archive stays as it is; None when it must be built."""
    if packed is None or packed.get("inputs") != plan.inputs:
        return None
    weights = f"weights: {packed['weights']}"
    if fell_back(packed):
        failure = _fetch_now(definition)
        return failure and f"{weights}; pretrained weights still cannot be had: {failure}"
    if not request.source and plan.weights.source != "auto":
        return f"{weights}; WEIGHTS is not given: kept as WEIGHTS={_name(plan)} built it"
    return weights


def explain_retry(packed: dict[str, Any]) -> str | None:
    """Why another build may bring a precision that the last one could not; None when it cannot.

    A CPU with other vector instructions may: an archive from an AVX2 machine can lack INT8 on a server.
    """
    here = read_cpu_features()
    lacking = [name for name, one in packed.get("not_built", {}).items() if one["cpu"] != here]
    if not lacking:
        return None
    return f"{', '.join(lacking)} could not be built on another CPU: building again on this one"


def read_cpu_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """The CPU's vector and matrix instructions, by the kernel's names."""
    return sorted({word for word in cpuinfo.read_text().split() if word.startswith(("avx", "amx"))})


def fell_back(packed: dict[str, Any]) -> bool:
    """Whether an archive has random weights only because nothing better could be had."""
    return packed["request"]["source"] == "auto" and str(packed["weights"]).startswith("random")


def _fetch_now(definition: ModelDefinition) -> str | None:
    """None once the pretrained weights are in the cache, else why they are not."""
    try:
        fetch_pretrained(definition)
    except DownloadError as error:
        return str(error)
    return None


def _name(plan: BuildPlan) -> str:
    return plan.record["path"] or plan.weights.source
