"""The rows say what is measured, and every target is judged from what is kept alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from loadtest.errors import LoadTestError
from loadtest.experiments.targets import experiment
from loadtest.experiments.targets.experiment import check_targets, make_experiment
from loadtest.experiments.targets.judge import judge
from loadtest.experiments.targets.rows import ROWS, list_rows
from loadtest.report.targets import make_targets_section
from loadtest.results.figures import find_spikes
from loadtest.results.trial import CpuUse
from loadtest.trials.block import Timing
from tests.loadtest.making import change_facts, make_kept, make_rows, make_series, make_trial

TARGETS = {
    "resnet50-int8": [("ratio", 12.0), ("share", 95.0)],
    "resnet50-bf16": [("ratio", 6.5)],
    "resnet50-fp32": [("ratio", 3.3)],
    "bert-128": [("ratio", 7.0), ("share", 92.0)],
    "bert-mixed": [("ratio", 1.35), ("ratio", 2.0), ("ratio", 28.0), ("spikes", 1.1)],
    "resnet50-latency": [("p50", 1.15), ("p99", 1.5)],
    "load": [("start", 25.0)] * 6,
}
KIT, STOCK, ALONE = "kit resnet50 int8", "stock TorchServe", "in-process resnet50 int8"
START = {"server_seconds": 29.0, "worker_seconds": 24.9, "load_seconds": [20.0, 21.04]}
WRONG = {"errors": 3, "error_kinds": {"status 503": 3}}


def keep(tmp_path, row, *series, **more):
    return make_kept(tmp_path, {row: series} if series else {}, kind="targets", asked={"rows": [row]}, **more)


def make_int8(kit=(130.0, 129.0, 131.0), **changes):
    return [
        make_series(STOCK, (10.0, 10.1, 9.9)),
        make_series(KIT, kit, **changes),
        make_series(ALONE, (135.0, 134.0, 136.0), model_share=0.9),
    ]


def test_every_target_of_the_table_has_a_row():
    found = {}
    for row in ROWS:
        found.setdefault(row.name, []).extend((goal.kind, goal.limit) for goal in row.goals)
    assert found == TARGETS


@pytest.mark.parametrize("row", ROWS, ids=[row.title for row in ROWS])
def test_goals_are_asked_of_members(row):
    names = {member.name for member in row.members}
    asked = {name for goal in row.goals for name in (goal.system, goal.other, row.slow) if name}
    assert asked <= names


@pytest.mark.parametrize(
    ("names", "timing", "message"),
    [
        (["resnet51"], {}, "TARGET must be one of resnet50-int8, .*, load: got resnet51"),
        ([], {"seconds": 0.0}, "SECONDS must be at least 1: got 0"),
        ([], {"repeats": 1}, "REPEATS must be at least 2: got 1"),
    ],
)
def test_what_cannot_be_measured_is_refused_before(names, timing, message):
    with pytest.raises(LoadTestError, match=message):
        check_targets(names, Timing(**timing))


@pytest.fixture
def make(monkeypatch, tmp_path):
    monkeypatch.setattr(experiment, "read_archive", lambda file: SimpleNamespace(archive_id=file.name))
    return lambda *names: make_experiment(names, Path("store"), Timing(seconds=5.0, repeats=2))


def test_a_row_is_a_block_of_closed_loops_in_whole_rounds(make, tmp_path):
    asked = make("resnet50-int8")
    block = asked.next_block(keep(tmp_path, "resnet50-int8"))
    scenarios = [turn.scenario for turn in block.turns]
    assert (block.name, block.repeats, block.warm_up_s) == ("resnet50-int8", 2, 4.0)
    assert [turn.member.name for turn in block.turns] == [STOCK, KIT, ALONE]
    assert [turn.level for turn in block.turns] == [32, 64, 64]
    assert [(one.duration_s, one.parts) for one in scenarios] == [(10.0, 2), (5.0, 1), (5.0, 1)]
    assert {(one.leave_out_first_round, one.least_rounds) for one in scenarios} == {(True, 2)}
    assert asked.asked["archives"] == {"resnet50": "resnet50.mar"}
    assert asked.next_block(keep(tmp_path, "resnet50-int8", *make_int8())) is None


def test_a_row_that_is_kept_is_not_measured_again(make, tmp_path):
    kept = keep(tmp_path, "resnet50-int8", *make_int8())
    assert make().next_block(kept).name == "resnet50-bf16"
    assert make().estimate(kept) < make().estimate(dataclasses.replace(kept, blocks=()))


def test_servers_that_were_started_before_are_not_started_again(make, tmp_path):
    started = change_facts(make_series("kit resnet50 fp32"), start=START)
    kept = keep(
        tmp_path, "resnet50-fp32", started, refused={"resnet50-fp32": {"kit resnet50 bf16": "no BF16"}}
    )
    block = make("load").next_block(kept)
    assert block.name == "start-kit-resnet50-int8"
    assert [(turn.member.name, turn.level) for turn in block.turns] == [(KIT, 1)]


def test_ratios_and_shares_come_with_their_intervals(tmp_path):
    ratio, share = judge(keep(tmp_path, "resnet50-int8", *make_int8()))
    assert ratio.what == f"resnet50-int8: {KIT} / {STOCK}"
    assert ratio.figure.value == pytest.approx(13.0, rel=0.01)
    assert ratio.figure.low < ratio.figure.value < ratio.figure.high
    assert share.figure.value == pytest.approx(100 * 130 / 135, rel=0.01)
    assert (ratio.met, share.met, ratio.limit, share.limit) == (True, True, 12.0, 95.0)


@pytest.mark.parametrize(("rate", "met"), [(121.0, [True, False]), (119.0, [False, False])])
def test_a_target_is_missed_below_its_limit(tmp_path, rate, met):
    verdicts = judge(keep(tmp_path, "resnet50-int8", *make_int8((rate, rate, rate))))
    assert [one.met for one in verdicts] == met


def test_an_invalid_system_gives_no_figure(tmp_path):
    verdicts = judge(keep(tmp_path, "resnet50-int8", *make_int8(**WRONG)))
    assert [(one.figure, one.met) for one in verdicts] == [(None, False)] * 2
    assert verdicts[0].why.startswith(f"INVALID: {KIT}: 9 of ")


def test_what_was_refused_or_not_measured_says_so(tmp_path):
    stock, _, alone = make_int8()
    refused = {"resnet50-int8": {KIT: "precision: no VNNI"}}
    first, _ = judge(keep(tmp_path, "resnet50-int8", stock, alone, refused=refused))
    assert first.why == f"the kit refuses {KIT}: precision: no VNNI"
    assert judge(keep(tmp_path, "bert-128"))[0].why == "kit bert int8 is not measured yet"


def make_latency(name, milliseconds, *, rate=20.0):
    series = make_series(name, (rate,) * 3, level=1.0)
    return dataclasses.replace(series, records=(make_rows(rate, latency=milliseconds / 1000),) * 3)


@pytest.mark.parametrize(("served", "met"), [(13.49, True), (13.51, False)])
def test_a_lone_request_may_take_so_much_longer_than_in_process(tmp_path, served, met):
    names = [member.name for member in list_rows(["resnet50-latency"])[0].members]
    series = (make_latency(name, ms) for name, ms in zip(names, (served, 10.0), strict=True))
    median, tail = judge(keep(tmp_path, "resnet50-latency", *series))
    assert (median.met, tail.met) == (met, True)
    assert median.why == "1.15 × 10 ms in-process + 2 ms"
    assert tail.limit == pytest.approx(1.5 * served, rel=1e-3)


def test_a_percentile_of_too_few_requests_is_not_told(tmp_path):
    names = [member.name for member in list_rows(["resnet50-latency"])[0].members]
    _, tail = judge(keep(tmp_path, "resnet50-latency", *(make_latency(name, 10, rate=5.0) for name in names)))
    assert tail.figure is None
    assert "p99 needs at least 368 requests: got 150" in tail.why


@pytest.mark.parametrize(("slow_ms", "met"), [(50.0, True), (500.0, False)])
def test_a_compile_spike_after_ready_is_found_even_in_the_warm_up(tmp_path, slow_ms, met):
    name = "kit bert int8, new"
    warm_up = make_rows(100.0)
    warm_up = dataclasses.replace(
        warm_up, ended=warm_up.sent + np.where(np.arange(1000) < 5, slow_ms / 1000, 0.05)
    )
    series = make_series(name, (100.0,) * 3)
    series = dataclasses.replace(
        series,
        trials=(make_trial(name, 100.0, warm_up=True), *series.trials),
        records=(warm_up, *series.records),
    )
    spikes = judge(keep(tmp_path, "bert-mixed", series))[-1]
    assert spikes.figure.value == pytest.approx(slow_ms / 50.0)
    assert spikes.met is met


def test_too_few_requests_tell_nothing_of_spikes():
    with pytest.raises(LoadTestError, match="79 requests are too few for quarters"):
        find_spikes(np.ones(79))


@pytest.mark.parametrize(("seconds", "met"), [(25.0, True), (25.1, False)])
def test_a_workers_start_to_ready_is_judged(tmp_path, seconds, met):
    started = change_facts(make_series(KIT), start={**START, "worker_seconds": seconds})
    kept = make_kept(tmp_path, {"any": [started]}, kind="targets", asked={"rows": ["load"]})
    verdicts = {one.what: one for one in judge(kept)}
    found = verdicts.pop(f"load: {KIT}: a worker's start to ready")
    assert (found.figure.value, found.met) == (seconds, met)
    assert found.why == "the handlers' own load 20.0, 21.0 s; server's start to ready 29.0 s"
    assert all(one.why.endswith("is not measured yet") for one in verdicts.values())


def find_table(section, title):
    return next(table.rows for table in section.tables if table.title == title)


def test_the_section_shows_targets_rates_and_where_the_time_goes(tmp_path):
    cpu = CpuUse(
        seconds=10.0, cpus=2, by_role={"worker": 16.0, "load generator": 1.0}, others=0.4, stolen=0.0
    )
    section = make_targets_section(keep(tmp_path, "resnet50-int8", *make_int8(cpu=cpu)))
    ratio = find_table(section, "Targets")[0]
    assert (ratio[0], ratio[3], ratio[4]) == (f"resnet50-int8: {KIT} / {STOCK}", "≥ 12×", "met")
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
    assert {row[1:5] for row in find_table(section, "Targets")} == {("INVALID", "–", "–", "NO FIGURE")}
    rates = {row[1]: row for row in find_table(section, "Rates")}
    assert rates[KIT][2:] == ("–", "INVALID", "–", "–")
    assert rates[STOCK][3] == "10.0"
    assert not section.valid


def test_fill_is_what_was_computed_in_between(tmp_path):
    before = tuple({"fill": {"tokens": 100, "computed_tokens": 1000, "runs": 10}} for _ in range(2))
    after = {"fill": {"tokens": 1400, "computed_tokens": 3600, "runs": 40}}
    series = change_facts(make_series("kit bert int8, new"), described=before, seen=after)
    section = make_targets_section(keep(tmp_path, "bert-mixed", series))
    assert section.closing[0] == (
        "bert-mixed: kit bert int8, new: fill 75.0%: so much of 1600 tokens computed in 20 runs was texts."
    )
