"""A batch is cut into warmed shapes only, each sample lands in one run, runs and padding cost least."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from handlers.shared.shapes import RUN_COST, PackingEfficiency, Run, ShapeGrid, WholeBatch

TEXTS = ShapeGrid(batch_sizes=(1, 2, 4), lengths=(8, 16, 32), tokens_per_run=32)


@pytest.mark.parametrize(
    ("count", "sizes", "expected"),
    [
        (0, (1, 2, 4), []),
        (1, (1, 2, 4), [1]),
        (7, (1, 2, 4), [1, 2, 4]),
        (13, (1, 2, 4, 8, 16), [1, 4, 8]),
        (20, (1, 16), [1, 1, 1, 1, 16]),
    ],
)
def test_samples_of_one_size_are_cut_into_the_fewest_runs(count, sizes, expected):
    runs = ShapeGrid(batch_sizes=sizes).plan_runs([0] * count)
    assert sorted(len(run.samples) for run in runs) == expected


def test_shapes_are_warmed_largest_first_and_within_the_tokens_of_a_run():
    shapes = [(shape.length, shape.batch_size) for shape in TEXTS.list_shapes()]
    assert shapes == [(32, 1), (16, 2), (16, 1), (8, 4), (8, 2), (8, 1)]


@settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(min_value=1, max_value=32), max_size=40))
def test_runs_use_warmed_shapes_and_hold_each_sample_once(needed):
    warmed = {(shape.batch_size, shape.length) for shape in TEXTS.list_shapes()}
    runs = TEXTS.plan_runs(needed)
    assert {(len(run.rows), run.length) for run in runs} <= warmed
    assert sorted(sample for run in runs for sample in run.samples) == list(range(len(needed)))
    for run in runs:
        assert all(needed[sample] <= run.length for sample in run.samples)


@settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(min_value=1, max_value=32), min_size=1, max_size=6))
def test_no_other_cut_of_the_sorted_samples_costs_less(needed):
    def cost(runs):
        return sum(RUN_COST + len(run.rows) * run.length for run in runs)

    ordered = sorted(needed)
    cheapest = min(
        sum(RUN_COST + len(part) * TEXTS.fit_length(max(part)) for part in parts)
        for parts in cut_everywhere(ordered)
        if all(TEXTS.allows(len(part), TEXTS.fit_length(max(part))) for part in parts)
    )
    assert cost(TEXTS.plan_runs(needed)) == cheapest


def cut_everywhere(ordered):
    for cuts in itertools.product([False, True], repeat=len(ordered) - 1):
        parts, part = [], [ordered[0]]
        for cut, sample in zip(cuts, ordered[1:], strict=True):
            if cut:
                parts.append(part)
                part = []
            part = [*part, sample]
        yield [*parts, part]


def test_the_baseline_pads_all_to_the_longest():
    baseline = WholeBatch(batch_sizes=(1, 2))
    assert baseline.plan_runs([3, 30, 7]) == [Run(rows=((0,), (1,), (2,)), length=30)]
    assert baseline.plan_runs([]) == []


def test_fill_is_counted():
    efficiency = PackingEfficiency()
    assert efficiency.describe()["share"] == 1
    efficiency.count(Run(rows=((0, 1), (2,)), length=8), [2, 4, 4])
    assert efficiency.describe() == {"runs": 1, "tokens": 10, "computed_tokens": 16, "share": 0.625}
