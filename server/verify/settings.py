"""Checks the numbers and variables a worker was started with: thread counts and environment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from config.plan import Plan, Setting
from server.verify.evidence import WorkerEvidence
from server.verify.findings import Finding, compare, need_describe

OPTIONS_VARIABLE = "CPU_KIT_OPTIONS"
# The worker runs one model call at a time; more inter-op threads would only compete for its cores.
_INTER_OP_THREADS = 1


def read_options(plan: Plan, model: str) -> dict[str, Any]:
    """What the plan tells the handler of this model."""
    setting = plan.environment.get(OPTIONS_VARIABLE)
    options = json.loads(str(setting.value)) if setting else {}
    return dict(options.get(model, {}))


def count_threads(plan: Plan, model: str) -> int:
    """What the plan gives a worker to compute with."""
    return int(read_options(plan, model).get("threads", plan.layout.cores_per_worker.value))


@need_describe("threads")
def check_threads(plan: Plan, seen: WorkerEvidence) -> Finding:
    """OpenMP and PyTorch use as many threads as the worker has cores."""
    cores = count_threads(plan, seen.model)
    decided = {**plan.environment, **plan.worker_environment}.get("OMP_NUM_THREADS")
    omp = str(decided.value) if decided else "not set"
    threads = (seen.describe or {}).get("threads") or {}
    live = (seen.environment or {}).get("OMP_NUM_THREADS", "not set")
    return compare(
        "threads",
        _render_threads(omp, cores, _INTER_OP_THREADS),
        _render_threads(live, threads.get("intra_op", "?"), threads.get("inter_op", "?")),
        evidence="/proc/PID/environ, describe",
        cure="OMP_NUM_THREADS is set by the launcher, the others by the handler: make stop && make serve",
    )


def _render_threads(omp: Any, intra_op: Any, inter_op: Any) -> str:
    return f"OMP_NUM_THREADS {omp}, intra-op {intra_op}, inter-op {inter_op}"


@need_describe("limits")
def check_limits(plan: Plan, seen: WorkerEvidence) -> Finding:
    """What one request may cost, as the handler applies it."""
    asked = {name: setting.value for name, setting in plan.models[seen.model].limits.items()}
    if not asked:
        return compare("limits", "the handler's own", "the handler's own", evidence="the plan", cure="")
    live = (seen.describe or {}).get("limits") or {}
    got = {name: live.get(name, "not known") for name in asked}
    cure = f"{OPTIONS_VARIABLE} did not reach the handler, or the archive is older: make stop && make serve"
    return compare("limits", _render_limits(asked), _render_limits(got), evidence="describe", cure=cure)


def _render_limits(limits: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(limits.items()))


def check_environment(plan: Plan, seen: WorkerEvidence) -> Finding:
    """Every variable of the plan is in the worker's environment with its value."""
    asked = {**plan.environment, **plan.worker_environment}
    evidence = "/proc/PID/environ"
    if seen.environment is None:
        return compare(
            "environment",
            f"{len(asked)} variables",
            "cannot be read",
            evidence=evidence,
            cure="run as its user",
        )
    wrong = [
        text for name, setting in asked.items() if (text := _find_difference(name, setting, seen.environment))
    ]
    got = "; ".join(wrong) if wrong else f"{len(asked)} variables"
    cure = "something between the plan and the worker changed them: make stop && make serve"
    return compare(
        "environment", f"{len(asked)} variables", got, evidence=evidence, cure=cure, same=not wrong
    )


def _find_difference(name: str, setting: Setting, environment: Any) -> str | None:
    live = environment.get(name)
    if isinstance(setting.value, list):  # LD_PRELOAD: these paths, among others perhaps
        missing = [path for path in setting.value if path not in (live or "").split(":")]
        return f"{name} lacks {', '.join(missing)}" if missing else None
    if live == str(setting.value):
        return None
    return f"{name}: asked {setting.value}, got {'nothing' if live is None else live}"
