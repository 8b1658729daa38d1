"""Measurements and sides with known figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from loadtest.cpu import CpuUse
from loadtest.samples import Samples
from loadtest.sides import Measurement
from loadtest.turns import Turns


def make_samples(latencies: Sequence[float], *, status: int = 200) -> Samples:
    """One request after the other, each of so many seconds."""
    latency = np.array(latencies, dtype=float)
    count = len(latency)
    return Samples(
        start=np.cumsum(latency) - latency,
        latency=latency,
        status=np.full(count, status),
        size=np.full(count, 10),
        payload=np.arange(count),
    )


def make_measurement(rate: float = 10.0, **values: Any) -> Measurement:
    """A turn of ten seconds."""
    known = {"requests": 100, "seconds": 10.0, "cpu": CpuUse(seconds=10.0)}
    return Measurement(rate=rate, **{**known, **values})


@dataclass(kw_only=True)
class FakeSide:
    """Gives the rates it was told, one a turn; `log` says who was measured when."""

    name: str
    rates: list[float]
    how: str = "by hand"
    log: list[str] = field(default_factory=list)

    def measure(self, seconds: float) -> Measurement:
        self.log.append(self.name)
        return make_measurement(self.rates.pop(0), seconds=seconds)


def make_turns(name: str, *repeats: Measurement, warm_up: Sequence[Measurement] = ()) -> Turns:
    """What was measured of a side."""
    side = FakeSide(name=name, rates=[])
    return Turns(side=side, warm_up=tuple(warm_up), repeats=repeats)
