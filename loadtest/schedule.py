"""Plans arrivals before a run starts: when each request is due and which payload it carries.

Nothing here looks at the server: a slow answer can never delay a later arrival (coordinated omission).
"""

from __future__ import annotations

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


def plan_payloads(count: int, *, payloads: int, seed: int) -> np.ndarray:
    """Which payload each request carries: all of them in each round, every round in another order."""
    random = np.random.default_rng(seed + 1_000_003)
    rounds = -(-count // payloads) if count else 0
    order = [random.permutation(payloads) for _ in range(rounds)]
    return np.concatenate(order)[:count] if order else np.empty(0, dtype=int)


def take_share(items: np.ndarray, *, worker: int, workers: int) -> np.ndarray:
    """What one of several generators sends; all together send everything once."""
    return items[worker::workers]
