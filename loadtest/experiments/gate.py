"""`make loadtest-gate`: two running servers in turns, A B, B A, …, so that drift hits both alike."""

from __future__ import annotations

import dataclasses

from loadtest.errors import LoadTestError
from loadtest.experiments.compare import DEFAULT_BOUND, Comparison, compare, describe_loss
from loadtest.results.kept import Kept, plain
from loadtest.results.ratios import compare_pairs
from loadtest.results.trial import Series
from loadtest.scenarios.scenario import Scenario
from loadtest.systems.fleet import Member
from loadtest.trials.block import Block, Experiment, Turn, Verdict
from loadtest.trials.validity import find_doubts

KIND = "gate"
PAIRS = 10
"""Fewer than six would give no interval worth the name."""


def make_experiment(a: Member, b: Member, scenario: Scenario, *, bound: float = DEFAULT_BOUND) -> Experiment:
    """Rates are compared, so the scenario is a closed loop; both get the level of A."""
    if scenario.is_open:
        raise LoadTestError("the gate compares rates of closed loops; SCENARIO= must name a closed one")
    asked = dataclasses.replace(scenario, repeats=PAIRS)
    turns = tuple(Turn(member=one, scenario=asked, level=scenario.steps[0]) for one in (a, b))

    def next_block(kept: Kept) -> Block | None:
        return None if kept.find(scenario.name) else Block(name=scenario.name, turns=turns, repeats=PAIRS)

    return Experiment(
        kind=KIND,
        name=f"{scenario.name}-gate",
        asked={"a": a.name, "b": b.name, "bound": bound, "scenario": plain(asked)},
        next_block=next_block,
    )


def read_pair(kept: Kept) -> tuple[Series, Series]:
    """A and B; LoadTestError when one of them is INVALID."""
    (block,) = kept.list_blocks()
    by_name = {one.system: one for one in kept.list_series(block)}
    pair = by_name[kept.asked["a"]], by_name[kept.asked["b"]]
    for one in pair:
        if doubts := find_doubts(one):
            raise LoadTestError(f"{one.system} is INVALID: {doubts[0]}")
    return pair


def compare_series(a: Series, b: Series, *, bound: float) -> Comparison:
    """The ratio of the rates that were measured in turns."""
    return compare(
        f"{a.scenario.name}, {a.level:g} users: requests/s in turns",
        sum(a.turn_rates) / len(a.turn_rates),
        sum(b.turn_rates) / len(b.turn_rates),
        compare_pairs(a.turn_rates, b.turn_rates),
        unit="requests/s",
        higher_is_better=True,
        bound=bound,
    )


def judge(kept: Kept) -> list[Verdict]:
    """No figure when a side is INVALID; broken on a regression, and when nothing can be told."""
    try:
        found = compare_series(*read_pair(kept), bound=float(kept.asked["bound"]))
    except LoadTestError as problem:
        return [Verdict(what=f"{kept.asked['b']} against {kept.asked['a']}", why=str(problem))]
    return [
        Verdict(
            what=f"{kept.asked['b']} / {kept.asked['a']}",
            figure=found.ratio,
            unit="×",
            why=describe_loss(found),
            broken=found.regression or not found.conclusive,
        )
    ]
