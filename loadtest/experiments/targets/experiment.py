"""What `make targets` measures: the blocks of its rows, one after the other."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from loadtest.errors import LoadTestError
from loadtest.experiments.targets.rows import ROWS, SLOW_STRETCH, SLOW_USERS, Row
from loadtest.results.kept import Kept
from loadtest.scenarios.scenario import Arrival, Scenario
from loadtest.systems.fleet import Member
from loadtest.trials.block import Block, Experiment, Timing, Turn
from server.archives import read_archive

KIND = "targets"
TIMEOUT_S = 120
START_S, TURN_EXTRA_S = 30.0, 5.0
"""Of a system with its verify and expected answers, and around each window: seen on two cores."""
TIMING = Timing(seconds=10.0, warm_up_s=4.0, repeats=3)


def check_targets(timing: Timing) -> None:
    """Judges what was asked for; LoadTestError says what may be."""
    if not timing.seconds >= 1:
        raise LoadTestError(f"DURATION must be at least 1: got {timing.seconds:g}")


def make_experiment(store: Path, timing: Timing) -> Experiment:
    """Of all rows."""
    check_targets(timing)
    models = dict.fromkeys(row.model for row in ROWS)
    asked = {
        "timing": dataclasses.asdict(timing),
        "archives": {model: read_archive(store / f"{model}.mar").archive_id for model in models},
    }
    return Experiment(
        kind=KIND,
        name=KIND,
        asked=asked,
        next_block=lambda kept: next(iter(list_left(timing, kept)), None),
        estimate=lambda kept: sum(map(estimate, list_left(timing, kept))),
    )


def list_left(timing: Timing, kept: Kept) -> list[Block]:
    """What is not measured yet."""
    return [make_block(row, timing) for row in ROWS if kept.find(row.name) is None]


def make_block(row: Row, timing: Timing) -> Block:
    turns = tuple(make_turn(member, row, timing) for member in row.members)
    return Block(name=row.name, turns=turns, repeats=timing.repeats, warm_up_s=timing.warm_up_s)


def make_turn(member: Member, row: Row, timing: Timing) -> Turn:
    """A closed loop in whole rounds: the first one is left out, as queues fill, and two are the least."""
    users, stretch = (SLOW_USERS, SLOW_STRETCH) if member.name == row.slow else (row.users, 1)
    scenario = Scenario(
        name=row.name,
        model=row.model,
        payloads=row.payloads,
        arrival=Arrival(loop="closed"),
        steps=(users,),
        warm_up_s=0.0,
        duration_s=stretch * timing.seconds,
        repeats=timing.repeats,
        timeout_s=TIMEOUT_S,
        leave_out_first_round=True,
        least_rounds=2,
        parts=stretch,
    )
    return Turn(member=member, scenario=scenario, level=users)


def estimate(block: Block) -> float:
    """Seconds."""
    return sum(
        START_S + block.warm_up_s + block.repeats * (turn.scenario.duration_s + TURN_EXTRA_S)
        for turn in block.turns
    )
