"""What the supervisor counts (Prometheus): for as long as this process lives, whatever is planned."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, disable_created_metrics

from server.supervisor.requests import ANSWERED, DEADLINE, INSTANCE_FAILED, QUEUE_FULL, WOULD_BE_LATE

disable_created_metrics()
REGISTRY = CollectorRegistry()
"""Of counters that hold for this process, whatever is planned."""
REQUESTS = Counter(
    "cpukit_requests", "Requests by status and reason; model is empty where it was rejected before",
    ["model", "code", "reason"], registry=REGISTRY,
)  # fmt: skip
LATE = Counter(
    "cpukit_late_requests",
    "Requests that were answered after more than SLO_P99_MS",
    ["model"],
    registry=REGISTRY,
)
RESTARTS = Counter(
    "cpukit_restarts",
    "Restarts by part (proxy, instance, worker) and cause",
    ["part", "cause"],
    registry=REGISTRY,
)
RELOADS = Counter("cpukit_reloads", "Reloads by result (done, failed)", ["result"], registry=REGISTRY)
EXPECTED = (
    ("200", ANSWERED), ("503", QUEUE_FULL), ("503", WOULD_BE_LATE), ("504", DEADLINE),
    ("502", INSTANCE_FAILED), ("503", INSTANCE_FAILED),
)  # fmt: skip
"""Series of requests that are there from the beginning: code, reason."""
