"""A rung under load: Locust, closed loop, long enough for a slow server, its rate free of bursts."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from loadtest.ladder.figures import count_rates
from loadtest.ladder.rungs import Rung
from loadtest.ladder.settings import FILLED, UNPINNED
from loadtest.servers import Server
from loadtest.sides import RAMP_SECONDS, LocustSide, Measurement

SINGLE_USERS = 8
"""Of servers without batches: each worker has requests waiting; more would only wait longer."""
STOCK_USERS = 32
"""A full batch of stock's one worker."""
BATCH_USERS = 64
"""Two full batches of 16 for each of two workers, as in `make targets`: one is computed, one waits."""
UNSTEADY_STRETCH = 4
"""Stock as it comes has more threads than CPUs, which wait for each other spinning: for seconds at a time it
gives a fifth of its rate (seen), so it takes longer to tell its mean."""
PARTS = 2
"""Of such a turn, each long enough to hold several of those seconds."""
ROUNDS = 2
"""Answers of each user in a window, at least."""


def count_users(rung: Rung) -> int:
    """Requests under way at any time."""
    if rung.settings.batches != FILLED:
        return SINGLE_USERS
    return STOCK_USERS if rung.is_stock else BATCH_USERS


@dataclass(kw_only=True)
class RungSide:
    """Remembers its rate, which tells how long the next turn must be."""

    locust: LocustSide
    done: Callable[[float], None]
    """Told how long each turn was to be, for the estimate of the time that is left."""
    last_rate: float = 0.0

    @property
    def name(self) -> str:
        return self.locust.name

    @property
    def how(self) -> str:
        return self.locust.how

    def measure(self, seconds: float) -> Measurement:
        """A window of so many seconds behind the first round, or of a few rounds when that is longer."""
        users = self.locust.users
        first_round = users / self.last_rate if self.last_rate else 0.0
        asked = max(0.0, first_round - RAMP_SECONDS)
        asked += max(self.locust.stretch * seconds, ROUNDS * first_round)
        measured = replace(self.locust, stretch=1.0).measure(asked)
        samples = measured.samples
        assert samples is not None  # Locust always gives them
        parts: tuple[float, ...] = ()
        rate = len(samples) / measured.seconds
        if self.last_rate:
            count = PARTS if self.locust.stretch > 1 else 1
            window = {"begin_s": RAMP_SECONDS, "end_s": RAMP_SECONDS + asked}
            parts = count_rates(samples, users=users, parts=count, **window)
            rate = statistics.mean(parts)
        self.last_rate = rate
        self.done(self.locust.stretch * seconds)
        return replace(measured, rate=rate, parts=parts if len(parts) > 1 else ())


def make_side(
    rung: Rung, server: Server, payloads: Path, folder: Path, done: Callable[[float], None]
) -> RungSide:
    """The first payloads come first, each time."""
    locust = LocustSide(
        server=server,
        payloads=payloads,
        users=count_users(rung),
        folder=folder,
        stretch=UNSTEADY_STRETCH if is_unsteady(rung) else 1.0,
        shuffle=False,
    )
    return RungSide(locust=locust, done=done)


def is_unsteady(rung: Rung) -> bool:
    """More threads than CPUs."""
    return rung.is_stock and rung.settings.workers == UNPINNED
