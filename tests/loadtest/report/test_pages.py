"""Reports are made from results alone; an INVALID load shows no figure, a closed loop no latency."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from loadtest.answers.check import AnswerCheck
from loadtest.report import make_section, write_report
from loadtest.results.figures import summarise
from loadtest.results.kept import Kept
from loadtest.results.trial import Series
from loadtest.scenarios.scenario import Latency
from tests.loadtest.making import RIGHT, change_facts, make_kept, make_rows, make_scenario, make_series

PNG = b"\x89PNG"
ACCURACY = {
    "agreement": 0.988, "largest_probability_difference": 0.0312, "least_cosine": 0.9987,
    "labelled_accuracy": 0.961, "labelled_accuracy_fp32": 0.97, "samples": 80, "source": "digits",
}  # fmt: skip


def make_open(
    rate: float = 43.7, *, latency: float = 0.05, limit_ms: float | None = None, **changes
) -> Series:
    """An open loop whose requests all took as long."""
    scenario = make_scenario("open", latency=Latency(percentile=95.0, limit_ms=limit_ms))
    series = make_series(rates=(rate, rate), scenario=scenario, level=rate, **changes)
    return replace(series, records=tuple(make_rows(rate, latency=latency) for _ in series.trials))


def keep(tmp_path, *series: Series, **asked) -> Kept:
    return make_kept(tmp_path, {f"block-{n}": [one] for n, one in enumerate(series)}, asked=asked)


def read_rows(kept: Kept, title: str) -> list[dict[str, str]]:
    section = make_section(kept)
    (table,) = (table for table in (*section.tables, *section.proofs) if table.title == title)
    return [dict(zip(table.header, row, strict=True)) for row in table.rows]


def test_a_report_has_tables_and_plots_and_loads_nothing(tmp_path):
    report = write_report([keep(tmp_path, make_series(), make_open())], tmp_path)
    page = (report.folder / "report.html").read_text()
    pictures = {file.name for file in report.folder.glob("*.png")}
    assert report.valid
    assert pictures == {"1-throughput.png", "1-latency.png", "1-response-times.png"}
    assert all((report.folder / name).read_bytes().startswith(PNG) for name in pictures)
    assert page.count("data:image/svg+xml;base64,") == 3
    assert not re.search(r"""(src|href)=["']?(http|//|/)""", page)
    assert all(f"]({name})" in (report.folder / "report.md").read_text() for name in pictures)


def test_what_disturbed_a_load_takes_its_figures_from_every_page(tmp_path):
    broken = {"generator_cores": (0.99,)}
    series = make_series(rates=(13.71, 13.72, 13.7), **broken), make_open(17.3, latency=0.123, **broken)
    report = write_report([keep(tmp_path, *series)], tmp_path)
    figures = [one for loop in series for one in _list_figures(loop)]
    pages = report.text + (report.folder / "report.html").read_text()
    assert not report.valid
    assert not [figure for figure in figures if figure in pages]
    assert not list(report.folder.glob("*.png"))
    assert "INVALID: the generator used too much CPU" in report.text
    assert "  - next: " in report.text


def _list_figures(series: Series) -> list[str]:
    """As they would be shown; the rate that was asked for is none of them."""
    found = summarise(series)
    rates = [] if series.scenario.is_open else [f"{found.rate.value:.1f}"]
    return [*rates, *(f"{one.value:.0f} ms" for one in found.percentiles_ms.values() if one)]


def test_the_same_loads_undisturbed_show_those_figures(tmp_path):
    series = make_series(rates=(13.71, 13.72, 13.7)), make_open(17.3, latency=0.123)
    text = write_report([keep(tmp_path, *series)], tmp_path).text
    assert all(figure in text for loop in series for figure in _list_figures(loop))


def test_closed_loop_times_are_never_called_latency_under_load(tmp_path):
    table = make_section(keep(tmp_path, make_series())).tables[0]
    assert [name for name in table.header if "p50" in name] == ["response p50"]
    assert "no latency under load" in table.note


def test_a_percentile_of_too_few_requests_is_left_out(tmp_path):
    (row,) = read_rows(keep(tmp_path, make_open(10.0)), "Latency under load")
    assert row["p95"] == "50 ms"
    assert row["p99"] == "–"


