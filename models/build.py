"""Builds one archive unless it is fresh: prepare the parts, let FP32 eager answer the canary, pack."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from handlers.shared.options import OPTIONAL_STEPS, LoadOptions
from handlers.shared.runtime import load_runtime
from models.accuracy import THREADS
from models.archive import find_damage, pack_archive
from models.classifiers import load_classifier
from models.definition import ModelDefinition
from models.errors import BuildError
from models.fresh import (
    BUILD_DISTRIBUTIONS,
    BuildPlan,
    explain_fresh,
    explain_retry,
    plan_build,
    read_archive_definition,
    read_cpu_features,
)
from models.gate.figures import Figures, Thresholds
from models.gate.search import render_tried, tell_best
from models.gate.verdict import describe, judge
from models.kinds import Prepared, find_kind
from models.progress import doing
from models.request import DataRequest, WeightsRequest
from models.workspace import open_workspace

ROOT = Path(__file__).parent.parent
WORKSPACES = ROOT / "run" / "build"
HANDLER_FIELDS = ("self_check_relative_error", "auto_kernel_selection")
"""Fields of a precision that the worker reads; the others concern the canary."""
SIGNIFICANT_DIGITS = 4
"""Of the canary's expected probabilities: below the tolerance, above the last bits of another CPU's sums."""


def build_archive(
    definition: ModelDefinition,
    request: WeightsRequest,
    *,
    store: Path,
    data: DataRequest | None = None,
    workspaces: Path = WORKSPACES,
) -> bool:
    """Build `store/<name>.mar` unless it is fresh; True when it was built."""
    data = data or DataRequest()
    target = store / f"{definition.name}.mar"
    packed = read_archive_definition(target)
    plan = plan_build(definition, request, data, packed)
    damage = find_damage(target) if target.exists() else None
    fresh = explain_fresh(definition, request, plan, packed)
    retry = explain_retry(packed or {})
    if damage:
        print(f"{definition.name}: {target.name} is not as it was built: {damage}", flush=True)
    elif fresh and retry:
        print(f"{definition.name}: {retry}", flush=True)
    elif fresh:
        print(f"{definition.name}: up to date ({fresh})", flush=True)
        return False
    _check_path(definition, plan)
    print(f"{definition.name}: building (weights asked for: {plan.weights.source})", flush=True)
    started = time.monotonic()
    store.mkdir(parents=True, exist_ok=True)
    with open_workspace(workspaces, definition.name) as work:
        weights = _build(definition, plan, data, target, work)
    size = target.stat().st_size >> 20
    print(
        f"{definition.name}: weights: {weights}; {size} MiB; {time.monotonic() - started:.0f} s", flush=True
    )
    return True


def _check_path(definition: ModelDefinition, plan: BuildPlan) -> None:
    path = plan.weights.path
    if path is not None and not path.exists():
        raise BuildError(
            f"the archive must be built again, from {path} as before, which is gone; "
            f"give WEIGHTS={definition.name}=…"
        )


def _build(definition: ModelDefinition, plan: BuildPlan, data: DataRequest, target: Path, work: Path) -> str:
    staging = work / "staging"
    staging.mkdir()
    name = definition.name
    with doing(f"{name}: preparing {plan.weights.source} weights"):
        prepared = find_kind(definition.kind)(definition, plan.weights, staging)
    _stage_code(staging)
    description = _describe(definition, prepared, plan)
    _write_json(staging / "definition.json", description)
    with doing(f"{name}: asking FP32 for the canary's answer"):
        _write_canary(definition, prepared, staging)
    description |= judge_precisions(definition, data, staging)
    _write_json(staging / "definition.json", description)
    requirements = work / "requirements.txt"
    requirements.write_text(render_requirements(prepared.distributions), encoding="utf-8")
    handler = ROOT / "handlers" / f"{definition.handler}.py"
    with doing(f"{name}: packing"):
        pack_archive(name=name, staging=staging, handler=handler, requirements=requirements, target=target)
    return prepared.weights


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
        "model": prepared.model,
        "built_with": {"python": platform.python_version(), **{n: version(n) for n in BUILD_DISTRIBUTIONS}},
    }


def judge_precisions(definition: ModelDefinition, data: DataRequest, staging: Path) -> dict[str, Any]:
    """The description's `accuracy`, `refused`, `not_built` and `tried`, from the gate's own process."""
    others = [name for name in definition.precisions if name != "fp32"]
    description: dict[str, Any] = {"accuracy": {}, "refused": {}, "not_built": {}, "tried": {}}
    if not others:
        return description
    job = {
        "kind": definition.kind,
        "precisions": others,
        "calibration": str(data.calibration or ""),
        "eval": str(data.evaluation or ""),
        "thresholds": definition.accuracy_gate,
    }
    with doing(f"{definition.name}: {_describe_gate(others)}"):
        outcomes = _run_gate(definition.name, staging, job)
    for name, outcome in outcomes.items():
        if not outcome["figures"]:
            # Says nothing of the model: another CPU may build it, see fresh.explain_retry.
            description["not_built"][name] = {"cause": outcome["failure"], "cpu": read_cpu_features()}
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


def _describe_gate(precisions: list[str]) -> str:
    calibrating = "calibrating int8, " if "int8" in precisions else ""
    return f"{calibrating}comparing {', '.join(precisions)} with FP32"


def _run_gate(name: str, staging: Path, job: dict[str, Any]) -> dict[str, Any]:
    command = [sys.executable, "-m", "models.accuracy", str(staging), json.dumps(job)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(THREADS)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        cause = errors[-1].removeprefix("error: ") if errors else done.stderr[-1500:]
        raise BuildError(f"the precisions of {name} cannot be judged: {cause}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _write_canary(definition: ModelDefinition, prepared: Prepared, staging: Path) -> None:
    canary: dict[str, Any] = {
        "file": prepared.canary_file,
        "content_type": prepared.canary_content_type,
        "tolerance": {
            name: {"relative": recipe["canary_relative"], "absolute": recipe["canary_absolute"]}
            for name, recipe in definition.precisions.items()
        },
    }
    # Written twice: the handler that gives the expected answer reads the file's name from it.
    _write_json(staging / "canary.json", canary)
    expected = answer_canary(staging)
    _write_json(staging / "canary.json", {**canary, "expected": expected})


def answer_canary(staging: Path) -> dict[str, float]:
    """Label → probability that the packed handler answers in eager FP32, best first, at most five."""
    classifier = load_classifier(staging)
    definition = classifier.definition
    options = LoadOptions(precision="fp32", ipex=False, threads=None, off=frozenset(OPTIONAL_STEPS))
    runtime = load_runtime(classifier, options)
    reply = runtime.predict([(staging / definition.canary["file"]).read_bytes()])[0]
    if reply.status != 200:
        raise BuildError(f"the canary of {definition.name} is refused: {reply.body.decode()}")
    return _expected(json.loads(reply.body))


def _expected(answer: Any) -> dict[str, float]:
    pairs = (
        list(answer["probabilities"].items())
        if isinstance(answer, dict)
        else [(one["label"], one["probability"]) for one in answer]
    )
    # ImageNet has two classes "crane" and two "maillot": by its name such an answer cannot be told apart.
    times = Counter(label for label, _ in pairs)
    best = sorted((pair for pair in pairs if times[pair[0]] == 1), key=lambda pair: -pair[1])[:5]
    if not best:
        raise BuildError(f"the canary's best classes must have different names: got {', '.join(times)}")
    return {label: float(f"{value:.{SIGNIFICANT_DIGITS}g}") for label, value in best}


def render_requirements(distributions: tuple[str, ...]) -> str:
    """requirements.txt of an archive: what the worker's Python must have, as built here."""
    names = ("torch", "safetensors", *distributions)
    # Without the local part: a CPU-only build (2.8.0+cpu) is not on the default index.
    return "".join(f"{name}=={version(name).split('+')[0]}\n" for name in names)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")


def set_build_threads() -> None:
    """One fixed order of summation, so that random weights do not depend on the number of cores."""
    torch.set_num_threads(1)
