"""Decides what a build has to do: what an archive was built from, and holds, against what is asked for now.

Two things are told apart. What everything in an archive comes of (weights, definition, code, versions) makes
its fingerprint: another one means to build anew. What a precision was validated with (CALIBRATION, EVAL)
stands beside that precision: with other data it alone is validated again, once it is asked for.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from handlers.backends.catalogue import BACKENDS, DEFAULT, has_wide_sums, name_variant, needs_wide_sums
from handlers.definition import Definition, NotOursError, Origin, Packed, Variant, read_packed
from models.definition import ModelDefinition
from models.errors import BuildError, DownloadError
from models.files import hash_data, hash_user_files, list_travelling
from models.request import BASELINE, DataRequest, WeightsRequest
from models.tasks import find_task

ROOT = Path(__file__).parent.parent
NOT_BUILDING = ("__main__.py", "new.py", "progress.py", "timing.py", "timings.py")
"""Modules of this folder that read archives, show, or only call those that make them."""
CHANGED_MEANS = "it could not be built before; the CPU, or which programs there are, has changed"
BUILD_DISTRIBUTIONS = ("torch", "torchvision", "transformers", "tokenizers", "safetensors", "numpy", "pillow")


@dataclass(frozen=True, kw_only=True)
class BuildPlan:
    """What an archive is to be built from."""

    weights: WeightsRequest
    origin: Origin
    """The request as the archive keeps it."""
    inputs: str
    """The fingerprint."""
    asked: tuple[str, ...]
    """The variants (backend and precision) to be validated that were requested, in the definition's
    order; what needs no validation is there without."""
    had: tuple[str, ...]
    """Those that were asked for at an earlier build. They are kept, and built anew with the rest: a server
    elsewhere may be started with them, and would find an archive that lost what it held."""
    precisions: tuple[str, ...]
    """Both, in the definition's order: all to be validated in an archive that is built anew."""
    served: tuple[str, ...]
    """Those that are asked for or were, FP32 always: what a worker of each takes must be known."""
    data: str
    """What precisions are calibrated with and validated on, by its hash."""


def read_built(archive: Path) -> Packed | None:
    """What an archive was built from, and holds; None when it is missing or not of this kit."""
    try:
        return read_packed(archive)
    except NotOursError:
        return None


def plan_build(
    definition: ModelDefinition,
    request: WeightsRequest,
    data: DataRequest,
    packed: Definition | None,
    precisions: Sequence[str] | None = None,
    backends: Sequence[str] = (DEFAULT,),
) -> BuildPlan:
    """What is asked for, by default all precisions; where WEIGHTS is not given, what the packed archive was
    asked for."""
    origin = _trace(request) if request.source else _recall(definition, packed)
    path = Path(origin.path) if origin.path else None
    asked = list_asked(definition, precisions or [*definition.precisions], backends)
    had = tuple(name for name in list_others(definition) if packed and name in packed.variants)
    return BuildPlan(
        weights=replace(request, source=origin.source, path=path),
        origin=origin,
        inputs=fingerprint(definition, origin),
        asked=asked,
        had=had,
        precisions=tuple(name for name in list_others(definition) if name in {*asked, *had}),
        served=_list_served(definition, precisions or [*definition.precisions], backends, packed),
        data=digest_data(data),
    )


