"""A server in virtual time: service times are known exactly, and no machine's noise reaches them."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from loadtest.drivers.generator import Outcome
from loadtest.host import CpuUse
from loadtest.records import Records, make_records
from loadtest.schedule import plan_arrivals

QUIET = CpuUse(busy=0.5, steal=0.0)
ANSWER = '{"label": "good", "probabilities": {"good": 0.9, "bad": 0.1}}'


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


def as_outcome(records: Records, *, cores: float = 0.1) -> Outcome:
    """As a driver would report it."""
    return Outcome(records=records, wall_zero=0.0, cpu_shares=(cores,))
