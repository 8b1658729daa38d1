"""What the supervisor counts (Prometheus): for as long as this process lives, whatever is planned."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, disable_created_metrics

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
    ("200", "answered"), ("503", "queue_full"), ("503", "would_be_late"), ("504", "deadline"),
    ("502", "instance_failed"), ("503", "instance_failed"),
)  # fmt: skip
"""Series of requests that are there from the beginning: code, reason."""
