"""What a worker made of its model and its settings: backend, precision, graph, threads, environment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from config.plan import Plan, Setting
from handlers.backends.catalogue import BACKENDS
from server.verify.evidence import (
    RESTART,
    TRY_AGAIN,
    Finding,
    WorkerEvidence,
    cannot_check,
    compare,
    need_describe,
)

# Not steps: packing has a check of its own; that buckets reached the worker is seen in CPU_KIT_OPTIONS.
_NO_STEPS = {"packing", "buckets"}
_LOG_CURE = "see the worker's `loaded` line in logs/model_log.log, then make stop && make serve"


def check_process(_plan: Plan, seen: WorkerEvidence) -> Finding:
    """The process TorchServe names is there; nothing else can be said of one that is not."""
    got = "gone" if seen.thread_cpus is None else "stopped" if seen.stopped else "alive"
    cure = f"TorchServe starts a dead worker again within 30 s; if it does not: {RESTART}"
    if seen.stopped:
        cure = f"somebody stopped it: kill -CONT {seen.pid}, or {RESTART}"
    return compare("process", "alive", got, evidence="/proc/PID/task, /proc/PID/stat", cure=cure)


def check_describe(_plan: Plan, seen: WorkerEvidence) -> Finding:
    """The worker answers describe; everything read from there is a difference otherwise."""
    got = "answered" if seen.describe else seen.describe_problem or "no answer"
    evidence = "GET /models/<name>?customized=true"
    if not seen.describe and seen.excuse:
        return cannot_check("describe", "answered", seen.excuse, evidence=evidence, cure=TRY_AGAIN)
    cure = f"the worker is stuck: try again, else {RESTART}"
    return compare("describe", "answered", got, evidence=evidence, cure=cure)


@need_describe("archive")
def check_archive(_plan: Plan, seen: WorkerEvidence) -> Finding:
    """The worker serves the archive that is in the model store now."""
    if not seen.archive_id:
        gone = "gone from the store, or damaged"
        cure = "the running workers have copies of their own, but nothing starts again: make models"
        return compare("archive", "in the store", gone, evidence="the model store", cure=cure)
    got = str(_facts(seen).get("archive_id", "unknown"))
    same = got == seen.archive_id
    cure = "the archive was built again after the start: make stop && make serve"
    return compare(
        "archive", seen.archive_id[:12], got[:12], evidence="describe, definition.json", cure=cure, same=same
    )


@need_describe("precision")
def check_precision(plan: Plan, seen: WorkerEvidence) -> Finding:
    """The model computes in the planned precision."""
    asked = str(plan.models[seen.model].precision.value)
    got = str(_facts(seen).get("precision", "unknown"))
    cure = f"{asked} did not reach the handler (CPU_KIT_OPTIONS): {RESTART}"
    return compare("precision", asked, got, evidence="describe", cure=cure)


@need_describe("backend")
def check_backend(plan: Plan, seen: WorkerEvidence) -> Finding:
    """The planned backend is the one that was loaded."""
    backend = _facts(seen).get("backend") or {}
    name, version = backend.get("name", "unknown"), backend.get("version")
    asked = str(plan.models[seen.model].backend.value)
    return compare(
        "backend",
        asked,
        f"{name} ({version})" if version else f"{name}, not installed",
        evidence="describe",
        cure=f"{asked} did not reach the handler (CPU_KIT_OPTIONS): {RESTART}",
        same=name == asked and bool(version),
    )


@need_describe("load steps")
def check_steps(plan: Plan, seen: WorkerEvidence) -> Finding:
    """Every load step was applied, but for those the plan switches off or the model has no use for."""
    off = set(plan_off(plan, seen.model)) - _NO_STEPS
    wrong = [
        f"{step['name']} {step['status']}" + (f" ({step['reason']})" if step.get("reason") else "")
        for step in _facts(seen).get("steps", ())
        if step["status"] not in ("off" if step["name"] in off else "applied", "not applicable")
    ]
    steps = _facts(seen).get("steps", ())
    got = "; ".join(wrong) if wrong else "all applied" if steps else "unknown"
    asked = f"all but {', '.join(sorted(off))}" if off else "all applied"
    got = asked if steps and not wrong else got
    return compare("load steps", asked, got, evidence=f"describe ({len(steps)} steps)", cure=_LOG_CURE)


def plan_off(plan: Plan, model: str) -> tuple[str, ...]:
    """What the plan switches off."""
    off = [*read_options(plan, model).get("off", ())]
    if "trace" in off and "freeze" not in off:  # only a traced model can be frozen
        off.append("freeze")
    return tuple(off)


@need_describe("graph")
def check_graph(plan: Plan, seen: WorkerEvidence) -> Finding:
    """What executes is the planned backend's, in the planned precision."""
    graph = _facts(seen).get("graph") or {}
    proof = BACKENDS[str(plan.models[seen.model].backend.value)].judge(
        graph,
        precision=str(plan.models[seen.model].precision.value),
        threads=count_threads(plan, seen.model),
        off=frozenset(plan_off(plan, seen.model)),
    )
    return compare(
        "graph",
        proof.expected,
        proof.actual,
        evidence=f"describe ({len(graph.get('operators') or ())} kinds of operators in the executed graph)",
        cure=_LOG_CURE,
        same=proof.good,
    )


