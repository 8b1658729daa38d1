"""What a number of labelled inputs shows of a loss."""

from __future__ import annotations

import pytest

from models.gate.intervals import count_needed, find_interval


@pytest.mark.parametrize(
    ("lost", "gained", "samples", "low", "high"),
    [
        # Bonett and Price (2012): p = (6 + 1)/52 and (1 + 1)/52, 0.0962 ± 1.96 √((0.1731 − 0.0962²)/52).
        (6, 1, 50, -0.0139, 0.2062),
        (0, 0, 300, -0.0092, 0.0092),
        (2, 1, 300, -0.0112, 0.0178),
        (1, 2, 300, -0.0178, 0.0112),
        (60, 0, 100, 0.4889, 0.6875),
    ],
)
def test_intervals_are_those_of_the_formula(lost, gained, samples, low, high):
    assert find_interval(lost, gained, samples) == pytest.approx((low, high), abs=1e-4)


def test_intervals_hold_the_truth_19_times_of_20():
    # By what they are for: a true loss of half a point, seen through 300 inputs again and again.
    import numpy as np

    drawn = np.random.default_rng(0).multinomial(300, [0.02, 0.015, 0.965], size=4000)
    intervals = [find_interval(lost, gained, 300) for lost, gained, _ in drawn]
    covered = np.mean([low <= 0.005 <= high for low, high in intervals])
    assert 0.94 <= covered <= 0.98


@pytest.mark.parametrize(
    ("lost", "gained", "samples", "most", "needed"),
    [
        (2, 1, 300, 0.01, 1100),
        (1, 0, 300, 0.01, 580),
        (5, 3, 400, 0.01, 3200),
        (0, 0, 100, 0.01, 280),
    ],
)
def test_so_many_inputs_would_show_it_and_few_less_would_not(lost, gained, samples, most, needed):
    assert count_needed(lost, gained, samples, most) == needed

    def find_most(number: float) -> float:
        return find_interval(number * lost / samples, number * gained / samples, number)[1]

    assert find_most(needed) <= most < find_most(0.9 * needed)


@pytest.mark.parametrize(("lost", "gained"), [(3, 0), (9, 1)])
def test_no_number_of_inputs_shows_a_loss_that_is_the_bound_or_more(lost, gained):
    assert count_needed(lost, gained, 300, 0.01) is None
