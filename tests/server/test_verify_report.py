"""The report shows every finding once, differences with their cure, and one line in sum."""

from __future__ import annotations

import dataclasses
import json

from server.verify.registry import judge
from server.verify.report import render
from tests.server.test_verify_judge import set_described, set_field, with_worker


def test_workers_that_show_the_same_share_a_row(plan, evidence):
    lines = render(judge(plan, evidence)).splitlines()
    pids = [str(worker.pid) for worker in evidence.models["bert"].workers]
    assert (
        len([line for line in lines if line.startswith(f"  {', '.join(pids)} ") and " precision " in line])
        == 1
    )
    assert len([line for line in lines if "CPU affinity" in line]) == 4
    assert lines[-1] == f"verify: all {len(judge(plan, evidence).judged)} checks of 4 workers as asked"


def test_a_difference_comes_with_asked_got_and_cure(plan, evidence):
    worker = evidence.models["resnet50"].workers[0]
    text = render(judge(plan, with_worker(evidence, set_described("precision", "bf16"))))
    assert (
        f"resnet50 {worker.pid}: precision DIFFERS\n"
        "  asked: fp32\n"
        "  got:   bf16\n"
        "  cure:  fp32 did not reach the handler (CPU_KIT_OPTIONS): make stop && make serve\n"
    ) in text
    assert "verify: 1 of " in text.splitlines()[-1]


def test_a_silent_worker_is_explained_once(plan, evidence):
    text = render(judge(plan, with_worker(evidence, set_field(describe=None, describe_problem="timed out"))))
    assert text.count("  cure:") == 1
    assert text.count("DIFFERS  ") == 12


def test_what_cannot_be_checked_is_counted(plan, evidence):
    text = render(judge(plan, dataclasses.replace(evidence, plan_unchanged=None)))
    assert text.splitlines()[-1].endswith("as asked, 1 not checkable")


def test_json_holds_everything(plan, evidence):
    result = judge(plan, with_worker(evidence, set_described("precision", "bf16")))
    raw = json.loads(render(result, "json"))
    assert raw["good"] is False
    assert len(raw["findings"]) == len(result.judged)
    assert {"model", "pid", "item", "asked", "got", "evidence", "state", "cure"} == set(raw["findings"][0])


def test_rows_are_in_the_order_of_the_registry(plan, evidence):
    lines = render(judge(plan, evidence)).splitlines()
    items = ("TorchServe", "workers", "describe", "CPU affinity", "allocator ", "precision", "self-check")
    first = [next(n for n, line in enumerate(lines) if f" {item}" in line) for item in items]
    assert first == sorted(first)
