"""The report shows every finding once, differences with their cure, and one line in sum."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from config.plan import Setting
from server.verify import table
from server.verify.registry import judge
from server.verify.report import render, render_summary
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
    assert text.count("DIFFERS  ") == 14  # in the table


def test_what_cannot_be_checked_is_counted(plan, evidence):
    text = render(judge(plan, dataclasses.replace(evidence, plan_unchanged=None)))
    assert text.splitlines()[-1].endswith("as asked, 1 not checkable")


def test_json_holds_everything(plan, evidence):
    result = judge(plan, with_worker(evidence, set_described("precision", "bf16")))
    raw = json.loads(render(result, "json"))
    assert raw["good"] is False
    assert len(raw["findings"]) == len(result.judged)
    assert {"instance", "model", "pid", "item", "asked", "got", "evidence", "state", "cure"} == set(
        raw["findings"][0]
    )


def test_rows_are_in_the_order_of_the_registry(plan, evidence):
    lines = render(judge(plan, evidence)).splitlines()
    items = ("TorchServe", "workers", "describe", "CPU affinity", "allocator ", "precision", "self-check")
    first = [next(n for n, line in enumerate(lines) if f" {item}" in line) for item in items]
    assert first == sorted(first)


@pytest.mark.parametrize("columns", [100, 120, 160, 240])
def test_the_table_fits_and_no_difference_is_cut(plan, evidence, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    shown, _, rest = render(judge(plan, evidence)).partition("\n\n")
    assert max(len(line) for line in shown.splitlines()) <= columns
    assert rest.startswith("verify: all ")


@pytest.mark.parametrize(("given", "columns"), [("40", 100), ("300", 300), (None, 120)])
def test_the_terminal_decides_within_reason(monkeypatch, given, columns):
    monkeypatch.setattr(table.shutil.os, "get_terminal_size", no_terminal)
    monkeypatch.delenv("COLUMNS", raising=False)
    if given:
        monkeypatch.setenv("COLUMNS", given)
    assert table.read_columns() == columns


def no_terminal(*_):
    raise OSError


ROW = ("  1, 2", "allocator", "ok", "background:true,decay:-1," * 2, "x" * 200, "/proc/PID/maps")


def test_long_values_are_wrapped_behind_commas_and_a_cut_is_marked():
    lines = table.render_table([ROW], 120)
    assert "background:true,decay:-1," in lines[1]
    assert len(lines) == 4
    assert lines[3].count("…") == 1
    assert all(len(line) <= 120 for line in lines)


def test_evidence_goes_last():
    assert "/proc/PID/maps" in "".join(table.render_table([ROW], 120))
    narrow = table.render_table([ROW], 90)
    assert "evidence" not in narrow[0]
    assert "asked" in narrow[0]


def test_a_long_name_leaves_room_for_the_rest():
    lines = table.render_table([("n" * 300, *ROW[1:])], 100)
    assert all(len(line) <= 100 for line in lines)


def test_the_summary_has_a_line_for_each_model_and_no_table(plan, evidence):
    result = judge(plan, evidence)
    counts = {name: sum(one.model == name for one in result.judged) for name in ("bert", "resnet50", None)}
    assert render_summary(plan, result).splitlines() == [
        f"bert: 2 workers × 1 core, fp32, jemalloc, intel OpenMP: {counts['bert']} checks as asked",
        f"resnet50: 2 workers × 1 core, fp32, jemalloc, intel OpenMP: {counts['resnet50']} checks as asked",
        f"server: {counts[None]} checks as asked",
    ]


def test_the_summary_has_the_engine_where_it_is_not_the_default(plan, evidence):
    bert = dataclasses.replace(plan.models["bert"], engine=Setting(value="openvino", reason="test"))
    other = dataclasses.replace(plan, models={**plan.models, "bert": bert})
    lines = render_summary(other, judge(other, evidence)).splitlines()
    assert lines[0].startswith("bert: 2 workers × 1 core, openvino fp32, jemalloc, ")
    assert lines[1].startswith("resnet50: 2 workers × 1 core, fp32, jemalloc, ")


def test_the_summary_says_what_differs_of_whom(plan, evidence):
    lines = render_summary(
        plan, judge(plan, with_worker(evidence, set_described("precision", "bf16")))
    ).splitlines()
    worker = evidence.models["resnet50"].workers[0]
    assert lines[0].endswith(" checks as asked")
    assert ": 1 of " in lines[1]
    assert lines[1].endswith(" checks DIFFER")
    assert lines[3:6] == ["", f"resnet50 {worker.pid}: precision DIFFERS", "  asked: fp32"]
    assert lines[-1] == "  cure:  fp32 did not reach the handler (CPU_KIT_OPTIONS): make stop && make serve"


def test_the_summary_counts_what_cannot_be_checked(plan, evidence):
    lines = render_summary(plan, judge(plan, dataclasses.replace(evidence, plan_unchanged=None))).splitlines()
    assert lines[2].endswith(" checks as asked, 1 not checkable")


def test_the_page_says_of_every_check_where_it_is_read(plan, evidence):
    page = (Path(__file__).parents[2] / "docs/verify.md").read_text(encoding="utf-8")
    items = [row.split("|")[1] for row in page.splitlines() if row.startswith("| `")]
    named = {name for item in items for name in item.split("`")[1::2]}
    assert {one.finding.item for one in judge(plan, evidence).judged} == named
