"""`make soak`: the running server under mixed requests to all its models, at 80 % of what they reach, for ten
minutes: do the workers' memory and the latency stay as they were, and does nothing fail?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from loadtest.bench import Bench
from loadtest.errors import LoadTestError
from loadtest.load import LONGEST_S, Load
from loadtest.report import Result, Verdict, make_table
from loadtest.results import Series, plain, structure
from loadtest.servers.base import Server, kept_server
from loadtest.stats import Interval
from loadtest.tables import (
    PERCENTILE_METHOD,
    describe_servers,
    find_latency_ms,
    list_findings,
    tabulate_answers,
    tabulate_latency,
)
from loadtest.validity import OF_THE_MACHINE, find_doubts

KIND = "soak"
SECONDS = 600.0
LEGS = 4
"""Equal parts of the open loop; memory is kept after each, so that one sees whether it still grows."""
FIRST_S = 40.0
"""Of a closed loop, before memory is looked at first; it tells the rate, too."""
USERS = 64
SHARE = 0.8
"""Of the closed loop's rate."""
GROWTH_PERCENT = 5.0
PERCENTILE = 99.0
SLOWER = 1.1
"""The last leg's percentile to the first one's, at most."""
SEED = 7


def ask(server: Server, models: Sequence[str], *, seconds: float) -> dict[str, Any]:
    """LoadTestError says what may be."""
    if not 60 <= seconds <= LONGEST_S * LEGS:
        raise LoadTestError(f"DURATION must be 60 to {LONGEST_S * LEGS:g}: got {seconds:g}")
    load = Load(
        name="mixture", models=tuple(models), payloads="mixture", warm_up_s=0.0, percentile=PERCENTILE
    )
    return {"server": server.name, "load": plain(load), "seconds": seconds}


def run(bench: Bench, server: Server | None = None) -> Result:
    """A closed loop, then the legs; the server goes on from the first to the last."""
    server = server or kept_server(bench.asked["server"])
    load = structure(bench.asked["load"], Load)
    first = bench.measure("first", server, replace(load, users=USERS, duration_s=FIRST_S, seed=SEED))
    leg = replace(
        load, rate=round(SHARE * first.windows[0].rate, 2), duration_s=bench.asked["seconds"] / LEGS
    )
    legs = [
        bench.measure(f"leg-{number}", server, replace(leg, name=f"leg {number}", seed=SEED + number))
        for number in range(1, LEGS + 1)
    ]
    every = [first, *legs]
    ends = {f"after {one.load.name}, MiB": one.windows[-1].memory_mib for one in every}
    workers = dict.fromkeys(worker for mib in ends.values() for worker in mib)
    memory = [{"worker": one, **{end: mib.get(one) for end, mib in ends.items()}} for one in workers]
    return Result(
        title=f"Soak of {server.name}",
        verdicts=judge(every, bench.asked["seconds"]),
        notes=[describe_servers(every)],
        tables=[
            make_table(
                "Resident memory of each worker",
                memory,
                f"The first is a closed loop, the others {SHARE:.0%} of its rate.",
            ),
            tabulate_latency(legs),
            tabulate_answers(every),
        ],
        findings=list_findings(every, without=OF_THE_MACHINE),
        method=[PERCENTILE_METHOD],
    )


def judge(every: Sequence[Series], seconds: float) -> list[Verdict]:
    """Of the tail, and of each worker; one alone, without a figure, where something makes them void."""
    what = "what became of memory and latency"
    # Memory grows by requests, whatever else the machine does.
    doubts = [str(one) for series in every for one in find_doubts(series, without=OF_THE_MACHINE)]
    early, late = (every[number].windows[-1].memory_mib for number in (0, -1))
    if set(early) != set(late) or not early:
        doubts.append(f"workers must stay the same: got {sorted(late)} after {sorted(early)}")
    first, last = (find_latency_ms(one, PERCENTILE) for one in (every[1], every[-1]))
    if first is None or last is None:
        doubts.append(f"p{PERCENTILE:g} needs more requests; run longer (DURATION=)")
    if doubts or first is None or last is None:
        return [Verdict(what=what, why="; ".join(doubts))]
    ratio = Interval(value=last.value / first.value, low=last.low / first.high, high=last.high / first.low)
    slower = Verdict(
        what=f"p{PERCENTILE:g} of the last leg / of the first one", figure=ratio, unit="×", limit=SLOWER,
        at_least=False, why=f"{first.value:.0f} ms, then {last.value:.0f} ms, at {every[1].load.place}",
    )  # fmt: skip
    return [slower, *(_judge_growth(worker, mib, late[worker], seconds) for worker, mib in early.items())]


def _judge_growth(worker: str, early_mib: float, late_mib: float, seconds: float) -> Verdict:
    percent = 100 * (late_mib / early_mib - 1)
    return Verdict(
        what=f"{worker}: growth of its resident memory",
        figure=Interval(value=percent, low=percent, high=percent),
        unit=" %",
        limit=GROWTH_PERCENT,
        at_least=False,
        why=f"{early_mib:.0f} MiB, then {late_mib:.0f} MiB after {seconds / 60:g} minutes",
    )
