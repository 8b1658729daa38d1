"""What a difference of accuracy on paired inputs shows: a 95 % interval, and how many inputs would do.

The interval is Bonett and Price's adjusted Wald interval (2012, Journal of Educational and Behavioral
Statistics 37:479), which Fagerland, Lydersen and Laake recommend for paired proportions (2014, Statistics in
Medicine 33:2850): one input is added to those lost and to those gained, so that it holds for few or none.
"""

from __future__ import annotations

import math

Z = 1.96
"""Of the normal distribution: 95 % lie within so many standard deviations."""
MOST_INPUTS = 10_000_000
"""Beyond this nobody labels: a loss so near to the bound cannot be told from it."""


def find_interval(lost: float, gained: float, samples: float) -> tuple[float, float]:
    """Least and most share of right answers lost, at 95 %, when so many of `samples` were lost and gained."""
    total = samples + 2
    p_lost, p_gained = (lost + 1) / total, (gained + 1) / total
    middle = p_lost - p_gained
    half = Z * math.sqrt((p_lost + p_gained - middle**2) / total)
    return max(-1.0, middle - half), min(1.0, middle + half)


def count_needed(lost: int, gained: int, samples: int, most: float) -> int | None:
    """About how many inputs would show a loss of at most `most` (a share), if it stays as it was seen.

    Rounded up to two digits; None where no number would.
    """

    def shows(number: float) -> bool:
        return find_interval(number * lost / samples, number * gained / samples, number)[1] <= most

    high = samples
    while not shows(high):
        high *= 2
        if high > MOST_INPUTS:
            return None
    low = 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if shows(middle) else (middle, high)
    unit = 10 ** max(0, len(str(high)) - 2)
    return -(-high // unit) * unit
