"""What shall be timed: each precision that may be served, in the workers' places, all of them busy alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from config.definitions import ModelDefinition
from config.plan import Inputs, Plan
from config.rules import requests
from config.rules.engines import choose_engines, find_need
from config.rules.environment import plan_timing_environment
from config.rules.service import list_sizes
from config.timings import ModelJob, TimingJob
from config.topology import Topology

FEW = (1, 4, 16)
FEW_TEXTS = (1, 8, 24)
"""The ends of a line and its middle."""
FEW_SECONDS = 2.5
"""With warm-up and the last batches that are begun, 10 s a model and precision."""

GRID = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
GRID_SECONDS = 8.0
"""`make tune` plays requests through each batch's own seconds: a hundred batches of the largest size."""


def plan_timing_job(
    topology: Topology,
    models: Sequence[ModelDefinition],
    inputs: Inputs,
    plan: Plan,
    *,
    grid: bool,
) -> TimingJob:
    """With the workers of a plan for one of the precisions that may be served."""
    engines = {name: one.engine.value for name, one in plan.models.items()}
    return TimingJob(
        settings=_list_settings(topology, models, inputs, plan),
        models={
            model.name: _plan_model(topology, model, inputs, engines[model.name], grid=grid)
            for model in models
        },
        seconds=GRID_SECONDS if grid else FEW_SECONDS,
        samples=grid,
    )


def _list_settings(
    topology: Topology, models: Sequence[ModelDefinition], inputs: Inputs, plan: Plan
) -> dict[str, Any]:
    cores = plan.layout.cores_per_worker.value
    engines = {one.engine.value for one in plan.models.values()}
    return {
        "cpu_model": topology.model_name,
        "slots": plan.layout.worker_cpus.value,
        "threads": cores,
        "off": list(inputs.off),
        "environment": plan_timing_environment(
            models, plan.libraries, cores, launched=inputs.pinning, engines=engines
        ),
    }


def _plan_model(
    topology: Topology, model: ModelDefinition, inputs: Inputs, engine: str, *, grid: bool
) -> ModelJob:
    served = list_candidates(model, inputs)
    needs = {precision: find_need(topology, engine, precision) for precision in served}
    return ModelJob(
        engine=engine,
        precisions=tuple(precision for precision in served if not needs[precision]),
        batches=_list_batches(model, inputs, grid=grid),
        impossible={precision: f"needs {need}" for precision, need in needs.items() if need},
    )


def list_candidates(model: ModelDefinition, inputs: Inputs) -> list[str]:
    """The precision that is asked for; with auto all that the archive can serve."""
    if inputs.precision != requests.AUTO:
        return [inputs.precision]
    return [precision for precision in requests.PRECISIONS if precision in model.precisions]


def list_common(topology: Topology, models: Sequence[ModelDefinition], inputs: Inputs) -> list[str]:
    """Those that all models could be served in."""
    engines = choose_engines(inputs, [model.name for model in models])
    return [
        precision
        for precision in list_candidates(models[0], inputs)
        if all(
            precision in list_candidates(model, inputs)
            and not find_need(topology, engines[model.name].value, precision)
            for model in models
        )
    ]


def _list_batches(model: ModelDefinition, inputs: Inputs, *, grid: bool) -> tuple[int, ...]:
    sizes = list_sizes(model)
    least, most = min(sizes), max(sizes)
    if grid:
        return tuple(size for size in GRID if least <= size <= most)
    if inputs.profile == "latency":
        return (least,)
    few = FEW_TEXTS if model.token_lengths else (least, *FEW, most)
    return tuple(sorted({size for size in few if least <= size <= most}))
