"""Makes one archive what is asked for: builds it, or adds the precisions it lacks, or leaves it as it is."""

from __future__ import annotations

import json
import platform
import shutil
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from handlers.backends.catalogue import BACKENDS, DEFAULT, INT8
from handlers.definition import (
    DEFINITION_FILE,
    WEIGHTS_FILE,
    Definition,
    Memory,
    Variant,
    read_folder,
    render_definition,
)
from handlers.kit_handler import KitHandler
from handlers.sums import find_damage
from models.accuracy import THREADS
from models.archive import pack_archive, repack_archive, unpack_archive
from models.definition import ModelDefinition
from models.errors import BuildError
from models.expected import answer_example
from models.fresh import (
    BUILD_DISTRIBUTIONS,
    BuildPlan,
    explain_fresh,
    explain_lacking,
    list_others,
    list_unmeasured,
    plan_build,
    read_built,
    read_means,
)
from models.gate.figures import Figures
from models.gate.search import render_tried, tell_best
from models.gate.verdict import describe, judge
from models.handlers import find_handler
from models.memory import measure_memory, run_module
from models.progress import doing
from models.request import BASELINE, DataRequest, WeightsRequest
from models.tasks import find_task
from models.tasks.own import fill_weights
from models.tasks.prepared import Prepared
from models.workspace import open_workspace

ROOT = Path(__file__).parent.parent
WORKSPACES = ROOT / "run" / "build"
PREFIX = "kit_"
"""Of a shipped handler's file in an archive: TorchServe has an image_classifier and a text_classifier of its
own, and where a file of that name cannot be imported it takes those and loses the cause (model_loader.py)."""


def build_archive(
    definition: ModelDefinition,
    request: WeightsRequest,
    *,
    store: Path,
    data: DataRequest | None = None,
    precisions: Sequence[str] | None = None,
    backends: Sequence[str] = (DEFAULT,),
    workspaces: Path = WORKSPACES,
) -> bool:
    """Make `store/<name>.mar` hold FP32 and these precisions, by default all; False when it did already."""
    data = data or DataRequest()
    target = store / f"{definition.name}.mar"
    built = read_built(target)
    packed = built.definition if built else None
    plan = plan_build(definition, request, data, packed, precisions, backends)
    damage = find_damage(target) if target.exists() else ""
    fresh = None if damage else explain_fresh(definition, request, plan, packed)
    lacking = explain_lacking(plan, packed) if fresh and packed else {}
    unmeasured = list_unmeasured(plan, packed) if fresh and packed else []
    if damage:
        print(f"{definition.name}: {target.name} is not as it was built: {damage}", flush=True)
    if fresh and packed and not lacking and not unmeasured:
        print(f"{definition.name}: up to date ({fresh}): {render_precisions(packed)}", flush=True)
        return False
    gains = bool(lacking or unmeasured)
    _introduce(definition, plan, lacking, anew=not gains)
    started = time.monotonic()
    store.mkdir(parents=True, exist_ok=True)
    with open_workspace(workspaces, definition.name) as work:
        make = _gain if gains else _build
        described = make(definition, plan, data, target, work)
    size, seconds = target.stat().st_size >> 20, time.monotonic() - started
    ready = f"{definition.name}: {render_precisions(described)}; weights: {described.weights}; {size} MiB"
    print(f"{ready}; {seconds:.0f} s", flush=True)
    return True


def _introduce(
    definition: ModelDefinition, plan: BuildPlan, lacking: Mapping[str, str], *, anew: bool
) -> None:
    """Say what is about to be done, and why."""
    for precision, reason in lacking.items():
        print(f"{definition.name}: adding {precision} to the archive ({reason})", flush=True)
    if not anew:
        return
    _check_path(definition, plan)
    precisions = ", ".join((BASELINE, *plan.precisions))
    print(f"{definition.name}: building {precisions} (weights asked for: {plan.weights.source})", flush=True)
    kept = [name for name in plan.had if name not in plan.asked]
    if kept:
        print(f"  {definition.name}: {', '.join(kept)} too, which the archive had", flush=True)


def render_precisions(description: Definition) -> str:
    """What an archive can serve, and what became of the others that were asked for."""
    validated = [f"{name}{_render_loss(variant)}" for name, variant in description.variants.items()]
    return ", ".join([BASELINE, *validated])


