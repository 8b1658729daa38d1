"""The tables that `make docs` writes as prometheus/rules.yml and grafana/cpu-kit.json."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent
RULES, DASHBOARD = FOLDER / "prometheus/rules.yml", FOLDER / "grafana/cpu-kit.json"
OPERATOR = FOLDER / "kubernetes/base/prometheusrule.yaml"
"""The rules again, as the Prometheus operator of Kubernetes takes them."""
OBJECTIVE = 0.01
"""Share of requests that may fail, or be answered later than SLO_P99_MS."""
_REJECTED = "queue_full|would_be_late"
_FAULTS = f"{_REJECTED}|deadline|instance_failed"
REJECTED, FAULTS, VALID = (f'reason=~"{one}"' for one in (_REJECTED, _FAULTS, f"answered|{_FAULTS}"))
"""Faults are the server's. What clients did wrong, and those who left, count for nothing."""
WINDOWS = {"5m": 300, "30m": 1800, "1h": 3600, "6h": 21600}
RUNBOOK = "docs/troubleshooting.md#"


@dataclass(frozen=True)
class Alert:
    """`{5m}` in an expression is a window, in seconds once it is rendered; `for_s` how long it must hold."""

    name: str
    severity: str
    expr: str
    summary: str
    for_s: int = 0


def render_burn(rate: float, *windows: str) -> str:
    """The objective is used up so many times as fast as it may be: for the longer window, and still."""
    return " and ".join(f"cpukit:bad:ratio_rate{one} > {rate:g} * {OBJECTIVE}" for one in windows)


ALERTS = (
    Alert(
        "CpuKitBurnFast", "page", render_burn(14.4, "5m", "1h"),
        "{{ $labels.model }}: {{ $value | humanizePercentage }} of the requests failed or were late",
    ),
    Alert(
        "CpuKitBurnSlow", "ticket", render_burn(6, "30m", "6h"),
        "{{ $labels.model }}: {{ $value | humanizePercentage }} of the requests failed or were late",
    ),
    Alert("CpuKitNotReady", "page", "cpukit_ready == 0", "a model has no worker that serves", 60),
    Alert(
        "CpuKitWorkersMissing", "ticket",
        'cpukit_workers{state="ready"} < ignoring(state) cpukit_workers{state="planned"}',
        "{{ $labels.model }}: only {{ $value }} workers serve", 120,
    ),
    Alert(
        "CpuKitRestartLoop", "page", "sum by (instance, part) (increase(cpukit_restarts_total[{10m}])) > 3",
        "{{ $labels.part }} was restarted {{ $value | humanize }} times in 10 minutes",
    ),
    Alert(
        "CpuKitVerifyDiffers", "ticket", "cpukit_verify == 0",
        "{{ $labels.item }} is not as planned: make verify",
    ),
    Alert(
        "CpuKitRejecting", "page",
        f"sum by (instance, model) (rate(cpukit_requests_total{{{REJECTED}}}[{{5m}}])) > "
        f"0.01 * sum by (instance, model) (rate(cpukit_requests_total{{{VALID}}}[{{5m}}]))",
        "{{ $labels.model }}: more requests come than are answered in time",
    ),
    Alert(
        "CpuKitThrottled", "ticket", "rate(cpukit_throttled_seconds_total[{5m}]) > 0.05",
        "the kernel stops the server {{ $value | humanizePercentage }} of the time: its CPU quota is used up",
    ),
    Alert(
        "CpuKitReloadFailed", "ticket", 'increase(cpukit_reloads_total{result="failed"}[{10m}]) > 0',
        "a reload failed; the server is what it was",
    ),
    Alert(
        "CpuKitAbsent", "page", 'up{job="cpu-kit"} == 0 or absent(up{job="cpu-kit"})',
        "the metrics page gives no answer", 60,
    ),
)  # fmt: skip


def quantile(share: float) -> str:
    """Of the last minute's requests, by model."""
    rate = 'rate(cpukit_request_seconds_bucket{stage="total"}[1m])'
    return f"histogram_quantile({share}, sum by (model, le) ({rate}))"


def mean(metric: str, by: str = "model", where: str = "") -> str:
    """Of the last minute."""
    return f"sum by ({by}) (rate({metric}_sum{where}[1m])) / sum by ({by}) (rate({metric}_count{where}[1m]))"