def list_others(definition: ModelDefinition, backends: Iterable[str] = BACKENDS) -> list[str]:
    """All variants that have to be validated."""
    return [
        name_variant(backend, precision)
        for backend in backends
        for precision in definition.precisions
        if precision in BACKENDS[backend].flags and BACKENDS[backend].must_be_validated(precision)
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
    wanted = {*precisions, BASELINE}
    return tuple(name for name in list_others(definition, backends) if name.split()[1] in wanted)


def _list_served(
    definition: ModelDefinition,
    precisions: Sequence[str],
    backends: Sequence[str],
    packed: Definition | None,
) -> tuple[str, ...]:
    asked = {
        name_variant(backend, precision)
        for backend in backends
        for precision in (BASELINE, *precisions)
        if precision in BACKENDS[backend].flags
    }
    had = {*packed.memory, *packed.variants} if packed else set[str]()
    return tuple(sorted(asked | had))


def digest_data(data: DataRequest) -> str:
    """What synthetic inputs are is in the fingerprint, as code."""
    own = (data.calibration, data.evaluation)
    if own == (None, None):
        return "synthetic"
    hashes = "\0".join(hash_data(path) if path else "" for path in own)
    return hashlib.sha256(hashes.encode()).hexdigest()


def _trace(request: WeightsRequest) -> Origin:
    if request.path is None:
        return Origin(source=request.source, path="", files="")
    if not request.path.exists():
        return Origin(source=request.source, path=str(request.path), files="")
    return Origin(source=request.source, path=str(request.path), files=hash_user_files(request.path))


def _recall(definition: ModelDefinition, packed: Definition | None) -> Origin:
    """As built; what was built from a path comes from the one that model.yaml has now."""
    local = definition.local_weights
    if local and (packed is None or packed.origin.source == "path"):
        return _trace(WeightsRequest(source="path", path=local))
    origin = packed.origin if packed else _trace(WeightsRequest(source="auto"))
    path = Path(origin.path) if origin.path else None
    if path is None or not path.exists():
        return origin
    return _trace(WeightsRequest(source=origin.source, path=path))


def fingerprint(definition: ModelDefinition, origin: Origin) -> str:
    """SHA-256 over all that decides an archive's bytes but the precisions and what validated them."""
    digest = hashlib.sha256()
    beside = list_travelling(definition.folder) if definition.is_own else []
    own = [file for one in beside for file in (one, *sorted(one.rglob("*"))) if file.is_file()]
    for path in [definition.path, *(file for file in own if file.suffix != ".pyc"), *_own_sources()]:
        digest.update(f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name}\0".encode())
        digest.update(path.read_bytes())
    digest.update(f"{origin.source}\0{origin.files}\0".encode())
    for name in BUILD_DISTRIBUTIONS:
        digest.update(f"{name}={version(name)}\0".encode())
    return digest.hexdigest()


def _own_sources() -> list[Path]:
    building = [file for file in (ROOT / "models").rglob("*.py") if file.name not in NOT_BUILDING]
    return sorted([*(ROOT / "handlers").rglob("*.py"), *building])


def explain_fresh(
    definition: ModelDefinition, request: WeightsRequest, plan: BuildPlan, packed: Definition | None
) -> str | None:
    """Why the archive stays as it is; None when it must be built."""
    if packed is None or packed.inputs != plan.inputs:
        return None
    weights = f"weights: {packed.weights}"
    if packed.fell_back and definition.public:
        failure = _fetch_now(definition)
        return failure and f"{weights}; pretrained weights still cannot be had: {failure}"
    if not request.source and plan.weights.source != "auto":
        return f"{weights}; WEIGHTS is not given: kept as WEIGHTS={_name(plan)} built it"
    return weights


def explain_lacking(plan: BuildPlan, packed: Definition) -> dict[str, str]:
    """Precision that is asked for → why the archive, fresh as it is, does not hold it with these data."""
    reasons = {name: _explain_one(packed.variants.get(name), plan) for name in plan.asked}
    return {name: reason for name, reason in reasons.items() if reason}


def list_unmeasured(plan: BuildPlan, packed: Definition) -> list[str]:
    """Variants that can be served and of which nobody has measured what a worker takes."""
    lost = {name for name, one in packed.variants.items() if one.lost}
    return [name for name in plan.served if name not in {*packed.memory, *lost}]


def _explain_one(known: Variant | None, plan: BuildPlan) -> str:
    if known is None:
        return "not asked for before"
    if known.data != plan.data:
        return "CALIBRATION or EVAL is not what it was validated with"
    accuracy = known.accuracy or {}
    if needs_wide_sums(accuracy):
        return "it was calibrated on a CPU that adds products of INT8 in 32 bits; this one adds them in 16"
    if known.rejected and accuracy.get("wide_sums") is False and has_wide_sums():
        return "it was rejected with seven bits, which this CPU does not need"
    # An archive from a machine with AVX2 alone can lack BF16 on a server; a compiler can come later.
    return CHANGED_MEANS if known.not_built and known.means != tuple(read_means()) else ""


def read_means(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """What a precision can need to be built: the CPU's vector and matrix instructions, by the kernel's names,
    and programs of the backends."""
    flags = {word for word in cpuinfo.read_text().split() if word.startswith(("avx", "amx"))}
    tools = {tool for backend in BACKENDS.values() for tool in backend.tools if shutil.which(tool)}
    return sorted(flags | tools)


def _fetch_now(definition: ModelDefinition) -> str | None:
    """None once the pretrained weights are in the cache, else why they are not."""
    try:
        find_task(definition).fetch_public(definition)
    except DownloadError as error:
        return str(error)
    return None


def _name(plan: BuildPlan) -> str:
    return plan.origin.path or plan.weights.source
