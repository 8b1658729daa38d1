"""What is done about an instance, by what was seen of it."""

from __future__ import annotations

import dataclasses

import pytest

from server.health import READY
from server.supervisor.judgement import (
    LATEST_LOOK_S,
    PATIENCE_ALONE_S,
    PATIENCE_BESIDE_S,
    PATIENCE_PARTLY_S,
    Judge,
    Verdict,
)
from server.supervisor.sight import GONE, STOPPED, Sight

WELL = Sight(health=READY, planned={"bert": 2}, serving={"bert": 2}, anonymous_mib={7: 1000, 8: 1200})
NOTHING = Verdict()


def judge(seen: Sight, *, others: bool, seconds: float = 0.0, stamp: int = 0) -> Verdict:
    """What is said after it was seen like that for so long; another stamp: its keeper looked meanwhile."""
    one = Judge(memory_mib=8000)
    one.judge(seen, 100.0, others=others)
    return one.judge(dataclasses.replace(seen, stamp=stamp), 100.0 + seconds, others=others)


def test_a_well_one_is_left_alone() -> None:
    assert judge(WELL, others=True, seconds=10_000, stamp=1) == NOTHING


@pytest.mark.parametrize("how", [GONE, STOPPED])
def test_without_a_torchserve_that_runs_it_is_replaced_at_once(how: str) -> None:
    seen = dataclasses.replace(WELL, java=how, serving={"bert": 0})
    assert judge(seen, others=False).replace == f"TorchServe {how}"


def test_an_ill_worker_is_ended_and_no_other() -> None:
    seen = dataclasses.replace(WELL, ill={7: "is stopped"}, serving={"bert": 1})
    assert judge(seen, others=True) == Verdict(end_workers={7: "is stopped"})


@pytest.mark.parametrize(("others", "seconds"), [(True, 0.0), (False, PATIENCE_ALONE_S + 1)])
def test_without_a_worker_it_is_replaced_where_another_serves_or_it_does_not_recover(
    others: bool, seconds: float
) -> None:
    seen = dataclasses.replace(WELL, health="not ready: bert: 0 of 2 workers ready", serving={"bert": 0})
    assert judge(seen, others=others, seconds=seconds, stamp=1).replace == "bert: no worker is left"


def test_alone_it_is_given_the_time_that_torchserve_takes() -> None:
    seen = dataclasses.replace(WELL, health="not ready: bert: 0 of 2 workers ready", serving={"bert": 0})
    assert judge(seen, others=False, seconds=PATIENCE_ALONE_S - 1, stamp=1) == NOTHING


@pytest.mark.parametrize(("others", "patience"), [(True, PATIENCE_BESIDE_S), (False, PATIENCE_ALONE_S)])
def test_wrong_answers_are_not_stood_for_long(others: bool, patience: float) -> None:
    seen = dataclasses.replace(WELL, health="not ready: bert: wrong answer: 0.1")
    assert judge(seen, others=others, seconds=patience - 1, stamp=1) == NOTHING
    assert judge(seen, others=others, seconds=patience + 1, stamp=1).replace.startswith(
        "not ready: bert: wrong answer"
    )


def test_a_lack_of_workers_is_torchserves_to_cure_for_longer() -> None:
    health = "not ready: bert: 1 of 2 workers ready; resnet50: 0 of 2 workers ready"
    seen = dataclasses.replace(WELL, health=health, serving={"bert": 1})
    assert judge(seen, others=True, seconds=PATIENCE_PARTLY_S - 1, stamp=1) == NOTHING
    assert judge(seen, others=True, seconds=PATIENCE_PARTLY_S + 1, stamp=1).replace.startswith(
        "not ready: bert: 1 of 2"
    )


def test_a_keeper_that_does_not_look_any_more_is_replaced() -> None:
    said = judge(WELL, others=False, seconds=LATEST_LOOK_S + 1).replace
    assert said == f"nobody has looked at it for {LATEST_LOOK_S + 1:.0f} s"


def test_while_its_looks_are_new_ones_it_is_left_alone_whatever_the_clock_says() -> None:
    one = Judge(memory_mib=8000)
    for second in range(0, 1000, 5):
        seen = dataclasses.replace(WELL, stamp=1000 - second)  # a clock that goes back
        assert one.judge(seen, float(second), others=True) == NOTHING


def test_beyond_the_planned_memory_the_largest_process_is_ended() -> None:
    seen = dataclasses.replace(WELL, anonymous_mib={7: 3000, 8: 6000})
    verdict = judge(seen, others=True)
    assert verdict == Verdict(end_workers={8: "holds 6000 MiB of 9000, and 8000 are planned"})


def test_what_was_remembered_is_forgotten_with_a_restart() -> None:
    one, seen = Judge(memory_mib=8000), dataclasses.replace(WELL, health="not ready: bert: wrong answer: 0.1")
    one.judge(seen, 0.1, others=True)
    one.forget()
    assert one.judge(dataclasses.replace(seen, stamp=1), PATIENCE_BESIDE_S + 1, others=True) == NOTHING
