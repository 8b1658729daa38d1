"""What shall be timed so that precision auto can choose: each precision as a worker would run it."""

from __future__ import annotations

from collections.abc import Sequence

from config.definitions import ModelDefinition
from config.installed import Installed
from config.plan import Inputs, Libraries
from config.rules import requests
from config.rules.batching import choose_batch
from config.rules.environment import plan_timing_environment
from config.rules.layout import choose_cores
from config.rules.libraries import plan_libraries
from config.timings import ModelJob, TimingJob
from config.topology import Topology


def make_timing_job(
    topology: Topology, models: Sequence[ModelDefinition], inputs: Inputs, installed: Installed
) -> TimingJob:
    """The job; raises ConfigError where something asked for cannot be."""
    requests.check_request(topology, models, inputs)
    return plan_timing_job(topology, models, inputs, plan_libraries(inputs, installed))


def plan_timing_job(
    topology: Topology, models: Sequence[ModelDefinition], inputs: Inputs, libraries: Libraries
) -> TimingJob:
    """One core, whatever a worker will get: it costs the least noise, and ranks the precisions alike."""
    return TimingJob(
        cpu=choose_cores(topology)[0].cpu,
        settings={
            "cpu_model": topology.model_name,
            "ipex": inputs.ipex,
            "off": list(inputs.off),
            "environment": plan_timing_environment(models, libraries, launched=inputs.pinning),
        },
        models={model.name: _plan_model(topology, model, inputs) for model in models},
    )


def _plan_model(topology: Topology, model: ModelDefinition, inputs: Inputs) -> ModelJob:
    served = [precision for precision in requests.PRECISIONS if precision in model.precisions]
    needs = {precision: requests.find_need(topology, inputs, precision) for precision in served}
    return ModelJob(
        batch_sizes={
            precision: choose_batch(model, inputs, precision).value
            for precision in served
            if not needs[precision]
        },
        impossible={precision: f"needs {need}" for precision, need in needs.items() if need},
    )
