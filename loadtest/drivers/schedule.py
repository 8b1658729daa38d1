"""Plans arrivals before a run starts: when each request is due and which payload it carries.

Nothing here looks at the server: a slow answer can never delay a later arrival (coordinated omission).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def plan_arrivals(process: str, *, rate: float, begin_s: float, end_s: float, seed: int) -> np.ndarray:
    """Due times in seconds, ascending, from `begin_s` to below `end_s`."""
    length = end_s - begin_s
    if process == "constant":
        return begin_s + np.arange(0, length, 1 / rate)
    random = np.random.default_rng(seed)
    # Six deviations above the mean: the draw reaches the end but for one seed in 10^9, and then once more.
    count = int(rate * length + 6 * np.sqrt(rate * length) + 10)
    due = np.cumsum(random.exponential(1 / rate, count))
    while due[-1] < length:
        due = np.concatenate([due, due[-1] + np.cumsum(random.exponential(1 / rate, count))])
    return begin_s + due[due < length]


def order_payloads(payloads: int, *, seed: int) -> Iterator[int]:
    """Which payload each request carries: all of them in each round, every round in another order."""
    random = np.random.default_rng(seed + 1_000_003)
    while True:
        yield from random.permutation(payloads).tolist()


def share_count(count: int | None, *, worker: int, workers: int) -> int | None:
    """How many of `count` requests one of several generators sends; None is no end."""
    return None if count is None else len(range(worker, count, workers))