def _render_loss(variant: Variant) -> str:
    return " (not built)" if variant.not_built else " (rejected)" if variant.rejected else ""


def _check_path(definition: ModelDefinition, plan: BuildPlan) -> None:
    path = plan.weights.path
    if path is not None and not path.exists():
        raise BuildError(
            f"weights are to be read from {path}, which is not there; give WEIGHTS={definition.name}=…, or "
            f"change weights in {definition.path}"
        )


def _build(
    definition: ModelDefinition, plan: BuildPlan, data: DataRequest, target: Path, work: Path
) -> Definition:
    """Everything anew; the description of what was packed."""
    staging = work / "staging"
    staging.mkdir()
    name = definition.name
    with doing(f"{name}: preparing {plan.weights.source} weights"):
        prepared = find_task(definition).prepare(definition, plan.weights, staging)
    _stage_code(staging)
    handler = find_handler(Path(definition.handler).stem, staging)
    description = _describe(definition, prepared, plan, handler)
    _write(description, staging)
    if not (staging / WEIGHTS_FILE).is_file():
        fill_weights(staging)
    with doing(f"{name}: asking FP32 eager for the example's answer"):
        example = prepared.example.model_copy(update={"expected": answer_example(staging)})
    if not example.expected:
        empty = f"the answer to the example is {example.expected}"
        print(f"{name}: {empty}, which proves little; choose another example in model.yaml")
    _write(description.model_copy(update={"example": example}), staging)
    _judge(definition, plan, data, staging, plan.precisions)
    description = _measure(definition, plan, staging)
    requirements = work / "requirements.txt"
    requirements.write_text(render_requirements(handler.libraries), encoding="utf-8")
    file = f"{description.handler}.py"
    if definition.is_own:  # else the archiver would find it twice
        packed = (staging / file).rename(work / file)
    else:
        packed = Path(shutil.copy(ROOT / "handlers" / file, work / f"{PREFIX}{file}"))
    with doing(f"{name}: packing"):
        pack_archive(name=name, staging=staging, handler=packed, requirements=requirements, target=target)
    return description


def _gain(
    definition: ModelDefinition, plan: BuildPlan, data: DataRequest, target: Path, work: Path
) -> Definition:
    """The archive as it is, with the precisions it lacks: only they are validated."""
    staging = work / "staging"
    with doing(f"{definition.name}: unpacking"):
        unpack_archive(target, staging)
    lacking = tuple(explain_lacking(plan, read_folder(staging)))
    for name in lacking:  # a recipe of other data must not outlive a calibration that fails
        backend, precision = name.split()
        for file in BACKENDS[backend].files.get(precision, ()):
            (staging / file).unlink(missing_ok=True)
    _judge(definition, plan, data, staging, lacking)
    description = _measure(definition, plan, staging)
    with doing(f"{definition.name}: packing"):
        repack_archive(staging, target)
    return description


def _judge(
    definition: ModelDefinition, plan: BuildPlan, data: DataRequest, staging: Path, precisions: Sequence[str]
) -> None:
    """Let the gate judge these variants, and write what became of them into the staged description."""
    description = read_folder(staging)
    validated = judge_variants(definition, data, staging, plan.data, names=precisions)
    merged = {**description.variants, **validated}
    # In one order, so that it does not show in which one they were asked for.
    ordered = {name: merged[name] for name in list_others(definition) if name in merged}
    _write(description.model_copy(update={"variants": ordered}), staging)


def _measure(definition: ModelDefinition, plan: BuildPlan, staging: Path) -> Definition:
    """Write what a worker of each variant takes into the staged description, as it will be packed. A variant
    that passed the gate and does not load as a worker loads it cannot be served."""
    description = read_folder(staging)
    memory, variants = dict(description.memory), dict(description.variants)
    for name in list_unmeasured(plan, description):
        try:
            memory[name] = definition.memory or _measure_one(description, name, staging)
        except BuildError as error:
            if name not in variants:
                raise
            print(f"  {description.name} {name}: not built on this machine: {error}", flush=True)
            lost = {"not_built": str(error), "means": tuple(read_means())}
            variants[name] = variants[name].model_copy(update=lost)
    update = {"memory": dict(sorted(memory.items())), "variants": variants}
    description = description.model_copy(update=update)
    _write(description, staging)
    return description


