"""Memory is compared worker by worker, between the first leg and the last."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest

from loadtest.answers.check import AnswerCheck
from loadtest.errors import LoadTestError
from loadtest.experiments import soak
from loadtest.experiments.soak import Growth, check_soak, cut_into_legs, judge, make_experiment
from loadtest.report.targets import make_soak_section
from loadtest.results.trial import CpuUse
from tests.loadtest.making import RIGHT, make_kept, make_series

EARLY = {"resnet50 11": 1000.0, "bert 12": 2000.0}
WRONG = AnswerCheck(checked=100, wrong=1, source="test")
BUSY = CpuUse(seconds=10.0, cpus=2, others=10.0)


def keep(tmp_path, late=EARLY, *, legs=soak.LEGS + 1, **changes):
    ends = [EARLY] * (legs - 1) + [late]
    blocks = {
        f"leg-{n}": [make_series("kit", (100.0,), memory_mib=end, **changes)] for n, end in enumerate(ends, 1)
    }
    return make_kept(tmp_path, blocks, kind="soak", asked={"requests": 20_000})


@pytest.mark.parametrize(("late", "bounded"), [(1049.9, True), (1050.1, False), (900.0, True)])
def test_five_percent_is_the_limit(tmp_path, late, bounded):
    assert Growth(model="resnet50", pid=11, early_mib=1000.0, late_mib=late).bounded is bounded
    first, second = judge(keep(tmp_path, {**EARLY, "resnet50 11": late}))
    assert (first.met, second.met) == (bounded, True)
    assert first.what == "resnet50 worker 11: growth of its resident memory"
    assert first.why == f"1000 MiB after 1000 requests, {late:.0f} MiB after 20000"


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


@pytest.mark.parametrize("requests", [1004, 1007, 20_000])
def test_all_requests_are_sent_in_legs(requests):
    first, *rest = cut_into_legs(requests)
    assert first == 1000
    assert first + sum(rest) == requests
    assert max(rest) - min(rest) <= 1


def test_too_few_requests_are_refused():
    with pytest.raises(LoadTestError, match="REQUESTS must be at least 1004: got 1003"):
        check_soak(1003)
    check_soak(1004)


def test_a_leg_is_a_block_of_both_models_in_an_order_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setattr(soak, "read_archive", lambda file: SimpleNamespace(archive_id=file.name))
    experiment, kept = make_experiment(Path("store"), requests=2000), keep(tmp_path)
    blocks = [
        experiment.next_block(dataclasses.replace(kept, blocks=kept.blocks[:leg]))
        for leg in range(len(kept.blocks) + 1)
    ]
    assert blocks.pop() is None
    scenarios = [block.turns[0].scenario for block in blocks]
    assert [one.stop_after for one in scenarios] == [1000, 250, 250, 250, 250]
    assert len({one.arrival.seed for one in scenarios}) == len(scenarios)
    assert {(one.model, one.payloads) for one in scenarios} == {("resnet50 bert", "mixture")}
    assert len({block.turns[0].member.name for block in blocks}) == 1


def test_the_section_shows_memory_after_each_leg(tmp_path):
    section = make_soak_section(keep(tmp_path, {**EARLY, "bert 12": 2200.0}))
    targets, memory, _ = (table.rows for table in section.tables)
    assert [row[1] for row in targets] == ["0 %", "10 %"]
    assert [row[4] for row in targets] == ["met", "MISSED"]
    assert memory[1] == ("bert 12", "2000", "2000", "2000", "2000", "2200")
