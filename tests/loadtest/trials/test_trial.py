"""The window of a trial: how long it is planned, where it opens, and what is counted in it."""

from __future__ import annotations

import numpy as np
import pytest

from loadtest.drivers.job import Outcome
from loadtest.drivers.records import make_records
from loadtest.errors import LoadTestError
from loadtest.systems.system import System
from loadtest.trials.trial import Load, make_trial, plan_duration
from tests.loadtest.making import ANSWER, make_scenario
from tests.loadtest.simulated import EXPECTED

SETTLED = make_scenario(leave_out_first_round=True, least_rounds=2, warm_up_s=1.0, duration_s=4.0)


def make_load(scenario, level=32.0) -> Load:
    system = System(name="a", models=())
    return Load(system=system, scenario=scenario, level=level, payloads=(), expected=EXPECTED)


def make_batches(*, batch, seconds, count, waiting=1, begin=-1.0):
    """A server that answers `batch` requests at once every so many seconds; `waiting` batches wait."""
    ends = begin + np.repeat(np.arange(1, count + 1) * seconds, batch)
    starts = np.maximum(ends - (1 + waiting) * seconds, begin)
    rows = [(0, float("nan"), s, e, 200, 0, "") for s, e in zip(starts.tolist(), ends.tolist(), strict=True)]
    return Outcome(records=make_records(rows, [ANSWER]), wall_zero=0.0, cpu_shares=(0.1,))


def measured(outcome, scenario=SETTLED, duration_s=4.0, **changes):
    return make_trial(make_load(scenario), outcome, repeat=0, duration_s=duration_s, **changes)


@pytest.mark.parametrize("end", [5.0, 5.2, 5.4, 5.6, 5.8])
def test_bursts_at_a_windows_ends_do_not_change_the_rate(end):
    trial = measured(make_batches(batch=16, seconds=0.7, count=20), duration_s=end)
    assert trial.rate == pytest.approx(16 / 0.7, rel=0.02)


def test_the_window_opens_when_each_user_has_its_first_answer():
    trial = measured(make_batches(batch=16, seconds=1.5, count=9), duration_s=9.0)
    assert (trial.begin_s, trial.end_s) == (2.0, 9.0)


def test_a_window_that_is_not_longer_than_the_first_round_is_refused():
    with pytest.raises(LoadTestError, match=r"of 32 users took 5\.0 of 5\.5 s; measure longer \(DURATION=\)"):
        measured(make_batches(batch=16, seconds=3.0, count=4), duration_s=5.5)


def test_parts_of_a_window_have_rates_of_their_own():
    scenario = make_scenario(leave_out_first_round=True, parts=2)
    trial = measured(make_batches(batch=16, seconds=0.5, count=20), scenario, duration_s=8.0)
    assert trial.parts == pytest.approx((32.0, 32.0), rel=0.05)


def test_a_load_of_so_many_requests_lasts_until_the_last_answer():
    scenario = make_scenario(stop_after=320, duration_s=3600.0)
    trial = measured(make_batches(batch=16, seconds=0.5, count=20, begin=0.0), scenario, duration_s=3600.0)
    assert (trial.begin_s, trial.end_s, trial.requests) == (0.0, 10.0, 320)


@pytest.mark.parametrize(
    ("last_rate", "seconds"),
    [
        (0.0, 4.0),  # unknown yet
        (64.0, 4.0),  # a round of half a second is within the ramp
        (16.0, 5.0),  # a round of 2 s: one second of it is left behind the ramp
        (4.0, 23.0),  # a round of 8 s: 7 behind the ramp, and two more
    ],
)
def test_a_slow_system_is_measured_for_whole_rounds(last_rate, seconds):
    assert plan_duration(make_load(SETTLED), last_rate) == seconds


def test_errors_are_counted_by_what_they_were():
    rows = [(0, float("nan"), 1.0, 1.1, 200, 0, ""), (0, float("nan"), 2.0, 2.1, 503, -1, "")]
    rows += [(0, float("nan"), 3.0, 3.1, 0, -1, "TimeoutError")]
    outcome = Outcome(records=make_records(rows, [ANSWER]), wall_zero=0.0)
    trial = measured(outcome, make_scenario(), duration_s=10.0)
    assert (trial.requests, trial.errors) == (3, 2)
    assert trial.error_kinds == {"status 503": 1, "TimeoutError": 1}


def test_a_driver_with_coarse_times_gives_its_own_rate():
    outcome = Outcome(records=make_records([], []), wall_zero=0.0, requests_per_second=12.5)
    assert measured(outcome, make_scenario(), duration_s=10.0).rates == (12.5,)
