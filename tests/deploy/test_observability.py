"""Rules and dashboard: they ask for what the kit has, link to what helps, and fire when they should."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from deploy.observability import ALERTS, DASHBOARD, PANELS, RULES, RUNBOOK, list_files, render_dashboard
from server.supervisor.metrics import list_metrics
from server.supervisor.requests import REASONS
from tests.docs.pages import ROOT, read_anchors
from tests.observers import find_program

EXPRESSIONS = [expr for _, _, lines in PANELS for _, expr in lines] + [one.expr for one in ALERTS]


@pytest.mark.parametrize("file", [RULES, DASHBOARD], ids=["rules", "dashboard"])
def test_what_is_made_from_the_tables_is_current(file):
    assert file.read_text(encoding="utf-8") == list_files()[file], "do: make docs"


def test_every_expression_names_metrics_and_reasons_that_there_are():
    known = {name for name, *_ in list_metrics()}
    text = " ".join((*EXPRESSIONS, RULES.read_text(encoding="utf-8")))
    named = {re.sub("_(bucket|sum|count)$", "", name) for name in re.findall(r"\bcpukit_[a-z_]+", text)}
    assert named - known == set()
    reasons = {one for found in re.findall(r'reason!?=~?"([^"]+)"', text) for one in found.split("|")}
    assert reasons - {*REASONS} == set()


def test_each_alert_links_to_what_helps():
    anchors = read_anchors((ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8"))
    links = [
        rule["annotations"]["runbook_url"]
        for rule in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"][0]["rules"]
        if "alert" in rule
    ]
    assert len(links) == len(ALERTS)
    assert {link.removeprefix(RUNBOOK) for link in links} <= anchors


def test_the_dashboard_has_12_panels_that_do_not_overlap():
    made = render_dashboard()["panels"]
    assert (len(made), len({one["id"] for one in made})) == (12, 12)
    places = {(one["gridPos"]["x"], one["gridPos"]["y"]) for one in made}
    assert len(places) == 12
    assert all(target["expr"] for one in made for target in one["targets"])
    assert json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"] == made


MODEL = 'instance="i", model="bert"'
ANSWERED = f'cpukit_requests_total{{{MODEL}, code="200", reason="answered"}}'
LATE, FULL = (
    f"cpukit_late_requests_total{{{MODEL}}}",
    f'cpukit_requests_total{{{MODEL}, code="503", reason="queue_full"}}',
)
UP = 'up{job="cpu-kit", instance="i"}'
READY = f'cpukit_workers{{{MODEL}, state="ready"}}'
PLANNED = f'cpukit_workers{{{MODEL}, state="planned"}}'
RESTARTS = 'cpukit_restarts_total{instance="i", part="worker", cause="ended"}'
RELOADS = 'cpukit_reloads_total{instance="i", result="failed"}'
THROTTLED = 'cpukit_throttled_seconds_total{instance="i"}'
VERIFY = 'cpukit_verify{instance="i", item="allocator"}'
HEALTHY = {
    ANSWERED: "0+600x480", LATE: "0+3x480", FULL: "0+0x480", UP: "1+0x480", READY: "2+0x480",
    PLANNED: "2+0x480", "cpukit_ready": "1+0x480", RESTARTS: "0+0x480", RELOADS: "0+0x480",
    THROTTLED: "0+0.1x480", VERIFY: "1+0x480",
}  # fmt: skip
"""Series → a value a minute for 8 hours: 10 requests/s, of which 0.5 % are late."""
FAULTS: dict[str, tuple[Mapping[str, str], dict[str, set[str]]]] = {
    "healthy": ({}, {"2h": set(), "8h": set()}),
    "a fifth is late for 70 minutes": (
        {LATE: "0+3x390 1173+120x70 9573+3x20"},
        {"6h30m": set(), "7h": set(), "7h35m": {"CpuKitBurnFast"}, "7h50m": set()},
    ),
    "8 % are late for hours": (
        {LATE: "0+48x480"}, {"30m": {"CpuKitBurnSlow"}, "7h": {"CpuKitBurnSlow"}},
    ),
    "2 % are late": ({LATE: "0+12x480"}, {"7h": set()}),
    "a tenth is rejected": (
        {FULL: "0+0x120 0+60x4 240+0x356"},
        {"2h": set(), "2h4m": {"CpuKitRejecting"}, "2h15m": set()},
    ),
    "no worker": (
        {READY: "2+0x60 0+0x5 2+0x415", "cpukit_ready": "1+0x60 0+0x5 1+0x415", RESTARTS: "0+0x60 2+0x420"},
        {"1h": set(), "1h4m": {"CpuKitNotReady", "CpuKitWorkersMissing"}, "1h10m": set()},
    ),
    "restarted again and again": (
        {RESTARTS: "0+0x60 1+1x5 6+0x415"}, {"1h": set(), "1h7m": {"CpuKitRestartLoop"}, "1h20m": set()},
    ),
    "another allocator": (
        {VERIFY: "1+0x60 0+0x5 1+0x415"}, {"1h": set(), "1h3m": {"CpuKitVerifyDiffers"}, "1h8m": set()},
    ),
    "a reload that fails": (
        {RELOADS: "0+0x60 1+0x420"}, {"1h": set(), "1h5m": {"CpuKitReloadFailed"}, "1h15m": set()},
    ),
    "a quota that is used up": (
        {THROTTLED: "0+0x60 0+30x10 300+0x410"},
        {"1h": set(), "1h6m": {"CpuKitThrottled"}, "1h17m": set()},
    ),
    "no metrics": ({UP: "1+0x60 0+0x5 1+0x415"}, {"1h": set(), "1h3m": {"CpuKitAbsent"}, "1h8m": set()}),
}  # fmt: skip
"""What is otherwise than in HEALTHY, and the alerts at some times."""


@pytest.mark.parametrize("fault", FAULTS)
def test_alerts_fire_when_they_should_and_end(fault, tmp_path):
    """In Prometheus' own simulator, over hours."""
    changes, expected = FAULTS[fault]
    series = [{"series": name, "values": values} for name, values in {**HEALTHY, **changes}.items()]
    checks = [
        {
            "expr": 'count by (alertname) (ALERTS{alertstate="firing"})', "eval_time": at,
            "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(names)],
        }
        for at, names in expected.items()
    ]  # fmt: skip
    tests: dict[str, Any] = {
        "rule_files": [str(RULES)],
        "tests": [{"interval": "1m", "input_series": series, "promql_expr_test": checks}],
    }
    (file := tmp_path / "test.yml").write_text(yaml.safe_dump(tests))
    command = [find_program("promtool"), "test", "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
