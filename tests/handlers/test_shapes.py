"""A batch is cut into warmed shapes only, every sample lands in exactly one run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.shared.shapes import all_shapes, plan_runs, split_batch


@pytest.mark.parametrize(
    ("count", "sizes", "expected"),
    [
        (0, [1, 2, 4], []),
        (1, [1, 2, 4], [1]),
        (7, [1, 2, 4], [4, 2, 1]),
        (13, [1, 2, 4, 8, 16], [8, 4, 1]),
        (20, [1, 16], [16, 1, 1, 1, 1]),
    ],
)
def test_batches_are_cut_largest_first(count, sizes, expected):
    assert split_batch(count, sizes) == expected


def test_all_shapes_are_warmed_largest_first():
    shapes = [(shape.length, shape.batch_size) for shape in all_shapes([1, 2], [16, 32])]
    assert shapes == [(32, 2), (32, 1), (16, 2), (16, 1)]


@given(st.lists(st.integers(min_value=1, max_value=32), max_size=40))
def test_runs_use_warmed_shapes_and_hold_each_sample_once(needed):
    sizes, lengths = [1, 2, 4], [8, 16, 32]
    warmed = {(shape.batch_size, shape.length) for shape in all_shapes(sizes, lengths)}
    runs = plan_runs(needed, batch_sizes=sizes, lengths=lengths)
    assert {(len(run.samples), run.length) for run in runs} <= warmed
    assert sorted(sample for run in runs for sample in run.samples) == list(range(len(needed)))
    for run in runs:
        assert all(needed[sample] <= run.length for sample in run.samples)


def test_a_sample_takes_the_smallest_length_that_holds_it():
    (run,) = plan_runs([8], batch_sizes=[1], lengths=[8, 16])
    assert run.length == 8