def _measure_one(description: Definition, variant: str, staging: Path) -> Memory:
    with doing(f"{description.name}: measuring what a worker takes, {variant}"):
        found = measure_memory(description.name, staging, variant, batch=description.batch_sizes[-1])
    print(f"  {description.name} {variant}: a worker takes {found.worker_mib} MiB", flush=True)
    return found


def _write(description: Definition, staging: Path) -> None:
    (staging / DEFINITION_FILE).write_text(render_definition(description), encoding="utf-8")


def _stage_code(staging: Path) -> None:
    """The whole `handlers` package: --extra-files copies what is inside the staging folder."""
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(ROOT / "handlers", staging / "handlers", ignore=ignore)


def _describe(
    definition: ModelDefinition, prepared: Prepared, plan: BuildPlan, handler: type[KitHandler]
) -> Definition:
    return Definition(
        name=definition.name,
        handler=Path(definition.handler).stem,
        weights=prepared.weights,
        notes=tuple(prepared.notes),
        labels=tuple(prepared.labels),
        example=prepared.example,
        batch_sizes=definition.batch_sizes,
        precisions=definition.precisions,
        limits=dict(handler.LIMITS),
        freeze=handler.freeze,
        model=prepared.model,
        inputs=plan.inputs,
        origin=plan.origin,
        built_with={"python": platform.python_version(), **{n: version(n) for n in BUILD_DISTRIBUTIONS}},
    )


def judge_variants(
    definition: ModelDefinition, data: DataRequest, staging: Path, digest: str, *, names: Sequence[str]
) -> dict[str, Variant]:
    """What becomes of these, from the gate's process; `digest` is the data's."""
    if not names:
        return {}
    job = {
        "takes": read_folder(staging).example.content_type.partition("/")[0],
        "precisions": list(names),
        "calibration": str(data.calibration or ""),
        "eval": str(data.evaluation or ""),
        "thresholds": definition.accuracy_gate.model_dump(),
    }
    with doing(f"{definition.name}: {_describe_gate(names)}"):
        outcomes = run_module(
            "models.accuracy", str(staging), json.dumps(job),
            environment={"OMP_NUM_THREADS": str(THREADS)},
            failing=f"the precisions of {definition.name} cannot be validated",
        )  # fmt: skip
    return {name: _judge_one(definition, name, digest, outcome) for name, outcome in outcomes.items()}


def _judge_one(definition: ModelDefinition, name: str, digest: str, outcome: Mapping[str, Any]) -> Variant:
    """Says so, too."""
    what, tried = f"  {definition.name} {name}", outcome["tried"]
    if not outcome["figures"]:
        # Says nothing of the model: another machine may build it, see fresh.explain_lacking.
        print(f"{what}: not built on this machine: {outcome['failure']}", flush=True)
        return Variant(data=digest, not_built=outcome["failure"], means=tuple(read_means()))
    figures = Figures(**outcome["figures"])
    reason = judge(figures, definition.accuracy_gate)
    if reason:
        reason = f"{reason}{tell_best(figures.recipe, tried)}"
    for line in render_tried(tried):
        print(f"{what} by {line}", flush=True)
    print(f"{what}: {reason or describe(figures)}", flush=True)
    return Variant(data=digest, accuracy=outcome["figures"], rejected=reason or "", tried=tuple(tried))


def _describe_gate(precisions: Sequence[str]) -> str:
    calibrated = [name for name in precisions if name.endswith(INT8)]
    calibrating = f"calibrating {', '.join(calibrated)}, " if calibrated else ""
    return f"{calibrating}comparing {', '.join(precisions)} with FP32"


def render_requirements(distributions: Sequence[str]) -> str:
    """requirements.txt of an archive: what the worker's Python must have, as built here."""
    names = ("torch", "safetensors", "pydantic", *distributions)
    # Without the local part: a CPU-only build (2.8.0+cpu) is not on the default index.
    return "".join(f"{name}=={version(name).split('+')[0]}\n" for name in names)


def set_build_threads() -> None:
    """A fixed number: sums are made in one order, and random weights do not depend on the cores there are."""
    torch.set_num_threads(THREADS)
