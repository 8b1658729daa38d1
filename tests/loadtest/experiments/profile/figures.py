"""Threads and workers of a healthy system."""

from __future__ import annotations

from typing import Any

from loadtest.experiments.profile.threads import ThreadUse, WorkerUse


def make_use(cpu: int, **changes: Any) -> ThreadUse:
    """A thread that computes on one CPU and is left alone there."""
    plain: dict[str, Any] = {
        "tid": 100 + cpu, "name": "python", "cores": 0.95, "waiting": 0.03, "migrations": 0.0,
        "involuntary": 12.0, "strip": (cpu,) * 20,
    }  # fmt: skip
    return ThreadUse(**{**plain, **changes})


def make_worker(number: int, *busy: ThreadUse, **changes: Any) -> WorkerUse:
    plain: dict[str, Any] = {
        "pid": number, "threads": 30, "minor_faults": 40.0, "resident_mib": 700,
        "throttled_ms": 0.0,
    }  # fmt: skip
    return WorkerUse(busy=busy or (make_use(number),), **{**plain, **changes})
