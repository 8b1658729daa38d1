"""The documents quote only whole and valid results, each with its machine; no page of another is lost."""

from __future__ import annotations

import json

import pytest

from loadtest.errors import LoadTestError
from loadtest.experiments.targets.rows import list_rows
from loadtest.report import SECTIONS, docs
from loadtest.report.docs import MARK, render_glance, write_docs
from loadtest.report.markdown import WIDTH
from loadtest.results.kept import Kept, read_kept
from loadtest.results.trial import Series
from tests.loadtest.making import make_kept, make_scenario, make_series

RATES = {"stock TorchServe": 9.0, "kit bert, everything off": 7.0, "kit bert int8, to the longest": 35.0}


def keep(tmp_path, rate: float = 13.7, began: str = "2026-01-02", name: str = "measure", **changes) -> Kept:
    """A measured closed loop of a day."""
    kept = make_kept(tmp_path, {"bert-closed": [make_series(rates=(rate,) * 3, **changes)]}, name=name)
    return _date(kept, began)


def _date(kept: Kept, began: str) -> Kept:
    file = kept.folder / "experiment.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "began": f"{began}T00:00:00+00:00"}))
    return read_kept(kept.folder)


def keep_targets(tmp_path) -> Kept:
    """All rows that compare rates; a baseline's rate by its name."""
    rows = [row for row in list_rows() if not row.starts_only]
    blocks = {row.name: [_make_side(one.name) for one in row.members] for row in rows}
    return make_kept(tmp_path, blocks, kind="targets", asked={"rows": [row.name for row in rows]})


def _make_side(name: str) -> Series:
    rate = RATES.get(name, 88.0)
    return make_series(name, rates=(rate, 1.01 * rate, 0.99 * rate), scenario=make_scenario())


def test_the_latest_whole_and_valid_result_is_quoted(tmp_path):
    kepts = [
        keep(tmp_path, 13.7, "2026-01-03"),
        keep(tmp_path, 15.5, "2026-01-02"),
        keep(tmp_path, 16.6, "2026-01-04", generator_cores=(0.99,)),
        _date(make_kept(tmp_path, {}, name="measure", asked={"scenarios": [{"name": "x"}]}), "2026-01-05"),
    ]
    (page,) = write_docs(kepts, tmp_path / "docs")
    text = page.read_text()
    assert "13.7" in text
    assert not [figure for figure in ("15.5", "16.6", "INVALID") if figure in text]
    assert "a 2-core AVX-512 virtual machine (AMD, 8 GiB), 2026-01-03" in text
    assert "By `make loadtest`." in text


def test_lines_of_prose_are_short_and_the_page_says_that_it_is_written(tmp_path):
    (page,) = write_docs([keep(tmp_path)], tmp_path / "docs")
    lines = page.read_text().splitlines()
    assert lines[0] == MARK
    assert all(len(line) <= WIDTH for line in lines if not line.startswith("|"))


def test_a_page_of_another_is_not_written_over(tmp_path):
    kept = keep(tmp_path)
    (page,) = write_docs([kept], tmp_path / "docs")
    assert write_docs([kept], tmp_path / "docs") == [page]
    page.write_text("# My own results\n")
    with pytest.raises(LoadTestError, match=r"results\.md was not written by this command"):
        write_docs([kept], tmp_path / "docs")
    assert page.read_text() == "# My own results\n"


def test_nothing_to_tell_is_an_error(tmp_path):
    with pytest.raises(LoadTestError, match="no result is whole and valid; measure first"):
        write_docs([keep(tmp_path, generator_cores=(0.99,))], tmp_path / "docs")


def test_every_experiment_that_has_a_section_has_its_command():
    assert set(docs.COMMANDS) == set(SECTIONS)


def test_an_experiment_with_pages_of_its_own_is_linked(tmp_path, monkeypatch):
    own = tmp_path / "docs" / "own.md"
    monkeypatch.setattr(docs, "PAGES", {"measure": lambda kept, output: [own, own.with_suffix(".png")]})
    written = write_docs([keep(tmp_path)], tmp_path / "docs")
    text = written[0].read_text()
    assert written[1:] == [own, own.with_suffix(".png")]
    assert "[own.md](own.md)" in text
    assert "13.7" not in text


def read_glance(kept: Kept) -> list[list[str]]:
    """The cells of its rows."""
    lines = [line for line in render_glance(kept).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_what_the_kit_gains_is_a_row_for_each_pair(tmp_path):
    cells = read_glance(keep_targets(tmp_path))
    rows = {(row[0], row[1]): row[2:] for row in cells}
    int8, longest = (
        rows["resnet50-int8", "stock TorchServe"],
        rows["bert-mixed", "kit bert int8, to the longest"],
    )
    assert len(cells) == 7
    assert {int8[1].partition(" ")[0], longest[1].partition(" ")[0]} == {"88.0"}
    assert int8[0].startswith("9.00 (")
    assert int8[2].startswith("9.78× (")
    assert longest[2].startswith("2.51× (")


def test_the_readmes_table_is_narrow(tmp_path):
    assert max(map(len, render_glance(keep_targets(tmp_path)).splitlines())) <= WIDTH


def test_a_pair_that_is_not_measured_has_no_figure(tmp_path):
    row = next(row for row in list_rows() if row.name == "bert-128")
    series = [_make_side(one.name) for one in row.members[:1]]
    kept = make_kept(tmp_path, {row.name: series}, kind="targets", asked={"rows": [row.name]})
    assert read_glance(kept)[0][2:] == ["–", "–", "–"]
