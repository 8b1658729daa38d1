"""Tables, sentences and picture come from what is kept alone; a doubtful rung shows no figure."""

from __future__ import annotations

import dataclasses

import pytest

from loadtest.experiments.ladder.rows import make_rows
from loadtest.experiments.ladder.rungs import find_rung, list_all
from loadtest.report.ladder import make_ladder_section
from loadtest.report.markdown import render_section
from tests.loadtest.experiments.ladder.results import BUSY, see, write_ladder
from tests.loadtest.making import change_facts


def find(kept, name):
    return next(row for row in make_rows(kept) if row.rung.name == name)


def test_figures_ratios_and_verdicts(tmp_path):
    kept = write_ladder(tmp_path)
    ipex, openmp, top = (find(kept, name) for name in ("ipex", "openmp", "top"))
    assert ipex.rate.value == pytest.approx(10 * 1.5**3, rel=0.02)
    assert ipex.to_before.low < 1.5 < ipex.to_before.high
    assert (ipex.verdict, openmp.verdict) == ("helps", "no gain seen on this host")
    assert top.to_bottom.low < 1.5**9 < top.to_bottom.high


def test_a_chain_over_blocks_is_less_certain_than_one_block(tmp_path):
    rows = [find(write_ladder(tmp_path), name) for name in ("ipex", "top")]
    spans = [row.to_bottom.high / row.to_bottom.low for row in rows]
    assert spans[0] < spans[1] < 1.2


def test_what_the_kit_refuses_is_told_with_its_own_reason_and_is_no_fault(tmp_path):
    section = make_ladder_section(write_ladder(tmp_path))
    assert section.valid
    assert [(one.where, one.state) for one in section.findings] == [
        (
            "without IPEX",
            "cannot be left out: PRECISION=int8 needs BACKEND=ipex or openvino: eager has no int8",
        )
    ]


def test_what_does_not_apply_is_listed_without_a_figure(tmp_path):
    text = render_section(make_ladder_section(write_ladder(tmp_path, "bert")))
    assert "does not apply: the model has no convolutions" in text


def plant_not_on(series):
    rung = find_rung(list_all("resnet50"), "jemalloc")
    return change_facts(series, seen=see(rung, allocator="system"))


def plant_disturbed(series):
    return dataclasses.replace(
        series, trials=tuple(dataclasses.replace(one, cpu=BUSY) for one in series.trials)
    )


def plant_restarted(series):
    return change_facts(series, pids_after=(1, 3))


def plant_silent(series):
    trials = (
        dataclasses.replace(one, rates=(0.0,), requests=5, errors=5, error_kinds={"status 503": 5})
        for one in series.trials
    )
    return dataclasses.replace(series, trials=tuple(trials))


@pytest.mark.parametrize(
    ("plant", "doubt"),
    [
        (plant_not_on, "its setting is not in effect"),
        (plant_disturbed, "other programs"),
        (plant_restarted, "a worker died and was started again"),
        (plant_silent, "15 of 15 requests failed"),
    ],
)
def test_a_doubtful_rung_is_invalid_and_shows_no_figure(tmp_path, plant, doubt):
    kept = write_ladder(tmp_path, change={"jemalloc": plant})
    section = make_ladder_section(kept)
    row, above = find(kept, "jemalloc"), find(kept, "openmp")
    line = next(one for one in render_section(section).splitlines() if one.startswith("| + jemalloc"))
    assert not section.valid
    assert row.rate is row.to_before is row.to_bottom is None
    assert line.count("INVALID") == 2
    assert any(one.invalid and one.where == "+ jemalloc" and doubt in one.state for one in section.findings)
    assert above.to_before is None  # nothing is compared with it
    assert above.to_bottom is not None  # but by a rung below


def test_an_unfinished_ladder_has_a_report_of_what_is_there(tmp_path):
    kept = write_ladder(tmp_path, blocks=1)
    section = make_ladder_section(kept)
    assert not section.whole
    assert make_ladder_section(write_ladder(tmp_path)).whole
    assert find(kept, "top").state == "not measured yet"
    assert "not measured yet" in render_section(section)
    assert make_ladder_section(write_ladder(tmp_path, blocks=0)).plots == ()
