"""Plans arrivals before they are due, and which payload each request carries.

Nothing here looks at the server: a slow answer can never delay a later arrival (coordinated omission).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

LEAD_S = 0.5
"""From the start of a run to its first request: spawning must not delay the first arrivals."""
DRAWN_AT_ONCE = 1024


def list_gaps(*, seed: int) -> Iterator[float]:
    """Gaps between Poisson arrivals without end, in units of their mean."""
    random = np.random.default_rng(seed)
    while True:
        yield from random.exponential(1.0, DRAWN_AT_ONCE).tolist()


def order_payloads(payloads: int, *, seed: int) -> Iterator[int]:
    """Which payload each request carries: all of them in each round, every round in another order."""
    random = np.random.default_rng(seed + 1_000_003)
    while True:
        yield from random.permutation(payloads).tolist()
