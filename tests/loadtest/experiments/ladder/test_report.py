"""Tables, sentences and picture come from what is kept alone; a doubtful rung shows no figure."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest

from loadtest.experiments.ladder.experiment import OWN_MIB
from loadtest.experiments.ladder.rows import NO_HELP, SLOWS, UNKNOWN, judge_left_out, judge_step, make_rows
from loadtest.experiments.ladder.rungs import ENGINES, KINDS, list_engine_rungs
from loadtest.report import make_section
from loadtest.report.ladder import make_ladder_section
from loadtest.report.markdown import render_section
from loadtest.results.stats import Interval
from tests.loadtest.experiments.ladder.results import disturb, plant_restarted, write_ladder
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


def plant_silent(series):
    trials = (
        dataclasses.replace(one, rates=(0.0,), requests=5, errors=5, error_kinds={"status 503": 5})
        for one in series.trials
    )
    return dataclasses.replace(series, trials=tuple(trials))


@pytest.mark.parametrize(
    ("plant", "doubt"),
    [
        (disturb, "other programs"),
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


@pytest.mark.parametrize(
    ("low", "high", "step", "left_out"),
    [
        (1.01, 1.2, "helps", "is better so on this host"),
        (0.8, 0.99, SLOWS, "is worth having"),
        (0.98, 1.02, NO_HELP, "is not missed on this host"),
        (0.5, 2.0, UNKNOWN, UNKNOWN),
    ],
)
def test_verdicts(low, high, step, left_out):
    ratio = Interval(value=1.0, low=low, high=high)
    assert (judge_step(ratio), judge_left_out(ratio)) == (step, left_out)


def tell_costs(series):
    return replace(
        change_facts(
            series,
            start={"worker_seconds": 21.4},
            seen={OWN_MIB: [812, 905]},
            accuracy={"resnet50": {"agreement": 0.9921, "largest_probability_difference": 0.0312}},
        ),
        trials=tuple(
            replace(one, memory_mib={"resnet50 1": 1400.2, "resnet50 2": 1410.6}) for one in series.trials
        ),
    )


def write_engines(tmp_path, missing=(), **changes):
    kind = KINDS[ENGINES]
    return write_ladder(tmp_path, kind=kind, rungs=list_engine_rungs(missing), change=changes)


def read_cells(kept, label):
    lines = render_section(make_section(kept)).splitlines()
    (line,) = [one for one in lines if one.startswith(f"| {label} ") and one.count("|") == 11]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_an_engine_is_told_with_what_it_costs(tmp_path):
    kept = write_engines(tmp_path, **{"openvino-int8": tell_costs})
    cells = read_cells(kept, "openvino int8")
    assert cells[3].startswith("1.50× (")
    assert cells[4].startswith("2.25× (")
    assert cells[5:] == ["helps", "21 s", "905 of 1411 MiB", "99.2%", "0.0312"]
    assert read_cells(kept, "ipex fp32")[3:6] == ["–", "1", "–"]
    assert make_section(kept).whole
    assert make_section(kept).plots[0].name == "engines-resnet50"


def test_what_is_not_installed_is_named_and_what_is_doubtful_has_no_figure(tmp_path):
    kept = write_engines(tmp_path, ("openvino",))
    assert read_cells(kept, "openvino bf16")[5] == (
        "does not apply: openvino is not installed (make setup BACKEND=openvino)"
    )
    kept = write_engines(tmp_path, **{"openvino-bf16": plant_restarted})
    assert not make_section(kept).valid
    assert read_cells(kept, "openvino bf16")[1:] == ["INVALID", *"–––", "INVALID", *"––––"]
