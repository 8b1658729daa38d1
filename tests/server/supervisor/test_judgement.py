"""What is done about an instance, by what was seen of it."""

from __future__ import annotations

import dataclasses
from typing import Any

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


LOST = {"health": "not ready: bert: 0 of 2 workers ready", "serving": {"bert": 0}}
FEW = {
    "health": "not ready: bert: 1 of 2 workers ready; resnet50: 0 of 2 workers ready",
    "serving": {"bert": 1},
}
WRONG = {"health": "not ready: bert: wrong answer: 0.1"}


@pytest.mark.parametrize(
    ("changes", "others", "seconds", "replaced"),
    [
        ({}, True, 10_000, ""),
        *(
            ({"java": how, "serving": {"bert": 0}}, False, 0.0, f"TorchServe {how}")
            for how in (GONE, STOPPED)
        ),
        (LOST, True, 0.0, "bert: no worker is left"),
        (LOST, False, PATIENCE_ALONE_S - 1, ""),  # TorchServe itself needs as long
        (LOST, False, PATIENCE_ALONE_S + 1, "bert: no worker is left"),
        (WRONG, True, PATIENCE_BESIDE_S - 1, ""),
        (WRONG, True, PATIENCE_BESIDE_S + 1, WRONG["health"]),
        (WRONG, False, PATIENCE_ALONE_S - 1, ""),
        (WRONG, False, PATIENCE_ALONE_S + 1, WRONG["health"]),
        (FEW, True, PATIENCE_PARTLY_S - 1, ""),
        (FEW, True, PATIENCE_PARTLY_S + 1, FEW["health"]),
    ],
)
def test_an_instance_is_replaced_where_nothing_else_helps(
    changes: dict[str, Any], others: bool, seconds: float, replaced: str
) -> None:
    verdict = judge(dataclasses.replace(WELL, **changes), others=others, seconds=seconds, stamp=1)
    assert verdict.replace.partition(", for ")[0] == replaced
    assert verdict.end_workers == {}


def test_an_ill_worker_is_ended_and_no_other() -> None:
    seen = dataclasses.replace(WELL, ill={7: "is stopped"}, serving={"bert": 1})
    assert judge(seen, others=True) == Verdict(end_workers={7: "is stopped"})


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
