"""The metrics page (Prometheus): what the supervisor counts and sees, and what the workers have counted.

Requests come from HAProxy's lines (requests.py), stages within a worker from files that the workers write
(handlers/shared/metrics.py); gauges are read when the page is asked for.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.utils import floatToGoString

from config.plan import Plan
from handlers.shared import metrics as workers
from server import VERSION
from server.processes import read_resident_mib
from server.rundir import RunDir
from server.supervisor.counters import EXPECTED, LATE, REGISTRY, RELOADS, REQUESTS, RESTARTS
from server.supervisor.instance import Instance
from server.supervisor.judge import Kind
from server.supervisor.probes import Readiness
from server.supervisor.proxy import Proxy
from server.supervisor.requests import Line
from server.throttling import LOST, read_throttled

REQUEST_SECONDS = "cpukit_request_seconds"
REQUEST_STAGES = ("queue", "instance", "total")
THROTTLED = "cpukit_throttled_seconds"
THROTTLED_TEXT = "Time that the kernel stopped the server for using up its CPU quota"
GAUGES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "cpukit_ready": ("1 where each model has a worker that serves, as /ready says", ()),
    "cpukit_workers": ("Workers of all instances", ("model", "state")),
    "cpukit_queued_requests": ("Requests that wait in HAProxy", ("model",)),
    "cpukit_in_flight_requests": ("Requests in HAProxy's queue and in instances", ("model",)),
    "cpukit_capacity_rate": (
        "Requests/s that all workers answer: seen while the queue was never empty, else by the batch profile",
        ("model",),
    ),
    "cpukit_load": (
        "In flight ÷ (cpukit_capacity_rate × cpukit_slo_seconds): at 1 as many as are answered in time",
        ("model",),
    ),
    "cpukit_slo_seconds": ("SLO_P99_MS, which is an edge of the buckets", ()),
    "cpukit_worker_resident_bytes": ("Resident memory of a worker process", ("model", "pid")),
    "cpukit_verify": ("1 where a row of verify passed at the last start, reload or `make verify`", ("item",)),
    "cpukit_plan_info": (
        "1; what is planned of a model",
        ("model", "backend", "precision", "batch_size", "workers"),
    ),
    "cpukit_build_info": ("1; versions", ("version", "python")),
}
"""Name → help, labels; each value is read at the time of a scrape."""


def make_request_seconds(slo_s: float, registry: CollectorRegistry) -> Histogram:
    """Of a limit, whose shares are the buckets."""
    return Histogram(
        REQUEST_SECONDS, "Time of a request: in HAProxy's queue, in the instance, and all until its response",
        ["model", "stage"], buckets=workers.find_buckets(slo_s), registry=registry,
    )  # fmt: skip


class Server(Protocol):
    """What the page shows of the supervisor."""

    plan: Plan
    run_dir: RunDir
    proxy: Proxy
    readiness: Readiness

    @property
    def instances(self) -> Mapping[str, Instance]:
        """By name."""

    def find_verified(self) -> Mapping[str, bool]:
        """Row of verify → whether it passed."""


class Page:
    """Of one server; counters are those of this process."""

    def __init__(self, server: Server) -> None:
        self._server, self._slo_ms = server, 0
        self.follow_plan()

    def follow_plan(self) -> None:
        """Series that are there before anything has happened: an increase from nothing is not seen. Buckets
        are those of the plan's limit: with another one they begin anew."""
        plan = self._server.plan
        if self._slo_ms != plan.slo_p99_ms:
            self._slo_ms, self._registry = plan.slo_p99_ms, CollectorRegistry()
            self._seconds = make_request_seconds(plan.slo_p99_ms / 1000, self._registry)
            self._files = WorkerFiles(self._server.run_dir.metrics / str(plan.slo_p99_ms))
            self._registry.register(self)
        for model in plan.models:
            for stage in REQUEST_STAGES:
                self._seconds.labels(model, stage)
            LATE.labels(model)
            for code, reason in EXPECTED:
                REQUESTS.labels(model, code, reason)
        for result in ("done", "failed"):
            RELOADS.labels(result)
        for part in ("proxy", "instance", "worker"):
            for kind in Kind:
                RESTARTS.labels(part, kind.value)

    def count(self, lines: Iterable[Line]) -> None:
        """Hops of requests; times are of those that were answered."""
        for line in lines:
            if not line.second:
                REQUESTS.labels(line.model, str(line.status), line.reason).inc()
            if line.failed:
                continue
            if not line.second:
                self._seconds.labels(line.model, "total").observe(line.total_ms / 1000)
                if line.total_ms > self._slo_ms:
                    LATE.labels(line.model).inc()
            elif line.queue_ms is not None and line.instance_ms is not None:
                self._seconds.labels(line.model, "queue").observe(line.queue_ms / 1000)
                self._seconds.labels(line.model, "instance").observe(line.instance_ms / 1000)

    def render(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(REGISTRY) + generate_latest(self._registry)

    def describe(self) -> list[Metric]:
        """Nothing is looked at when this is registered."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Gauges, and the workers' histograms."""
        families = {
            name: GaugeMetricFamily(name, text, labels=names) for name, (text, names) in GAUGES.items()
        }
        for name, labels, value in self._read():
            families[name].add_metric([str(label) for label in labels], value)
        yield from families.values()
        throttled_us = [one.get(LOST, 0.0) for one in read_throttled().values()]
        yield CounterMetricFamily(THROTTLED, THROTTLED_TEXT, value=max(throttled_us, default=0.0) / 1e6)
        yield from self._files.collect()

    def _read(self) -> Iterator[tuple[str, tuple[Any, ...], float]]:
        server, plan = self._server, self._server.plan
        yield "cpukit_ready", (), float(server.readiness.ready)
        yield "cpukit_slo_seconds", (), plan.slo_p99_ms / 1000
        for model, (ready, planned) in server.readiness.models.items():
            yield "cpukit_workers", (model, "ready"), ready
            yield "cpukit_workers", (model, "planned"), planned
        for model, stat in server.proxy.stats.items():
            serving = [plan.instances[name].models[model].rate for name in plan.list_serving(model)]
            rate, in_flight = server.proxy.find_rate(model) or sum(serving), stat.queued + stat.in_hand
            yield "cpukit_queued_requests", (model,), stat.queued
            yield "cpukit_in_flight_requests", (model,), in_flight
            if rate:
                yield "cpukit_capacity_rate", (model,), rate
                yield "cpukit_load", (model,), in_flight / (rate * plan.slo_p99_ms / 1000)
        looks = [look for instance in server.instances.values() for look in instance.seen.looks.items()]
        for pid, name in sorted((pid, name) for name, look in looks for pid in look.ready):
            if mib := read_resident_mib(pid):
                yield "cpukit_worker_resident_bytes", (name, pid), mib << 20
        for item, passed in sorted(server.find_verified().items()):
            yield "cpukit_verify", (item,), float(passed)
        for name, one in plan.models.items():
            numbers = one.batch_size, plan.count_workers(name)
            yield "cpukit_plan_info", (name, one.backend, one.precision, *numbers), 1.0
        yield "cpukit_build_info", (VERSION, platform.python_version()), 1.0


class WorkerFiles:
    """What all workers have counted so far, those that have ended among them: their files are added up once,
    and removed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ended: dict[tuple[str, str], float] = {}

    def collect(self) -> Iterator[Metric]:
        """A histogram for each of what workers count."""
        values = dict(self._ended)
        for file in sorted(self._folder.glob("*.db")):
            alive, found = os.path.exists(f"/proc/{file.stem.rpartition('_')[2]}"), read_values(file)  # noqa: PTH110
            for place in [values] if alive else [values, self._ended]:
                for key, value in found.items():
                    place[key] = place.get(key, 0.0) + value
            if not alive:
                file.unlink(missing_ok=True)
        yield from render_histograms(values)


def read_values(file: Path) -> dict[tuple[str, str], float]:
    """(Name of the value, its labels as JSON) → value. A file that is just being made is empty."""
    with contextlib.suppress(OSError, ValueError, struct.error):
        rows = [
            (json.loads(key), value) for key, value, *_ in MmapedDict.read_all_values_from_file(str(file))
        ]
        return {(name, json.dumps(labels, sort_keys=True)): value for (_, name, labels, _), value in rows}
    return {}


def render_histograms(values: Mapping[tuple[str, str], float]) -> Iterator[Metric]:
    """Of values as the workers write them: each bucket has what is in it alone, not what is below it."""
    for metric, (text, names) in workers.METRICS.items():
        buckets: dict[tuple[str, ...], dict[float, float]] = {}
        for (name, said), value in values.items():
            if name == f"{metric}_bucket":
                labels = json.loads(said)
                own = buckets.setdefault(tuple(labels[one] for one in names), {})
                own[float(labels["le"])] = value
        family = HistogramMetricFamily(metric, text, labels=names)
        for key, own in buckets.items():
            below, cumulative = 0.0, []
            for edge, count in sorted(own.items()):
                below += count
                cumulative.append((floatToGoString(edge), below))
            total = values.get(
                (f"{metric}_sum", json.dumps(dict(zip(names, key, strict=True)), sort_keys=True)), 0.0
            )
            family.add_metric([*key], cumulative, total)
        yield family


def list_metrics() -> Iterator[tuple[str, str, tuple[str, ...], str]]:
    """(Name, type, labels, help) of all that the page has, for docs/operations.md."""
    for counter in (REQUESTS, LATE, RESTARTS, RELOADS):
        yield f"{counter._name}_total", "counter", tuple(counter._labelnames), counter._documentation
    seconds = make_request_seconds(1.0, CollectorRegistry())
    yield REQUEST_SECONDS, "histogram", tuple(seconds._labelnames), seconds._documentation
    for name, (text, names) in workers.METRICS.items():
        yield name, "histogram", tuple(names), text
    for name, (text, labels) in GAUGES.items():
        yield name, "gauge", labels, text
    yield f"{THROTTLED}_total", "counter", (), THROTTLED_TEXT