PANELS: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = (
    ("Requests/s by status", "reqps", (
        ("{{model}} {{code}}", "sum by (model, code) (rate(cpukit_requests_total[1m]))"),
    )),
    ("Latency and SLO_P99_MS", "s", (
        *((f"{{{{model}}}} p{100 * share:g}", quantile(share)) for share in (0.5, 0.95, 0.99)),
        ("limit", "max(cpukit_slo_seconds)"),
    )),
    ("Mean time by stage", "s", (
        ("{{model}} queue", mean("cpukit_request_seconds", where='{stage="queue"}')),
        ("{{model}} {{stage}}", mean("cpukit_worker_seconds", "model, stage", '{stage!="wait"}')),
    )),
    ("Requests that wait", "short", (("{{model}}", "sum by (model) (cpukit_queued_requests)"),)),
    ("Failures by reason", "reqps", (
        ("{{reason}}", 'sum by (reason) (rate(cpukit_requests_total{reason!="answered"}[1m]))'),
    )),
    ("Load: in flight ÷ capacity within the limit", "percentunit", (
        ("{{model}}", "max by (model) (cpukit_load)"),
    )),
    ("Requests in a batch", "short", (("{{model}}", mean("cpukit_batch_requests")),)),
    ("Packing efficiency", "percentunit", (("{{model}}", mean("cpukit_packing_efficiency")),)),
    ("Workers", "short", (("{{model}} {{state}}", "sum by (model, state) (cpukit_workers)"),)),
    ("Restarts in 10 minutes", "short", (
        ("{{part}}", "sum by (part) (increase(cpukit_restarts_total[10m]))"),
    )),
    ("Memory of workers", "bytes", (("{{model}} {{pid}}", "cpukit_worker_resident_bytes"),)),
    ("Rows of verify that differ; throttled s/s", "short", (
        ("rows", "count(cpukit_verify == 0) or vector(0)"),
        ("throttled", "rate(cpukit_throttled_seconds_total[1m])"),
    )),
)  # fmt: skip
"""Title, unit, (legend, expression) of each."""


def render_ratio(window: str) -> str:
    """Of the requests that failed, or were late, by model."""
    by = "sum by (instance, model)"
    late = f"{by} (rate(cpukit_late_requests_total[{window}]))"
    failed = f"({by} (rate(cpukit_requests_total{{{FAULTS}}}[{window}])) or 0 * {late})"
    return f"({late} + {failed}) / ({by} (rate(cpukit_requests_total{{{VALID}}}[{window}])) > 0)"


def render_rules(scale: float = 1.0) -> dict[str, Any]:
    """Rules of Prometheus; `scale` divides all windows, for a test."""

    def span(seconds: float) -> str:
        return f"{max(1000, round(1000 * seconds / scale))}ms" if scale != 1 else f"{round(seconds)}s"

    def fill(expr: str) -> str:
        for name, seconds in {**WINDOWS, "10m": 600}.items():
            expr = expr.replace(f"{{{name}}}", span(seconds))
        return expr

    records = [
        {"record": f"cpukit:bad:ratio_rate{name}", "expr": render_ratio(span(seconds))}
        for name, seconds in WINDOWS.items()
    ]
    alerts = [
        {
            "alert": one.name, "expr": fill(one.expr), **({"for": span(one.for_s)} if one.for_s else {}),
            "labels": {"severity": one.severity},
            "annotations": {"summary": one.summary, "runbook_url": f"{RUNBOOK}{one.name.lower()}"},
        }
        for one in ALERTS
    ]  # fmt: skip
    return {"groups": [{"name": "cpu-kit", "rules": [*records, *alerts]}]}


def render_dashboard() -> dict[str, Any]:
    """For Grafana's import (schema 39: Grafana 10 and newer), two panels a row."""

    def make() -> Iterator[dict[str, Any]]:
        source = {"type": "prometheus", "uid": "${source}"}
        for number, (title, unit, lines) in enumerate(PANELS):
            yield {
                "id": number + 1, "type": "timeseries", "title": title, "datasource": source,
                "gridPos": {"x": 12 * (number % 2), "y": 8 * (number // 2), "w": 12, "h": 8},
                "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
                "targets": [
                    {"refId": chr(65 + place), "expr": expr, "legendFormat": legend, "datasource": source}
                    for place, (legend, expr) in enumerate(lines)
                ],
            }  # fmt: skip

    variable = {"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    return {
        "title": "TorchServe CPU kit", "uid": "cpu-kit", "schemaVersion": 39, "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"}, "templating": {"list": [variable]}, "panels": [*make()],
    }  # fmt: skip


def list_files() -> dict[Path, str]:
    """File → what it must hold."""
    head = "# Made by `make docs` from deploy/observability.py; windows are those of Google's SRE workbook.\n"
    operator = {
        "apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule", "metadata": {"name": "cpu-kit"},
        "spec": render_rules(),
    }  # fmt: skip
    texts = {
        file: head + yaml.safe_dump(rules, sort_keys=False, allow_unicode=True, width=110)
        for file, rules in ((RULES, render_rules()), (OPERATOR, operator))
    }
    return {**texts, DASHBOARD: json.dumps(render_dashboard(), indent=1, ensure_ascii=False) + "\n"}