@need_describe("channels_last")
def check_channels_last(plan: Plan, seen: WorkerEvidence) -> Finding:
    """Convolution weights and input are channels_last, or not where that is switched off."""
    found = _facts(seen).get("memory_format") or {}
    if found.get("applicable") is False:
        return compare("channels_last", "not applicable", "not applicable", evidence="describe", cure="")
    total, done, layout = (found.get(name) for name in ("convolutions", "channels_last_weights", "input"))
    got = f"{done} of {total} convolutions, input {layout}" if found else "unknown"
    if "channels_last" in plan_off(plan, seen.model):
        # Weights of 1×1 kernels count as both layouts, so some always look done.
        asked, same = "off: not all, input contiguous", done != total and layout == "contiguous"
    else:
        # A detector makes its batch of images itself.
        good = layout in ("channels_last", "not 4-D")
        asked, same = "all convolutions, input", bool(total) and done == total and good
    return compare("channels_last", asked, got, evidence="describe", cure=_LOG_CURE, same=same)


@need_describe("packing")
def check_packing(plan: Plan, seen: WorkerEvidence) -> Finding:
    """Texts share rows, where the model allows it and the plan does not switch it off."""
    found = _facts(seen).get("packing") or {}
    if found.get("applicable") is False:
        why = f"not applicable: {found.get('reason')}"
        return compare("packing", why, why, evidence="describe", cure="")
    asked = "off" if _NO_STEPS & set(plan_off(plan, seen.model)) else "on"
    got = "unknown" if "on" not in found else "on" if found["on"] else "off"
    share = (_facts(seen).get("packing_efficiency") or {}).get("share")
    evidence = f"describe (packing efficiency {share})"
    return compare("packing", asked, got, evidence=evidence, cure=_LOG_CURE)


@need_describe("self-check")
def check_self_check(_plan: Plan, seen: WorkerEvidence) -> Finding:
    """The optimised model gave the eager model's answers when it was loaded."""
    found = _facts(seen).get("self_check") or {}
    error, tolerance = found.get("relative_error"), found.get("tolerance")
    if not isinstance(error, float | int) or not isinstance(tolerance, float | int):
        return compare(
            "self-check", "error within tolerance", "unknown", evidence="describe", cure=_LOG_CURE, same=False
        )
    return compare(
        "self-check",
        f"error ≤ {tolerance:.3g}",
        f"{error:.2g}",
        evidence="describe (against eager FP32)",
        cure="serve with PRECISION=fp32, or check the weights",
        same=error <= tolerance,
    )


def _facts(seen: WorkerEvidence) -> Mapping[str, Any]:
    return seen.describe or {}


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
        got, cure = "cannot be read", "run as its user"
        return compare("environment", f"{len(asked)} variables", got, evidence=evidence, cure=cure)
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
