"""`make loadtest`: one running system, scenario after scenario, each with its levels in turns."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from loadtest.errors import LoadTestError
from loadtest.results.figures import summarise
from loadtest.results.kept import PROBE, Kept, plain
from loadtest.results.trial import Series
from loadtest.scenarios.scenario import AUTO, Arrival, Scenario, parse_share
from loadtest.systems.fleet import Member
from loadtest.trials.block import Block, Experiment, Turn, Verdict
from loadtest.trials.validity import find_doubts

KIND = "measure"
PROBE_WARM_UP_S, PROBE_S = 4.0, 8.0
"""Of the short closed loop that finds what 100 % is, for rates that are given as a share."""


def make_experiment(member: Member, scenarios: Sequence[Scenario]) -> Experiment:
    """All of them against one system."""

    def next_block(kept: Kept) -> Block | None:
        for scenario in scenarios:
            if kept.find(scenario.name) is None:
                return plan_probe(member, scenario, kept) or plan_levels(member, scenario, kept)
        return None

    return Experiment(
        kind=KIND,
        name=scenarios[0].name if len(scenarios) == 1 else KIND,
        asked={"scenarios": [plain(one) for one in scenarios]},
        next_block=next_block,
    )


def plan_probe(member: Member, scenario: Scenario, kept: Kept) -> Block | None:
    """A short closed loop, where a level is a share of what it reaches; None once it is known."""
    if not any(parse_share(step) for step in scenario.steps) or kept.find(name_probe(scenario)):
        return None
    probe = dataclasses.replace(
        scenario,
        name=name_probe(scenario),
        arrival=Arrival(loop="closed"),
        driver="locust",
        warm_up_s=PROBE_WARM_UP_S,
        duration_s=PROBE_S,
    )
    return Block(name=probe.name, turns=(Turn(member=member, scenario=probe, level=AUTO),))


def name_probe(scenario: Scenario) -> str:
    return f"{scenario.name}{PROBE}"


def plan_levels(member: Member, scenario: Scenario, kept: Kept) -> Block:
    """All levels in turns, so that drift hits all alike."""
    levels = [
        round(share * read_capacity(scenario, kept), 2) if (share := parse_share(step)) else step
        for step in scenario.steps
    ]
    turns = tuple(Turn(member=member, scenario=scenario, level=level) for level in levels)
    return Block(name=scenario.name, turns=turns, repeats=scenario.repeats)


def read_capacity(scenario: Scenario, kept: Kept) -> float:
    """Requests a second of the probe; LoadTestError when it is in doubt, as all that follows would be."""
    block = kept.find(name_probe(scenario))
    assert block is not None  # planned before
    (series,) = kept.list_series(block)
    doubts = find_doubts(series)
    if doubts:
        raise LoadTestError(f"what 100 % is cannot be told: {doubts[0]}")
    return series.trials[-1].rate


def judge(kept: Kept) -> list[Verdict]:
    """The rate of each closed level; the quoted percentile of each open one, against its limit."""
    return [judge_series(series) for series in kept.list_loads()]


def judge_series(series: Series) -> Verdict:
    """Its own figure, unless something makes it INVALID."""
    scenario = series.scenario
    unit = "requests/s" if scenario.is_open else "users"
    what = f"{scenario.name}, {series.level:g} {unit}"
    if doubts := find_doubts(series):
        return Verdict(what=what, why="; ".join(map(str, doubts)))
    figures = summarise(series)
    if not scenario.is_open:
        return Verdict(what=f"{what}: requests/s", figure=figures.rate)
    quoted = f"{scenario.latency.percentile:g}"
    return Verdict(
        what=f"{what}: p{quoted}",
        figure=figures.percentiles_ms[quoted],
        unit=" ms",
        limit=scenario.latency.limit_ms,
        at_least=False,
    )
