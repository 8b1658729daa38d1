"""The middle and the spread of repeats."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.errors import LoadTestError


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The middle of some repeats, and how far apart they are."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.4g} ({self.low:.4g}-{self.high:.4g})"


def spread(values: Sequence[float]) -> Spread:
    """LoadTestError when there is nothing to take the median of."""
    if not values:
        raise LoadTestError("no repeat was measured: there is no median")
    return Spread(median=statistics.median(values), low=min(values), high=max(values))
