"""Makes one archive what is asked for: builds it, or adds the precisions it lacks, or leaves it as it is."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from handlers.backends.catalogue import BACKENDS, DEFAULT, INT8
from handlers.shared.definition import DEFINITION_FILE
from models.accuracy import THREADS
from models.archive import find_damage, pack_archive, repack_archive, unpack_archive
from models.definition import ModelDefinition
from models.errors import BuildError
from models.expected import write_canary, write_json
from models.fresh import (
    BUILD_DISTRIBUTIONS,
    BuildPlan,
    explain_fresh,
    explain_lacking,
    list_judged,
    list_others,
    plan_build,
    read_archive_definition,
    read_means,
)
from models.gate.figures import Figures, Thresholds
from models.gate.search import render_tried, tell_best
from models.gate.verdict import describe, judge
from models.kinds import find_kind
from models.kinds.prepared import Prepared
from models.progress import doing
from models.request import BASELINE, DataRequest, WeightsRequest
from models.workspace import open_workspace

ROOT = Path(__file__).parent.parent
WORKSPACES = ROOT / "run" / "build"
HANDLER_FIELDS = ("self_check_relative_error", "backends")
"""Fields of a precision that the worker reads; the others concern the canary."""


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
    packed = read_archive_definition(target)
    plan = plan_build(definition, request, data, packed, precisions, backends)
    damage = find_damage(target) if target.exists() else None
    fresh = None if damage else explain_fresh(definition, request, plan, packed)
    lacking = explain_lacking(plan, packed) if fresh and packed else {}
    if damage:
        print(f"{definition.name}: {target.name} is not as it was built: {damage}", flush=True)
    if fresh and packed and not lacking:
        print(f"{definition.name}: up to date ({fresh}): {render_precisions(packed)}", flush=True)
        return False
    _introduce(definition, plan, lacking)
    started = time.monotonic()
    store.mkdir(parents=True, exist_ok=True)
    with open_workspace(workspaces, definition.name) as work:
        make = _gain if lacking else _build
        built = make(definition, plan, data, target, work)
    size, seconds = target.stat().st_size >> 20, time.monotonic() - started
    ready = f"{definition.name}: {render_precisions(built)}; weights: {built['weights']}; {size} MiB"
    print(f"{ready}; {seconds:.0f} s", flush=True)
    return True


def _introduce(definition: ModelDefinition, plan: BuildPlan, lacking: Mapping[str, str]) -> None:
    """Say what is about to be done, and why."""
    for precision, reason in lacking.items():
        print(f"{definition.name}: adding {precision} to the archive ({reason})", flush=True)
    if lacking:
        return
    _check_path(definition, plan)
    precisions = ", ".join((BASELINE, *plan.precisions))
    print(f"{definition.name}: building {precisions} (weights asked for: {plan.weights.source})", flush=True)
    kept = [name for name in plan.had if name not in plan.asked]
    if kept:
        print(f"  {definition.name}: {', '.join(kept)} too, which the archive had", flush=True)


def render_precisions(description: Mapping[str, Any]) -> str:
    """What an archive can serve, and what became of the others that were asked for."""
    lost = dict.fromkeys(description["not_built"], "not built")
    lost |= dict.fromkeys(description["refused"], "refused")
    judged = [f"{name} ({lost[name]})" if name in lost else name for name in list_judged(description)]
    return ", ".join([BASELINE, *judged])


def _check_path(definition: ModelDefinition, plan: BuildPlan) -> None:
    path = plan.weights.path
    if path is not None and not path.exists():
        raise BuildError(
            f"the archive must be built again, from {path} as before, which is gone; "
            f"give WEIGHTS={definition.name}=…"
        )


def _build(
    definition: ModelDefinition, plan: BuildPlan, data: DataRequest, target: Path, work: Path
) -> dict[str, Any]:
    """Everything anew; the description of what was packed."""
    staging = work / "staging"
    staging.mkdir()
    name = definition.name
    with doing(f"{name}: preparing {plan.weights.source} weights"):
        prepared = find_kind(definition.kind)(definition, plan.weights, staging)
    _stage_code(staging)
    description = _describe(definition, prepared, plan)
    write_json(staging / DEFINITION_FILE, description)
    with doing(f"{name}: asking FP32 for the canary's answer"):
        write_canary(definition, prepared, staging)
    description = _judge(definition, plan, data, staging, plan.precisions)
    requirements = work / "requirements.txt"
    requirements.write_text(render_requirements(prepared.distributions), encoding="utf-8")
    handler = ROOT / "handlers" / f"{definition.handler}.py"
    with doing(f"{name}: packing"):
        pack_archive(name=name, staging=staging, handler=handler, requirements=requirements, target=target)
    return description


def _gain(
    definition: ModelDefinition, plan: BuildPlan, data: DataRequest, target: Path, work: Path
) -> dict[str, Any]:
    """The archive as it is, with the precisions it lacks: only they are judged."""
    staging = work / "staging"
    with doing(f"{definition.name}: unpacking"):
        unpack_archive(target, staging)
    packed = json.loads((staging / DEFINITION_FILE).read_text(encoding="utf-8"))
    lacking = tuple(explain_lacking(plan, packed))
    for name in lacking:  # a recipe of other data must not outlive a calibration that fails
        backend, precision = name.split()
        for file in BACKENDS[backend].files.get(precision, ()):
            (staging / file).unlink(missing_ok=True)
    description = _judge(definition, plan, data, staging, lacking)
    with doing(f"{definition.name}: packing"):
        repack_archive(staging, target)
    return description


def _judge(
    definition: ModelDefinition, plan: BuildPlan, data: DataRequest, staging: Path, precisions: Sequence[str]
) -> dict[str, Any]:
    """Let the gate judge these precisions, and write what became of them into the staged description."""
    file = staging / DEFINITION_FILE
    description = json.loads(file.read_text(encoding="utf-8"))
    outcomes = judge_precisions(definition, data, staging, precisions=precisions)
    outcomes["judged_with"] = dict.fromkeys(precisions, plan.data)
    for field, found in outcomes.items():
        kept = {name: one for name, one in description[field].items() if name not in precisions}
        # In one order, so that it does not show in which one they were asked for.
        merged = {**kept, **found}
        description[field] = {name: merged[name] for name in list_others(definition) if name in merged}
    write_json(file, description)
    return description


def _stage_code(staging: Path) -> None:
    """The whole `handlers` package: --extra-files copies what is inside the staging folder."""
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(ROOT / "handlers", staging / "handlers", ignore=ignore)


def _describe(definition: ModelDefinition, prepared: Prepared, plan: BuildPlan) -> dict[str, Any]:
    return {
        "name": definition.name,
        "inputs": plan.inputs,
        "request": plan.record,
        "handler": definition.handler,
        "weights": prepared.weights,
        "notes": list(prepared.notes),
        "batch_sizes": list(definition.batch_sizes),
        "default_precision": definition.default_precision,
        "precisions": {
            name: {key: recipe[key] for key in HANDLER_FIELDS if key in recipe}
            for name, recipe in definition.precisions.items()
        },
        "refused": {},
        "not_built": {},
        "accuracy": {},
        "judged_with": {},
        "tried": {},
        "model": prepared.model,
        "built_with": {"python": platform.python_version(), **{n: version(n) for n in BUILD_DISTRIBUTIONS}},
    }


def judge_precisions(
    definition: ModelDefinition, data: DataRequest, staging: Path, *, precisions: Sequence[str]
) -> dict[str, Any]:
    """The description's `accuracy`, `refused`, `not_built` and `tried` of these, from the gate's process."""
    description: dict[str, Any] = {"accuracy": {}, "refused": {}, "not_built": {}, "tried": {}}
    if not precisions:
        return description
    job = {
        "kind": definition.kind,
        "precisions": list(precisions),
        "calibration": str(data.calibration or ""),
        "eval": str(data.evaluation or ""),
        "thresholds": definition.accuracy_gate,
    }
    with doing(f"{definition.name}: {_describe_gate(precisions)}"):
        outcomes = _run_gate(definition.name, staging, job)
    for name, outcome in outcomes.items():
        if not outcome["figures"]:
            # Says nothing of the model: another machine may build it, see fresh.explain_lacking.
            description["not_built"][name] = {"cause": outcome["failure"], "means": read_means()}
            print(f"  {definition.name} {name}: not built on this machine: {outcome['failure']}", flush=True)
            continue
        description["accuracy"][name] = outcome["figures"]
        tried = outcome["tried"]
        if tried:
            description["tried"][name] = tried
        figures = Figures(**outcome["figures"])
        reason = judge(figures, Thresholds(**definition.accuracy_gate))
        if reason:
            reason = description["refused"][name] = f"{reason}{tell_best(figures.recipe, tried)}"
        for line in render_tried(tried):
            print(f"  {definition.name} {name} by {line}", flush=True)
        print(f"  {definition.name} {name}: {reason or describe(figures)}", flush=True)
    return description


def _describe_gate(precisions: Sequence[str]) -> str:
    calibrated = [name for name in precisions if name.endswith(INT8)]
    calibrating = f"calibrating {', '.join(calibrated)}, " if calibrated else ""
    return f"{calibrating}comparing {', '.join(precisions)} with FP32"


def _run_gate(name: str, staging: Path, job: dict[str, Any]) -> dict[str, Any]:
    command = [sys.executable, "-m", "models.accuracy", str(staging), json.dumps(job)]
    # Else a backend may start a pool of compilers: 600 MiB for nothing.
    environment = {**os.environ, "OMP_NUM_THREADS": str(THREADS), "TORCH_WARM_POOL": "0"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        cause = errors[-1].removeprefix("error: ") if errors else done.stderr[-1500:]
        raise BuildError(f"the precisions of {name} cannot be judged: {cause}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def render_requirements(distributions: tuple[str, ...]) -> str:
    """requirements.txt of an archive: what the worker's Python must have, as built here."""
    names = ("torch", "safetensors", *distributions)
    # Without the local part: a CPU-only build (2.8.0+cpu) is not on the default index.
    return "".join(f"{name}=={version(name).split('+')[0]}\n" for name in names)


def set_build_threads() -> None:
    """A fixed number: sums are made in one order, and random weights do not depend on the cores there are."""
    torch.set_num_threads(THREADS)
