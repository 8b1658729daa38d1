"""How each window of the race is loaded: long enough for the percentile, all plans with the same arrivals."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from loadtest.results.stats import least_requests
from loadtest.scenarios.scenario import AUTO, Arrival, Latency, Scenario


@dataclass(frozen=True, kw_only=True)
class Limit:
    """What a latency must keep."""

    percentile: float
    seconds: float

    def __str__(self) -> str:
        """`p99 ≤ 200 ms`."""
        return f"p{self.percentile:g} ≤ {1000 * self.seconds:g} ms"


REQUESTS_TIMES = (2, 1)
"""As many as the percentile needs at least, twice: its own interval is then within a third. Where a host is
so slow that such windows leave no time for the finals, once: more windows tell more than long ones."""
LEAST_WINDOW_S = 4.0
LEAST_LIMITS = 20
"""Limits in a window: in it, a server that falls 5 % behind the rate breaks the limit."""
CLOSED_WINDOW_S = 8.0
WARM_UP_S = 1.0
"""Of each window: queues fill within a fraction of the limit."""
TIMEOUT_S = 10.0
"""Far beyond any limit: who waits longer counts as failed."""
CLOSED_TIMEOUT_S = 120.0
TURN_EXTRA_S = 6.0
"""Around each window, for Locust's start and end and the last answers: seen on two cores."""


@dataclass(frozen=True, kw_only=True)
class Windows:
    """Of one model and one limit."""

    model: str
    payloads: str
    limit: Limit
    times: int = REQUESTS_TIMES[0]
    """How often the requests that the percentile needs."""
    least_share: float = 1.0
    """Of the requests, those of the rarest model: its percentile is quoted, too."""

    def plan_seconds(self, rate: float) -> float:
        """Of one window at this rate."""
        needed = self.times * least_requests(self.limit.percentile) / self.least_share
        return max(LEAST_WINDOW_S, LEAST_LIMITS * self.limit.seconds, round(needed / rate, 1))

    def cost_s(self, rate: float) -> float:
        """With what is around it."""
        return self.plan_seconds(rate) + WARM_UP_S + TURN_EXTRA_S

    def make_open(self, rate: float, *, seed: int, repeats: int = 1) -> Scenario:
        """Poisson arrivals of this seed."""
        latency = Latency(percentile=self.limit.percentile, limit_ms=1000 * self.limit.seconds)
        return Scenario(
            name=f"tune-{self.model}",
            model=self.model,
            payloads=self.payloads,
            arrival=Arrival(loop="open", seed=seed),
            steps=(rate,),
            warm_up_s=WARM_UP_S,
            duration_s=self.plan_seconds(rate),
            repeats=repeats,
            timeout_s=TIMEOUT_S + self.limit.seconds,
            latency=latency,
        )

    def make_closed(self) -> Scenario:
        """As many users as keep every worker in full batches."""
        return dataclasses.replace(
            self.make_open(1.0, seed=1),
            name=f"tune-{self.model}-saturated",
            arrival=Arrival(loop="closed"),
            steps=(AUTO,),
            duration_s=CLOSED_WINDOW_S,
            timeout_s=CLOSED_TIMEOUT_S,
            leave_out_first_round=True,
            least_rounds=2,
        )
