"""A server in virtual time: service times are known exactly, and no machine's noise reaches them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadtest.answers.check import Expected, Tolerance
from loadtest.drivers.job import Outcome
from loadtest.drivers.records import Records, make_records
from loadtest.drivers.schedule import plan_arrivals
from loadtest.results.trial import CpuUse, Series
from loadtest.scenarios.scenario import Scenario
from loadtest.systems.system import System
from loadtest.trials.trial import Load, make_trial
from tests.loadtest.making import ANSWER, QUIET, make_facts

TRUE_ANSWER = {"label": "good", "probabilities": {"good": 0.9, "bad": 0.1}}
EXPECTED = Expected(
    source="test",
    answers=(TRUE_ANSWER,),
    fp32=(TRUE_ANSWER,),
    tolerances=(Tolerance(relative=0.01, absolute=0.001),),
)


@dataclass(kw_only=True)
class VirtualServer:
    """Workers that serve one request at a time, first come first served."""

    service: Callable[[float], float]
    """Seconds of a worker that a request begun at this moment takes."""
    workers: int = 1
    pause_at: float | None = None
    """Everything stands still from here …"""
    pause_s: float = 0.0
    """… for so long."""

    def __post_init__(self) -> None:
        self._free = [-1e9] * self.workers

    def serve(self, arrived: float) -> float:
        """When the answer to a request that arrived then is complete."""
        begun = max(arrived, heapq.heappop(self._free))
        ended = begun + self.service(begun)
        if self.pause_at is not None:
            paused_until = self.pause_at + self.pause_s
            if begun < self.pause_at < ended:
                ended += self.pause_s
            elif self.pause_at <= begun < paused_until:
                ended += paused_until - begun
        heapq.heappush(self._free, ended)
        return ended


def simulate_open(
    server: VirtualServer,
    *,
    rate: float,
    begin_s: float,
    end_s: float,
    process: str = "constant",
    seed: int = 1,
) -> Records:
    """Requests arrive when they are due, whatever becomes of the earlier ones."""
    due = plan_arrivals(process, rate=rate, begin_s=begin_s, end_s=end_s, seed=seed)
    rows = [(0, moment, moment, server.serve(moment), 200, 0, "") for moment in due.tolist()]
    return make_records(rows, [ANSWER])


def simulate_closed(server: VirtualServer, *, users: int, begin_s: float, end_s: float) -> Records:
    """Each user sends the next request after the answer."""
    ready = [begin_s] * users
    heapq.heapify(ready)
    rows = []
    while (moment := heapq.heappop(ready)) < end_s:
        ended = server.serve(moment)
        rows.append((0, float("nan"), moment, ended, 200, 0, ""))
        heapq.heappush(ready, ended)
    return make_records(rows, [ANSWER])


def constant(seconds: float) -> Callable[[float], float]:
    return lambda _: seconds


def noisy(seconds: float, *, spread: float, random: np.random.Generator) -> Callable[[float], float]:
    """Log-normal around a median."""
    return lambda _: seconds * float(np.exp(random.normal(0, spread)))


def simulate(scenario: Scenario, *, level: float, service_s: float = 0.05, seed: int = 1) -> Records:
    """One repeat against two virtual workers."""
    random = np.random.default_rng(1000 + seed)  # not the arrivals' seed
    server = VirtualServer(service=noisy(service_s, spread=0.1, random=random), workers=2)
    span = {"begin_s": -scenario.warm_up_s, "end_s": scenario.duration_s + 2}
    if scenario.is_open:
        return simulate_open(server, rate=level, process="poisson", seed=seed, **span)
    return simulate_closed(server, users=int(level), **span)


def simulate_series(
    scenario: Scenario, *, level: float, service_s: float = 0.05, host: CpuUse = QUIET, cores: float = 0.1,
    change: Callable[[Records], None] = lambda _: None,
) -> Series:  # fmt: skip
    """All repeats; `change` may alter the rows of each before they are judged."""
    rows = [
        simulate(scenario, level=level, service_s=service_s, seed=repeat + 1)
        for repeat in range(scenario.repeats)
    ]
    for records in rows:
        change(records)
    return series_of_rows(rows, scenario, level=level, host=host, cores=cores)


def series_of_rows(
    rows: Sequence[Records], scenario: Scenario, *, level: float, host: CpuUse = QUIET, cores: float = 0.1
) -> Series:
    """As the core makes trials of them."""
    load = Load(
        system=System(name="virtual", models=()),
        scenario=scenario,
        level=level,
        payloads=(),
        expected=EXPECTED,
    )
    trials = [
        make_trial(
            load,
            Outcome(records=records, wall_zero=0.0, cpu_shares=(cores,)),
            repeat=repeat,
            duration_s=scenario.duration_s,
        )
        for repeat, records in enumerate(rows)
    ]
    judged = tuple(replace(one, cpu=host) for one in trials)
    facts = make_facts("virtual")
    return Series(facts=facts, scenario=scenario, level=level, trials=judged, records=tuple(rows))
