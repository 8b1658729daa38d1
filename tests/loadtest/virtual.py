"""A server in virtual time: service times are known exactly, and no machine's noise reaches them."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from handlers.answers import Tolerance
from loadtest.answers import Expected, check_answers
from loadtest.bench import make_window
from loadtest.drivers import Outcome
from loadtest.load import Load
from loadtest.machine import CpuUse
from loadtest.results import Series
from loadtest.rows import make_rows
from loadtest.schedule import list_gaps
from tests.loadtest.making import ANSWER, QUIET, make_facts

TRUE_ANSWER = {"label": "good", "probabilities": {"good": 0.9, "bad": 0.1}}
EXPECTED = Expected(
    source="test", fp32=(TRUE_ANSWER,), distinguishable_pairs=1.0,
    answers=((TRUE_ANSWER, Tolerance(relative=0.01, absolute=0.001)),),
)  # fmt: skip


@dataclass(kw_only=True)
class VirtualServer:
    """Workers that serve one request at a time, first come first served."""

    service: Callable[[float], float]
    """Seconds of a worker that a request begun at this moment takes."""
    workers: int = 1

    def __post_init__(self) -> None:
        self._free = [-1e9] * self.workers

    def serve(self, arrived: float) -> float:
        """When the answer to a request that arrived then is complete."""
        begun = max(arrived, heapq.heappop(self._free))
        ended = begun + self.service(begun)
        heapq.heappush(self._free, ended)
        return ended


def simulate_open(
    server: VirtualServer,
    *,
    rate: float,
    begin_s: float,
    end_s: float,
    seed: int = 1,
) -> pd.DataFrame:
    """Requests arrive when they are due, whatever becomes of the earlier ones."""
    moments = itertools.accumulate(gap / rate for gap in list_gaps(seed=seed))
    due = itertools.takewhile(lambda at: at < end_s, (begin_s + at for at in moments))
    return make_rows([(0, moment, moment, server.serve(moment), 200, 0, "") for moment in due])


def simulate_closed(server: VirtualServer, *, users: int, begin_s: float, end_s: float) -> pd.DataFrame:
    """Each user sends the next request after the answer."""
    ready = [begin_s] * users
    heapq.heapify(ready)
    rows = []
    while (moment := heapq.heappop(ready)) < end_s:
        ended = server.serve(moment)
        rows.append((0, math.nan, moment, ended, 200, 0, ""))
        heapq.heappush(ready, ended)
    return make_rows(rows)


def noisy(seconds: float, *, spread: float, random: np.random.Generator) -> Callable[[float], float]:
    """Log-normal around a median."""
    return lambda _: seconds * float(np.exp(random.normal(0, spread)))


def simulate(load: Load, *, service_s: float = 0.05, seed: int = 1) -> pd.DataFrame:
    """One repeat against two virtual workers."""
    random = np.random.default_rng(1000 + seed)  # not the arrivals' seed
    server = VirtualServer(service=noisy(service_s, spread=0.1, random=random), workers=2)
    span = {"begin_s": -load.warm_up_s, "end_s": load.duration_s + 2}
    if load.rate is not None:
        return simulate_open(server, rate=load.rate, seed=seed, **span)
    return simulate_closed(server, users=load.users or 1, **span)


def simulate_series(
    load: Load,
    *,
    repeats: int = 2,
    service_s: float = 0.05,
    host: CpuUse = QUIET,
    cores: float = 0.1,
    change: Callable[[pd.DataFrame], None] = lambda _: None,
    answers: Sequence[str] = (ANSWER,),
) -> Series:
    """All repeats; `change` may alter the rows of each before they are validated."""
    rows = [simulate(load, service_s=service_s, seed=repeat + 1) for repeat in range(repeats)]
    for each in rows:
        change(each)
    return series_of_rows(rows, load, host=host, cores=cores, answers=answers)


def series_of_rows(
    rows: Sequence[pd.DataFrame],
    load: Load,
    *,
    host: CpuUse = QUIET,
    cores: float = 0.1,
    answers: Sequence[str] = (ANSWER,),
) -> Series:
    """As the bench makes windows of them."""
    windows = []
    for repeat, each in enumerate(rows):
        outcome = Outcome(rows=each, answers=answers, wall_zero=0.0, cpu_shares=(cores,))
        window = make_window(load, outcome, check_answers(each, answers, EXPECTED))
        windows.append(replace(window, repeat=repeat, cpu=host))
    return Series(facts=make_facts("virtual"), load=load, windows=tuple(windows), rows=tuple(rows))