@pytest.mark.parametrize(("limit_ms", "word"), [(10.0, "BROKEN"), (60.0, "kept")])
def test_a_limit_is_judged(tmp_path, limit_ms, word):
    (row,) = read_rows(keep(tmp_path, make_open(limit_ms=limit_ms)), "Latency under load")
    assert row["limit"] == f"{limit_ms:g} ms {word}"


def test_probes_only_find_levels_and_are_not_shown(tmp_path):
    probe = make_series(scenario=make_scenario(name="bert-closed-probe"))
    kept = make_kept(tmp_path, {"bert-closed-probe": [probe], "bert-closed": [make_series()]})
    assert [row["scenario"] for row in read_rows(kept, "Throughput")] == ["bert-closed"]


def make_search(tmp_path, *series: Series) -> Kept:
    asked = {"system": "kit", "model": "bert", "percentile": 95.0, "limit_ms": 60.0}
    blocks = {f"bert-{number:02d}": [one] for number, one in enumerate(series, start=1)}
    return make_kept(tmp_path, blocks, kind="peak", asked=asked)


def test_a_search_has_a_peak_and_its_end_is_no_doubt(tmp_path):
    slow = make_open(20.0, latency=0.1, limit_ms=60.0)
    failing = make_open(15.0, limit_ms=60.0, errors=3, error_kinds={"status 503": 3})
    kept = make_search(tmp_path, make_open(10.0, limit_ms=60.0), slow, failing)
    section = make_section(kept)
    (peak,) = read_rows(kept, "Peak")
    done = [row["done/s"] for row in read_rows(kept, "Rates tried")]
    assert (peak["requests/s"], peak["broken at"], peak["rates tried"]) == ("10.0", "15.0", "3")
    assert done == ["10.0", "6 failed", "20.0"]
    assert section.valid
    assert [plot.name for plot in section.plots] == ["curve"]


def test_a_search_that_was_disturbed_has_no_peak(tmp_path):
    late = make_open(20.0, limit_ms=60.0, lag_p99_ms=500.0)
    kept = make_search(tmp_path, make_open(10.0, limit_ms=60.0), late)
    assert read_rows(kept, "Peak")[0]["requests/s"] == "INVALID"
    assert not make_section(kept).valid


def make_gate(tmp_path, b: Series) -> Kept:
    asked = {"a": "old", "b": "new", "bound": 0.05}
    a = make_series("old", rates=(10.0, 10.2, 9.9, 10.1, 10.0, 10.1))
    return make_kept(tmp_path, {"bert-closed": [a, b]}, kind="gate", asked=asked)


def test_a_gate_shows_both_sides_and_what_it_could_have_found(tmp_path):
    kept = make_gate(tmp_path, make_series("new", rates=(9.0, 9.2, 8.9, 9.1, 9.0, 9.0)))
    (row,) = read_rows(kept, "B against A")
    assert (row["A, requests/s"], row["B, requests/s"], row["bound"]) == ("10.05", "9.03", "5.0%")
    assert re.fullmatch(r"0\.\d+× \(0\.\d+-0\.\d+\)", row["B / A (95 % interval)"])
    assert float(row["smallest change found"].rstrip("%")) < 5
    assert (row["verdict"], row["pairs"]) == ("REGRESSION", "6")


def test_a_gate_with_an_invalid_side_compares_nothing(tmp_path):
    kept = make_gate(tmp_path, make_series("new", rates=(9.0,) * 6, errors=1, error_kinds={"status 503": 1}))
    (row,) = read_rows(kept, "B against A")
    assert [cell for cell in row.values() if re.search(r"\d\.\d", cell)] == []
    assert "INVALID" in row.values()


@pytest.mark.parametrize("wrong", [0, 3])
def test_wrong_answers_are_shown(tmp_path, wrong):
    answers: AnswerCheck = replace(RIGHT, wrong=wrong)
    (row,) = read_rows(keep(tmp_path, make_series(rates=(10.0,), answers=answers)), "Answers and settings")
    assert row["wrong"] == ("3 WRONG" if wrong else "0")


def test_what_the_gate_saw_at_build_stands_in_every_report(tmp_path):
    judged = {"precisions": {"bert": "int8"}, "accuracy": {"bert": ACCURACY}}
    (row,) = read_rows(keep(tmp_path, change_facts(make_series(), **judged)), "Accuracy")
    figures = ("98.8%", "0.0312", "0.9987", "96.1% (FP32 97.0%)", "80 digits")
    assert set(figures) < set(row.values())
    assert read_rows(keep(tmp_path, make_series()), "Accuracy") == []
