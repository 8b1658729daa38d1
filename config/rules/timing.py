"""What shall be timed: all that may be served, in the workers' places, all of them busy alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from config.definitions import ModelDefinition
from config.plan import Inputs, Plan
from config.rules.engines import find_need
from config.rules.environment import Launch, plan_timing_environment
from config.rules.requests import PRECISIONS
from config.rules.service import list_sizes
from config.timings import ModelJob, TimingJob
from config.topology import Topology

FEW = (1, 4, 16)
FEW_TEXTS = (1, 8, 24)
"""The ends of a line and its middle."""
FEW_SECONDS = 2.5
"""With warm-up and the last batches that are begun, 10 s a model, engine and precision."""

GRID = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
GRID_SECONDS = 8.0
"""`make tune` plays requests through each batch's own seconds: a hundred batches of the largest size."""

Candidates = Mapping[str, Sequence[str]]
"""Model → variants, engine and precision (variants.list_candidates)."""


def plan_timing_job(
    topology: Topology,
    models: Sequence[ModelDefinition],
    inputs: Inputs,
    plan: Plan,
    candidates: Candidates,
    *,
    grid: bool,
) -> TimingJob:
    """With the workers of a plan for one of the precisions that may be served."""
    return TimingJob(
        settings=_list_settings(topology, models, inputs, plan),
        models={
            model.name: _plan_model(topology, candidates[model.name], _list_batches(model, inputs, grid=grid))
            for model in models
        },
        seconds=GRID_SECONDS if grid else FEW_SECONDS,
        samples=grid,
    )


def _list_settings(
    topology: Topology, models: Sequence[ModelDefinition], inputs: Inputs, plan: Plan
) -> dict[str, Any]:
    """Nothing of what is chosen by the timings."""
    cores = plan.layout.cores_per_worker.value
    bound = inputs.pinning and (topology.owns_cpus or bool(inputs.cores))
    launch = Launch(launched=inputs.pinning, bound=bound)
    return {
        "cpu_model": topology.model_name,
        "slots": plan.layout.worker_cpus.value,
        "threads": cores,
        "off": list(inputs.off),
        "environment": plan_timing_environment(models, plan.libraries, cores, launch),
    }


def _plan_model(topology: Topology, candidates: Sequence[str], batches: tuple[int, ...]) -> ModelJob:
    needs = {variant: find_need(topology, *variant.split()) for variant in candidates}
    return ModelJob(
        variants=tuple(variant for variant in candidates if not needs[variant]),
        batches=batches,
        impossible={variant: f"needs {need}" for variant, need in needs.items() if need},
    )


def list_common(topology: Topology, candidates: Candidates) -> dict[str, str]:
    """Precisions that all models could be served in, the most exact first → the engines for that, as BACKEND
    names them."""
    able = [
        {
            precision: f"{model}={engine}"
            for engine, precision in map(str.split, reversed(variants))
            if not find_need(topology, engine, precision)
        }
        for model, variants in candidates.items()
    ]
    return {
        precision: ",".join(one[precision] for one in able)
        for precision in PRECISIONS
        if all(precision in one for one in able)
    }


def _list_batches(model: ModelDefinition, inputs: Inputs, *, grid: bool) -> tuple[int, ...]:
    sizes = list_sizes(model)
    least, most = min(sizes), max(sizes)
    if grid:
        return tuple(size for size in GRID if least <= size <= most)
    if inputs.profile == "latency":
        return (least,)
    few = FEW_TEXTS if model.token_lengths else (least, *FEW, most)
    return tuple(sorted({size for size in few if least <= size <= most}))
