"""Reports are made from results alone; an INVALID run shows no figure, a closed loop no latency."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from loadtest.pages import write_report
from loadtest.pages.markdown import render_markdown
from loadtest.pages.tables import make_tables
from tests.loadtest.summaries import keep_virtual, make_scenario

PNG = b"\x89PNG"


def test_a_report_has_tables_and_plots_and_loads_nothing(tmp_path):
    folders = [keep_virtual(tmp_path, make_scenario(loop), level=20)[0] for loop in ("closed", "open")]
    report = write_report(folders, tmp_path)
    page = (report.folder / "report.html").read_text()
    pictures = {file.name for file in report.folder.glob("*.png")}
    assert report.valid
    assert pictures == {"throughput.png", "latency.png", "response-times.png"}
    assert all((report.folder / name).read_bytes().startswith(PNG) for name in pictures)
    assert page.count("data:image/svg+xml;base64,") == 3
    assert not re.search(r"""(src|href)=["']?(http|//|/)""", page)
    assert all(f"]({name})" in (report.folder / "report.md").read_text() for name in pictures)


def test_an_invalid_run_shows_no_figure(tmp_path):
    folder, summary = keep_virtual(tmp_path, make_scenario(), cores=0.99)
    report = write_report([folder], tmp_path)
    step = summary.steps[0]
    figures = [
        f"{step.rate.value:.1f}",
        *(f"{one.value:.0f} ms" for one in step.percentiles_ms.values() if one),
    ]
    row = make_tables([summary])[0].rows[0]
    assert not report.valid
    assert "INVALID" in row
    assert not set(figures) & set(row)
    assert not list(report.folder.glob("*.png"))
    assert "INVALID: the generator used too much CPU" in report.text
    assert "  - next: " in report.text


def test_closed_loop_times_are_never_called_latency_under_load(tmp_path):
    _, summary = keep_virtual(tmp_path, make_scenario("closed"), level=16)
    table = make_tables([summary])[0]
    assert [name for name in table.header if "p50" in name] == ["response p50"]
    assert "no latency under load" in table.note
    assert "no latency under load" in summary.latency_label


def test_a_percentile_of_too_few_requests_is_left_out(tmp_path):
    scenario = replace(make_scenario(), duration_s=5.0, repeats=1)
    _, summary = keep_virtual(tmp_path, scenario)
    row = dict(zip(make_tables([summary])[0].header, make_tables([summary])[0].rows[0], strict=True))
    assert row["p95"].endswith(" ms")
    assert row["p99"] == "–"


def test_a_broken_limit_is_said(tmp_path):
    scenario = make_scenario()
    scenario = replace(scenario, latency=replace(scenario.latency, limit_ms=10.0))
    _, summary = keep_virtual(tmp_path, scenario)
    assert "10 ms BROKEN" in make_tables([summary])[0].rows[0]


def test_a_search_has_a_peak_and_a_curve(tmp_path):
    _, summary = keep_virtual(tmp_path, make_scenario())
    scenario = replace(summary.scenario, latency=replace(summary.scenario.latency, limit_ms=300.0))
    steps = (*summary.steps, replace(summary.steps[0], level=30))
    searched = replace(summary, scenario=scenario, searched=True, peak=20.0, steps=steps)
    titles = [table.title for table in make_tables([searched])]
    assert titles == ["Peak", "Rates tried"]
    assert "20.0" in make_tables([searched])[0].rows[0]


@pytest.mark.parametrize("wrong", [0, 3])
def test_wrong_answers_are_shown(tmp_path, wrong):
    _, summary = keep_virtual(tmp_path, make_scenario())
    text = render_markdown([replace(summary, answers=replace(summary.answers, wrong=wrong))], {})
    assert ("3 WRONG" in text) == bool(wrong)


GATE = {
    "agreement": 0.988,
    "largest_probability_difference": 0.0312,
    "least_cosine": 0.9987,
    "labelled_accuracy": 0.961,
    "labelled_accuracy_fp32": 0.97,
    "samples": 80,
    "source": "digits",
}


def test_the_gates_figures_stand_in_every_report(tmp_path):
    _, summary = keep_virtual(tmp_path, make_scenario())
    text = render_markdown([replace(summary, precision="int8", accuracy=GATE)], {})
    figures = ("98.8%", "0.0312", "0.9987", "96.1% (FP32 97.0%)", "80 digits")
    assert all(figure in text for figure in figures)
    assert "## Accuracy" not in render_markdown([summary], {})
