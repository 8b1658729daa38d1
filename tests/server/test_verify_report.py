"""The report shows every finding once, differences with their cure, and one line in sum."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from server.verify.registry import judge
from server.verify.report import render, render_summary
from tests.server.test_verify_judge import set_described, set_field, with_worker


def test_workers_that_show_the_same_share_a_row(plan, evidence):
    lines = render(judge(plan, evidence)).splitlines()
    pids = [str(worker.pid) for worker in evidence.models["bert"].workers]
    assert [line.startswith(f"  {', '.join(pids)} ") for line in lines if " precision " in line] == [
        True,
        False,
    ]
    assert len([line for line in lines if "CPU affinity" in line]) == 4


def test_a_difference_comes_with_asked_got_and_cure(plan, evidence):
    worker = evidence.models["resnet50"].workers[0]
    text = render(judge(plan, with_worker(evidence, set_described("precision", "bf16"))))
    assert f"resnet50 {worker.pid}: precision DIFFERS\n  asked: fp32\n  got:   bf16\n  cure:  " in text


def test_a_silent_worker_is_explained_once(plan, evidence):
    text = render(judge(plan, with_worker(evidence, set_field(describe=None, describe_problem="timed out"))))
    assert text.count("  cure:") == 1
    assert text.count("DIFFERS  ") == 14  # in the table


def test_json_holds_everything(plan, evidence):
    result = judge(plan, with_worker(evidence, set_described("precision", "bf16")))
    raw = json.loads(render(result, "json"))
    assert raw["good"] is False
    assert len(raw["findings"]) == len(result.judged)
    assert {"instance", "model", "pid", "item", "asked", "got", "evidence", "state", "cure"} == set(
        raw["findings"][0]
    )


@pytest.mark.parametrize("columns", [100, 120, 160, 240])
def test_the_table_fits_and_no_difference_is_cut(plan, evidence, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    shown, _, rest = render(judge(plan, evidence)).partition("\n\n")
    assert max(len(line) for line in shown.splitlines()) <= columns
    assert rest.startswith("verify: all ")


def test_the_summary_has_a_line_for_each_model_and_no_table(plan, evidence):
    result = judge(plan, evidence)
    said = [line.split(":")[0] for line in render_summary(plan, result).splitlines()]
    assert said == ["bert", "resnet50", "server"]


def test_the_page_says_of_every_check_where_it_is_read(plan, evidence):
    page = (Path(__file__).parents[2] / "docs/verify.md").read_text(encoding="utf-8")
    items = [row.split("|")[1] for row in page.splitlines() if row.startswith("| `")]
    named = {name for item in items for name in item.split("`")[1::2]}
    assert {one.finding.item for one in judge(plan, evidence).judged} == named
