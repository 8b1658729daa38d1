"""The rows say what is measured, and ratios are made from what is kept alone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from loadtest.experiments import targets
from loadtest.experiments.targets import ROWS, judge, make_experiment
from loadtest.report.targets import make_targets_section
from loadtest.results.trial import CpuUse
from loadtest.trials.block import Timing
from tests.loadtest.making import change_facts, make_kept, make_series

KIT, STOCK, ALONE = "kit resnet50 int8", "stock TorchServe", "in-process resnet50 int8"
WRONG = {"errors": 3, "error_kinds": {"status 503": 3}}


def keep(tmp_path, row, *series, **more):
    return make_kept(tmp_path, {row: series} if series else {}, kind="targets", **more)


def make_int8(kit=(130.0, 129.0, 131.0), **changes):
    return [
        make_series(STOCK, (10.0, 10.1, 9.9)),
        make_series(KIT, kit, **changes),
        make_series(ALONE, (135.0, 134.0, 136.0), model_share=0.9),
    ]


@pytest.mark.parametrize("row", ROWS, ids=[row.title for row in ROWS])
def test_what_is_compared_is_among_the_members(row):
    names = {member.name for member in row.members}
    assert {name for name in (row.served, row.slow) if name} <= names
    assert len(names) > 1


@pytest.fixture
def asked(monkeypatch):
    monkeypatch.setattr(targets, "read_archive", lambda file: SimpleNamespace(archive_id=file.name))
    return make_experiment(Path("store"), Timing(seconds=5.0, repeats=2))


def test_a_row_is_a_block_of_closed_loops_in_whole_rounds(asked, tmp_path):
    block = asked.next_block(keep(tmp_path, "resnet50-int8"))
    scenarios = [turn.scenario for turn in block.turns]
    assert (block.name, block.repeats, block.warm_up_s) == ("resnet50-int8", 2, 4.0)
    assert [turn.member.name for turn in block.turns] == [STOCK, KIT, ALONE]
    assert [turn.level for turn in block.turns] == [32, 64, 64]
    assert [(one.duration_s, one.parts) for one in scenarios] == [(10.0, 2), (5.0, 1), (5.0, 1)]
    assert {(one.leave_out_first_round, one.least_rounds) for one in scenarios} == {(True, 2)}
    assert asked.asked["archives"] == {"resnet50": "resnet50.mar", "bert": "bert.mar"}


def test_a_row_that_is_kept_is_not_measured_again(asked, tmp_path):
    kept = keep(tmp_path, "resnet50-int8", *make_int8())
    assert asked.next_block(kept).name == "resnet50-bf16"


def test_ratios_come_with_their_intervals(tmp_path):
    plain, alone, *_ = judge(keep(tmp_path, "resnet50-int8", *make_int8()))
    assert plain.what == f"resnet50-int8: {KIT} / {STOCK}"
    assert plain.figure.value == pytest.approx(13.0, rel=0.01)
    assert plain.figure.low < plain.figure.value < plain.figure.high
    assert alone.figure.value == pytest.approx(130 / 135, rel=0.01)
    assert (plain.met, plain.limit) == (True, None)


def test_an_invalid_system_gives_no_figure(tmp_path):
    verdicts = judge(keep(tmp_path, "resnet50-int8", *make_int8(**WRONG)))[:2]
    assert [(one.figure, one.met) for one in verdicts] == [(None, False)] * 2
    assert verdicts[0].why.startswith(f"INVALID: {KIT}: 9 of ")


def test_what_was_refused_or_not_measured_says_so(tmp_path):
    stock, _, alone = make_int8()
    refused = {"resnet50-int8": {KIT: "precision: no VNNI"}}
    first, *_, last = judge(keep(tmp_path, "resnet50-int8", stock, alone, refused=refused))
    assert first.why == f"the kit refuses {KIT}: precision: no VNNI"
    assert last.why.endswith(" is not measured yet")


def find_table(section, title):
    return next(table.rows for table in section.tables if table.title == title)


def test_the_section_shows_targets_rates_and_where_the_time_goes(tmp_path):
    cpu = CpuUse(
        seconds=10.0, cpus=2, by_role={"worker": 16.0, "load generator": 1.0}, others=0.4, stolen=0.0
    )
    section = make_targets_section(keep(tmp_path, "resnet50-int8", *make_int8(cpu=cpu)))
    ratio = find_table(section, "Ratios")[0]
    assert ratio[0] == f"resnet50-int8: {KIT} / {STOCK}"
    assert ratio[1].startswith("13.0× (")
    assert find_table(section, "Rates")[1][1:4] == (KIT, "16", "130.0")
    shares = {row[1]: row[2:] for row in find_table(section, "Where the CPU time goes")}
    assert shares[KIT] == ("80.0%", "0.0%", "5.0%", "2.0%", "13.0%")
    assert list(shares) == [STOCK, KIT]
    assert section.closing[0].startswith(
        f"resnet50-int8: {ALONE}: 90.0% of its time is the model, which alone would reach 150.00 a second"
    )
    assert section.valid


def test_the_section_shows_no_figure_of_what_is_invalid(tmp_path):
    section = make_targets_section(keep(tmp_path, "resnet50-int8", *make_int8(**WRONG)))
    assert {row[1] for row in find_table(section, "Ratios")} == {"–"}
    rates = {row[1]: row for row in find_table(section, "Rates")}
    assert rates[KIT][2:] == ("–", "INVALID", "–", "–")
    assert rates[STOCK][3] == "10.0"
    assert not section.valid


def test_fill_is_what_was_computed_in_between(tmp_path):
    before = tuple({"fill": {"tokens": 100, "computed_tokens": 1000, "runs": 10}} for _ in range(2))
    after = {"fill": {"tokens": 1400, "computed_tokens": 3600, "runs": 40}}
    series = change_facts(make_series("kit bert int8"), described=before, seen=after)
    section = make_targets_section(keep(tmp_path, "bert-mixed", series))
    assert section.closing[0] == (
        "bert-mixed: kit bert int8: fill 75.0%: so much of 1600 tokens computed in 20 runs was texts."
    )
