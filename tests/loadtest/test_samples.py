"""Samples are kept raw, and windows and parts follow from them exactly."""

from __future__ import annotations

import numpy as np
import pytest

from loadtest.errors import LoadTestError
from loadtest.samples import join_samples, load_samples
from loadtest.spread import spread
from tests.loadtest.making import make_samples

TENTHS = [0.1] * 10
"""Answers at 0.1, 0.2 … 1.0 s."""


def test_a_window_counts_answers_not_starts():
    inside = make_samples(TENTHS).answered_within(0.35, 0.75)
    assert inside.payload.tolist() == [3, 4, 5, 6]


@pytest.mark.parametrize(("count", "expected"), [(8, [2, 2, 2, 2]), (10, [2, 3, 2, 3]), (3, [0, 1, 1, 1])])
def test_parts_hold_every_request_once(count, expected):
    samples = make_samples([0.1] * count)
    parts = [samples.part(number, of=4) for number in range(4)]
    assert [len(part) for part in parts] == expected
    assert np.concatenate([part.payload for part in parts]).tolist() == list(range(count))


def test_anything_but_200_is_an_error():
    assert make_samples(TENTHS).errors == 0
    assert make_samples(TENTHS, status=503).errors == 10
    assert make_samples(TENTHS, status=0).errors == 10


def test_saved_samples_come_back_unrounded(tmp_path):
    samples = make_samples([1 / 3, 2 / 7])
    samples.save(tmp_path / "samples.npz")
    back = load_samples(tmp_path / "samples.npz")
    assert back.latency.tolist() == [1 / 3, 2 / 7]
    assert back.payload.dtype == samples.payload.dtype


def test_joined_runs_keep_their_order():
    joined = join_samples([make_samples([0.1, 0.2]), make_samples([0.3])])
    assert joined.latency.tolist() == [0.1, 0.2, 0.3]


@pytest.mark.parametrize(
    ("values", "expected"), [([3.0, 1.0, 2.0], (2.0, 1.0, 3.0)), ([1.0, 2.0], (1.5, 1.0, 2.0))]
)
def test_a_spread_is_median_lowest_and_highest(values, expected):
    found = spread(values)
    assert (found.median, found.low, found.high) == expected


def test_nothing_measured_has_no_median():
    with pytest.raises(LoadTestError, match="no repeat was measured"):
        spread([])
