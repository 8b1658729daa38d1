"""Checks how TorchServe serves a model: batches, queue and time-outs, as its own description says them."""

from __future__ import annotations

from typing import Any

from config.plan import ModelPlan, Plan
from server.verify.evidence import ModelEvidence
from server.verify.findings import Finding, compare

_EVIDENCE = "GET /models/<name>"
_UNKNOWN = "unknown: TorchServe does not describe the model"
_CURE = (
    "config.properties, or a YAML file in the archive, says something else than the plan: "
    "make plan && make stop && make serve"
)


def check_batch(plan: Plan, seen: ModelEvidence) -> Finding:
    """Requests of one batch, and how long it waits to fill."""
    model = plan.models[seen.name]
    asked = render_batch(model.batch_size.value, model.max_batch_delay_ms.value)
    live = render_batch(seen.settings.get("batchSize"), seen.settings.get("maxBatchDelay"))
    return compare("batch", asked, live if seen.settings else _UNKNOWN, evidence=_EVIDENCE, cure=_CURE)


def render_batch(size: Any, delay_ms: Any) -> str:
    """For a person."""
    return f"{size} within {delay_ms} ms"


def check_queue(plan: Plan, seen: ModelEvidence) -> Finding:
    """Requests that may wait: of several looks at a busy queue, one with the planned size is proof."""
    asked = int(plan.models[seen.name].queue_size.value)
    got = asked if asked in seen.queue_sizes else max(seen.queue_sizes, default=0)
    return compare(
        "queue",
        f"{asked} requests",
        f"{got} requests" if seen.queue_sizes else _UNKNOWN,
        evidence=f"{_EVIDENCE}: jobQueueStatus",
        cure=_CURE,
    )


def check_timeouts(plan: Plan, seen: ModelEvidence) -> Finding:
    """When TorchServe gives a worker up that does not answer, or does not load."""
    live = render_timeouts(seen.settings.get("responseTimeout"), seen.settings.get("startupTimeout"))
    asked = plan_timeouts(plan.models[seen.name])
    return compare("time-outs", asked, live if seen.settings else _UNKNOWN, evidence=_EVIDENCE, cure=_CURE)


def plan_timeouts(model: ModelPlan) -> str:
    """As render_timeouts writes them."""
    return render_timeouts(model.response_timeout_s.value, model.startup_timeout_s.value)


def render_timeouts(response_s: Any, startup_s: Any) -> str:
    """For a person."""
    return f"response {response_s} s, startup {startup_s} s"
