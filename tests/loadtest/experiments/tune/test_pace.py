"""A slow minute is told from a dear plan, and its windows count as the load that they were."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from loadtest.errors import LoadTestError
from loadtest.experiments.tune.evidence import START, list_seen
from loadtest.experiments.tune.pace import Cost, find_paces, find_ratio
from loadtest.experiments.tune.space import read_space
from loadtest.results.trial import KeptBlock
from tests.loadtest.experiments.tune.live import plan
from tests.loadtest.experiments.tune.results import Change, make_asked, run_tune
from tests.loadtest.making import QUIET, make_trial

DEFAULT_PLAN = plan(4, 1)


def make_costs(machine: dict[str, float], own: dict[str, float]) -> list[Cost]:
    """Each plan in each minute, with noise of a hundredth."""
    random = np.random.default_rng(0)
    return [
        Cost(plan=name, group=minute, ratio=dear * slow * float(np.exp(random.normal(0, 0.01))))
        for minute, slow in machine.items()
        for name, dear in own.items()
    ]


def test_a_slow_minute_is_the_machines_and_a_dear_plan_its_own():
    minutes = {"a": 1.0, "b": 1.2, "c": 0.95}
    costs = make_costs(minutes, {"x": 1.0, "y": 1.4, "z": 0.9})
    for cost, pace in zip(costs, find_paces(costs), strict=True):
        assert pace == pytest.approx(minutes[cost.group], rel=0.04)


def test_a_plan_that_met_slow_minutes_alone_is_not_taken_for_a_dear_one():
    """`y` was dropped, `z` raced later, and the machine was slow meanwhile."""
    costs = make_costs({"a": 1.0}, {"x": 1.0, "y": 1.0}) + make_costs(
        {"b": 1.2, "c": 1.2}, {"x": 1.0, "z": 1.0}
    )
    paces = dict(zip([(cost.plan, cost.group) for cost in costs], find_paces(costs), strict=True))
    assert paces["z", "b"] / paces["y", "a"] == pytest.approx(1.2, rel=0.05)


def test_no_windows_have_no_pace():
    assert find_paces([]) == []


def test_what_workers_took_is_compared_with_what_was_simulated_for_such_batches():
    space = read_space(make_asked(DEFAULT_PLAN))
    spent = replace(QUIET, by_role={"worker": 10.0 * 5 * 0.027})
    one = make_trial("default", rate=5.0, level=5.0, requests=50, cpu=spent)
    # At 5/s hardly two come together: 13.5 ms a request (live.py).
    assert find_ratio(space, (), one) == pytest.approx(2.0, rel=0.05)
    for silent in (None, replace(QUIET, by_role={})):
        assert find_ratio(space, (), replace(one, cpu=silent)) is None


def test_the_rate_of_a_window_counts_as_the_load_that_it_was(tmp_path):
    """The machine of these tests drifts by 4 % from window to window, and its workers' time tells."""
    seen = list_seen(run_tune(tmp_path, default=DEFAULT_PLAN, blocks=2))
    paces = [one.pace for one in seen]
    assert 1.02 < max(paces) < 1.06
    assert 0.94 < min(paces) < 0.98
    assert all(one.load == one.arrived * one.pace for one in seen)
    assert 0.01 < max(abs(one.arrived / one.rate - 1) for one in seen) < 0.15


def test_without_the_workers_time_all_windows_count_alike(tmp_path):
    seen = list_seen(run_tune(tmp_path, default=DEFAULT_PLAN, blocks=2, change=forget_in("race-1")))
    assert {one.pace for one in seen} == {1.0}


def test_without_the_workers_time_nothing_is_told_of_the_default(tmp_path):
    with pytest.raises(LoadTestError, match="cannot be told: the CPU time of its workers was not seen"):
        run_tune(tmp_path, default=DEFAULT_PLAN, change=forget_in(START))


def forget_in(name: str) -> Change:
    """What the workers took."""

    def forget(block: KeptBlock) -> KeptBlock:
        if block.name != name:
            return block
        trials = (replace(one, cpu=replace(one.cpu, by_role={})) for one in block.trials)
        return replace(block, trials=tuple(trials))

    return forget
