"""Memory is compared worker by worker, between the first leg and the last; the tail between the open legs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest

from loadtest.answers.check import AnswerCheck
from loadtest.errors import LoadTestError
from loadtest.experiments import soak
from loadtest.experiments.soak import check_soak, judge, judge_latency, make_experiment
from loadtest.report.targets import make_soak_section
from loadtest.results.trial import CpuUse
from tests.loadtest.making import RIGHT, make_kept, make_rows, make_series

EARLY = {"resnet50 11": 1000.0, "bert 12": 2000.0}
WRONG = AnswerCheck(checked=100, wrong=1, source="test")
BUSY = CpuUse(seconds=10.0, cpus=2, others=10.0)


def keep(tmp_path, late=EARLY, *, legs=soak.LEGS + 1, **changes):
    ends = [EARLY] * (legs - 1) + [late]
    blocks = {
        f"leg-{n}": [make_series("kit", (100.0,), memory_mib=end, **changes)] for n, end in enumerate(ends, 1)
    }
    return make_kept(tmp_path, blocks, kind="soak", asked={"seconds": 600.0})


@pytest.mark.parametrize(("late", "bounded"), [(1049.9, True), (1050.1, False), (900.0, True)])
def test_five_percent_is_the_limit(tmp_path, late, bounded):
    tail, first, second = judge(keep(tmp_path, {**EARLY, "resnet50 11": late}))
    assert (tail.met, first.met, second.met) == (True, bounded, True)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"late": {"resnet50 11": 1000.0, "bert 13": 2000.0}}, "workers must stay the same: got "),
        ({"late": {}}, "workers must stay the same: got "),
        ({"answers": WRONG}, "INVALID: kit: 1 of 100 answers are wrong"),
        ({"errors": 1}, "INVALID: kit: 1 of 1000 requests failed"),
        ({"legs": 3}, "3 of 5 legs are measured"),
    ],
)
def test_what_makes_the_comparison_void_gives_no_figure(tmp_path, changes, why):
    (verdict,) = judge(keep(tmp_path, **changes))
    assert not verdict.met
    assert verdict.figure is None
    assert verdict.why.startswith(why)


def test_a_busy_machine_does_not_make_memory_grow(tmp_path):
    kept = keep(tmp_path, cpu=BUSY, answers=RIGHT)
    assert all(one.met for one in judge(kept))
    assert make_soak_section(kept).valid


@pytest.mark.parametrize(("last", "met"), [(0.054, True), (0.056, False), (0.02, True)])
def test_the_tail_may_be_a_tenth_longer_at_the_end(last, met):
    legs = [
        dataclasses.replace(make_series("kit", (100.0,)), records=(make_rows(100.0, latency=latency),))
        for latency in (0.05, last)
    ]
    verdict = judge_latency(*legs)
    assert verdict.met is met
    assert verdict.what == "p99 of the last leg / of the first one"
    assert verdict.why.startswith(f"50 ms, then {1000 * last:.0f} ms")


@pytest.mark.parametrize("seconds", [59, 14401])
def test_a_soak_has_bounds(seconds):
    with pytest.raises(LoadTestError, match=f"DURATION must be 60 to 14400: got {seconds}"):
        check_soak(seconds)
    check_soak(14400)


def test_a_leg_is_a_block_of_both_models_in_an_order_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setattr(soak, "read_archive", lambda file: SimpleNamespace(archive_id=file.name))
    experiment, kept = make_experiment(Path("store"), seconds=1200), keep(tmp_path)
    blocks = [
        experiment.next_block(dataclasses.replace(kept, blocks=kept.blocks[:leg]))
        for leg in range(len(kept.blocks) + 1)
    ]
    assert blocks.pop() is None
    first, *others = [block.turns[0].scenario for block in blocks]
    assert (first.arrival.loop, first.stop_after) == ("closed", 1000)
    # 80 % of the 100/s that the closed loop reached
    assert [(one.arrival.loop, one.steps, one.duration_s) for one in others] == [("open", (80.0,), 300.0)] * 4
    assert len({one.arrival.seed for one in (first, *others)}) == len(blocks)
    assert {(one.model, one.payloads) for one in (first, *others)} == {("resnet50 bert", "mixture")}
    assert len({block.turns[0].member.name for block in blocks}) == 1


def test_the_section_shows_memory_after_each_leg(tmp_path):
    section = make_soak_section(keep(tmp_path, {**EARLY, "bert 12": 2200.0}))
    targets, memory, _ = (table.rows for table in section.tables)
    assert [row[1] for row in targets] == ["1×", "0 %", "10 %"]
    assert [row[4] for row in targets] == ["met", "met", "MISSED"]
    assert memory[1] == ("bert 12", "2000", "2000", "2000", "2000", "2200")
