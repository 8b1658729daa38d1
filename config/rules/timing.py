"""What shall be timed: what is served, in the workers' places, all of them busy alike."""

from __future__ import annotations

from collections.abc import Sequence

from config.definitions import ModelDefinition
from config.plan import Inputs, Plan
from config.rules.environment import Launch, plan_timing_environment
from config.rules.service import list_sizes
from config.timings import ModelJob, TimingJob
from config.topology import Topology
from handlers.backends.catalogue import name_variant

FEW = (1, 4, 16)
FEW_TEXTS = (1, 8, 24)
"""The ends of a line and its middle."""
FEW_SECONDS = 2.5
BOUND_SECONDS = 10.0
"""Of a model, whatever its sizes take: what does not fit is left out, the largest first."""


def plan_timing_job(
    topology: Topology, models: Sequence[ModelDefinition], inputs: Inputs, plan: Plan
) -> TimingJob:
    """With the workers of the plan; its settings are nothing of what is chosen by the timings."""
    cores = plan.layout.cores_per_worker.value
    launch = Launch(launched=inputs.pinning, bound=inputs.pinning and topology.owns_cpus)
    return TimingJob(
        settings={
            "cpu_model": topology.model_name,
            "slots": plan.layout.worker_cpus.value,
            "threads": cores,
            "off": list(inputs.off),
            "environment": plan_timing_environment(models, plan.libraries, cores, launch),
        },
        models={
            model.name: ModelJob(
                variant=name_variant(
                    plan.models[model.name].backend.value, plan.models[model.name].precision.value
                ),
                batches=_list_batches(model, inputs),
            )
            for model in models
        },
        seconds=FEW_SECONDS,
        bound=BOUND_SECONDS,
    )


def _list_batches(model: ModelDefinition, inputs: Inputs) -> tuple[int, ...]:
    sizes = list_sizes(model)
    least, most = min(sizes), max(sizes)
    if inputs.profile == "latency":
        return (least,)
    few = FEW_TEXTS if model.token_lengths else (least, *FEW, most)
    return tuple(sorted({size for size in few if least <= size <= most}))
