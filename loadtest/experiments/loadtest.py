"""`make loadtest`: one server, scenario after scenario: throughput by closed loops, latency by open ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from loadtest.bench import Bench
from loadtest.errors import CapacityError
from loadtest.load import Scenario, parse_share
from loadtest.plots import draw_distribution, draw_throughput
from loadtest.report import Result, Verdict
from loadtest.results import Series, plain, structure
from loadtest.servers.base import Server, kept_server
from loadtest.tables import (
    PERCENTILE_METHOD,
    describe_servers,
    find_latency_ms,
    find_rate,
    list_findings,
    tabulate_accuracy,
    tabulate_answers,
    tabulate_cpu,
    tabulate_latency,
    tabulate_throughput,
)
from loadtest.validity import find_doubts

KIND = "loadtest"


def ask(server: Server, scenarios: Sequence[Scenario]) -> dict[str, Any]:
    """What the result is told that it was asked."""
    return {"server": server.name, "scenarios": [plain(one) for one in scenarios]}


def run(bench: Bench, server: Server | None = None) -> Result:
    """Each scenario with its levels in turns, so that drift hits all alike."""
    server = server or kept_server(bench.asked["server"])
    every: list[Series] = []
    unknown: list[Verdict] = []
    for raw in bench.asked["scenarios"]:
        scenario = structure(raw, Scenario)
        capacity = 0.0
        if any(parse_share(level) for level in scenario.levels):
            try:
                capacity = bench.capacity(server, scenario.load)
            except CapacityError as problem:  # the other scenarios go on
                unknown.append(Verdict(what=scenario.name, why=str(problem)))
                continue
        pairs = [(server, scenario.at(level, capacity)) for level in scenario.levels]
        every += bench.turns(scenario.name, pairs, repeats=scenario.repeats).series
    names = dict.fromkeys(name for one in every for name in one.load.models or [one.load.name])
    result = show_loads(f"Load test of {', '.join(names)}", every)
    return replace(result, verdicts=[*result.verdicts, *unknown])


def show_loads(title: str, every: Sequence[Series]) -> Result:
    """Any series in the usual tables and plots."""
    closed = [one for one in every if not one.load.is_open]
    opened = [one for one in every if one.load.is_open]
    several = len({one.server for one in every}) > 1
    return Result(
        title=title,
        verdicts=[judge(one, f"{one.server}: " if several else "") for one in every],
        notes=[describe_servers(every)],
        tables=[
            tabulate_throughput(closed),
            tabulate_latency(opened),
            tabulate_answers(every),
            tabulate_accuracy(every),
            tabulate_cpu(every),
        ],
        plots=[
            draw_throughput([one for one in closed if not find_doubts(one)]),
            draw_distribution([one for one in opened if not find_doubts(one)]),
        ],
        findings=list_findings(every),
        method=[PERCENTILE_METHOD],
        text={
            f"ab's own report: {one.load.name}, repeat {number}": window.ab.text
            for one in every
            for number, window in enumerate(one.windows, 1)
            if window.ab
        },
    )


def judge(series: Series, before: str = "") -> Verdict:
    """The rate of a closed loop; the quoted percentile of an open one, against its limit."""
    load = series.load
    what = f"{before}{load.name}, {load.place}"
    if doubts := find_doubts(series):
        return Verdict(what=what, why="; ".join(f"{one.state} ({one.evidence})" for one in doubts))
    if not load.is_open:
        by = " (by ab)" if load.driver == "ab" else ""
        return Verdict(what=f"{what}: requests/s{by}", figure=find_rate(series))
    return Verdict(
        what=f"{what}: p{load.percentile:g}",
        figure=find_latency_ms(series, load.percentile),
        unit=" ms",
        limit=load.limit_ms,
        at_least=False,
    )
