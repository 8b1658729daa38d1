"""The figures of one series, made from its rows: rate and percentiles with their intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from loadtest.results.stats import (
    Interval,
    find_mean_interval,
    find_percentile_interval,
    least_requests,
    pick,
    split_by_time,
)
from loadtest.results.trial import Series

QUOTED = (50.0, 90.0, 95.0, 99.0, 99.9)
CURVE = tuple(round(p, 1) for p in [*np.arange(0.0, 99.0, 1.0), *np.arange(99.0, 99.91, 0.1), 100.0])
"""Percentiles of the distribution's plot; the far ends of few requests are drawn, not quoted."""
MOST_ERRORS = 8
QUARTERS, STRETCHES = 4, 20
"""Of all requests since ready, and of a quarter: stretches are drawn again, as one stall hits neighbours."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """All repeats together. Whether they may be quoted is for the rules of validity to say."""

    requests: int
    errors: int
    error_kinds: Mapping[str, int]
    rate: Interval
    """Requests a second; the interval is over blocks of time of all repeats."""
    percentiles_ms: Mapping[str, Interval | None]
    """By percentile; None where there are too few requests for it."""
    curve_ms: tuple[float, ...]
    """Milliseconds at each percentile of CURVE; empty without an answer."""

    @property
    def good(self) -> int:
        return self.requests - self.errors


def summarise(series: Series) -> Figures:
    """Of one system under one load."""
    blocks = split_latencies_ms(series)
    every = np.concatenate(blocks) if blocks else np.empty(0)
    kinds: Counter[str] = Counter()
    for trial in series.trials:
        kinds.update(trial.error_kinds)
    return Figures(
        requests=sum(one.requests for one in series.trials),
        errors=sum(one.errors for one in series.trials),
        error_kinds=dict(kinds.most_common(MOST_ERRORS)),
        rate=find_mean_interval([rate for one in series.trials for rate in one.rates]),
        percentiles_ms={f"{p:g}": _quote(blocks, len(every), p) for p in QUOTED},
        curve_ms=tuple(round(pick(every, p), 3) for p in CURVE) if len(every) else (),
    )


def split_latencies_ms(series: Series) -> list[np.ndarray]:
    """Of the good requests, by block of time, over all repeats."""
    return [
        1000 * block
        for trial, records in zip(series.trials, series.records, strict=True)
        for block in split_by_time(records, trial.begin_s, trial.end_s)
        if len(block)
    ]


def _quote(blocks: Sequence[np.ndarray], count: int, percentile: float) -> Interval | None:
    return find_percentile_interval(blocks, percentile) if count >= least_requests(percentile) else None
