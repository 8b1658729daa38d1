"""Decides what a build has to do: what an archive was built from, and holds, against what is asked for now.

Two things are told apart. What everything in an archive comes of (weights, definition, code, versions) makes
its fingerprint: another one means to build anew. What a precision was judged with (CALIBRATION, EVAL) stands
beside that precision: with other data it alone is judged again, once it is asked for.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from handlers.backends.catalogue import BACKENDS, DEFAULT, has_wide_sums, name_variant, needs_wide_sums
from handlers.shared.definition import SUMS_FILE
from models.definition import ModelDefinition
from models.errors import BuildError, DownloadError
from models.files import hash_data, hash_user_files
from models.kinds import fetch_pretrained
from models.request import DataRequest, WeightsRequest

ROOT = Path(__file__).parent.parent
NOT_BUILDING = ("__main__.py", "progress.py", "timing.py", "timings.py")
"""Modules of this folder that read archives, show, or only call those that make them."""
CHANGED_MEANS = "it could not be built before; the CPU, or which programs there are, has changed"
BUILD_DISTRIBUTIONS = ("torch", "torchvision", "transformers", "tokenizers", "safetensors", "numpy", "pillow")


@dataclass(frozen=True, kw_only=True)
class BuildPlan:
    """What an archive shall be built from."""

    weights: WeightsRequest
    record: dict[str, str]
    """The request as definition.json keeps it: source, path, and the hash of the person's files."""
    inputs: str
    """The fingerprint."""
    asked: tuple[str, ...]
    """The variants (backend and precision) to be judged that are asked for, in the definition's order; what
    needs no judgement is there unasked."""
    had: tuple[str, ...]
    """Those that were asked for at an earlier build. They are kept, and built anew with the rest: a server
    elsewhere may be started with them, and would find an archive that lost what it held."""
    precisions: tuple[str, ...]
    """Both, in the definition's order: all to be judged in an archive that is built anew."""
    data: str
    """What precisions are calibrated with and judged on, by its hash."""


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
    definition: ModelDefinition,
    request: WeightsRequest,
    data: DataRequest,
    packed: dict[str, Any] | None,
    precisions: Sequence[str] | None = None,
    backends: Sequence[str] = (DEFAULT,),
) -> BuildPlan:
    """What is asked for, by default all precisions; where WEIGHTS is not given, what the packed archive was
    asked for."""
    record = _record(request) if request.source else _recall(packed)
    path = Path(record["path"]) if record["path"] else None
    asked = list_asked(definition, precisions or [*definition.precisions], backends)
    had = tuple(name for name in list_others(definition) if name in list_judged(packed or {}))
    return BuildPlan(
        weights=replace(request, source=record["source"], path=path),
        record=record,
        inputs=fingerprint(definition, record),
        asked=asked,
        had=had,
        precisions=tuple(name for name in list_others(definition) if name in {*asked, *had}),
        data=digest_data(data),
    )


def list_others(definition: ModelDefinition, backends: Iterable[str] = BACKENDS) -> list[str]:
    """All variants that have to be judged."""
    return [
        name_variant(backend, precision)
        for backend in backends
        for precision in definition.precisions
        if precision in BACKENDS[backend].flags and BACKENDS[backend].must_be_judged(precision)
    ]


def list_asked(
    definition: ModelDefinition, precisions: Sequence[str], backends: Sequence[str]
) -> tuple[str, ...]:
    """The variants that PRECISION and BACKEND ask the gate for; BuildError when the model has none of this
    name."""
    if not {*precisions} <= {*definition.precisions}:
        raise BuildError(
            f"PRECISION must be of {', '.join(definition.precisions)}: got {' '.join(precisions)} "
            f"(field precisions, {definition.path})"
        )
    # What a server without any plan of ours would serve is not left out.
    wanted = {*precisions, definition.default_precision}
    return tuple(name for name in list_others(definition, backends) if name.split()[1] in wanted)


def list_judged(packed: Mapping[str, Any]) -> list[str]:
    """Every variant that an archive was asked for, whatever became of it."""
    # Earlier kits had one backend, and the first of them judged all precisions there were.
    names = packed.get("judged_with") or {**packed.get("accuracy", {}), **packed.get("not_built", {})}
    return [name if " " in name else name_variant(DEFAULT, name) for name in names]


def digest_data(data: DataRequest) -> str:
    """What synthetic inputs are is in the fingerprint, as code."""
    own = (data.calibration, data.evaluation)
    if own == (None, None):
        return "synthetic"
    hashes = "\0".join(hash_data(path) if path else "" for path in own)
    return hashlib.sha256(hashes.encode()).hexdigest()


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


def fingerprint(definition: ModelDefinition, record: dict[str, str]) -> str:
    """SHA-256 over all that decides an archive's bytes but the precisions and what they were judged with."""
    digest = hashlib.sha256()
    for path in [definition.path, *_own_sources()]:
        digest.update(f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name}\0".encode())
        digest.update(path.read_bytes())
    digest.update(f"{record['source']}\0{record['files']}\0".encode())
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


def explain_lacking(plan: BuildPlan, packed: Mapping[str, Any]) -> dict[str, str]:
    """Precision that is asked for → why the archive, fresh as it is, does not hold it as asked."""
    reasons = {name: _explain_one(name, plan, packed) for name in plan.asked}
    return {name: reason for name, reason in reasons.items() if reason}


def _explain_one(name: str, plan: BuildPlan, packed: Mapping[str, Any]) -> str:
    if name not in list_judged(packed):
        return "not asked for before"
    if packed["judged_with"][name] != plan.data:
        return "CALIBRATION or EVAL is not what it was judged with"
    if needs_wide_sums(packed["accuracy"].get(name, {})):
        return "it was calibrated on a CPU that adds products of INT8 in 32 bits; this one adds them in 16"
    refused = name in packed["refused"] and packed["accuracy"].get(name, {}).get("wide_sums") is False
    if refused and has_wide_sums():
        return "it was refused with seven bits, which this CPU does not need"
    # An archive from a machine with AVX2 alone can lack BF16 on a server; a compiler can come later.
    lacking = packed["not_built"].get(name)
    return CHANGED_MEANS if lacking and lacking["means"] != read_means() else ""


def read_means(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """What a precision can need to be built: the CPU's vector and matrix instructions, by the kernel's names,
    and programs of the backends."""
    flags = {word for word in cpuinfo.read_text().split() if word.startswith(("avx", "amx"))}
    tools = {tool for backend in BACKENDS.values() for tool in backend.tools if shutil.which(tool)}
    return sorted(flags | tools)


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
