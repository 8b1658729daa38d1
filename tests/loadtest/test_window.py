"""The window of a load: how long it is planned, where it opens, and what is counted in it."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from loadtest.answers import AnswerCheck
from loadtest.bench import Turn, make_window
from loadtest.drivers import Outcome
from loadtest.errors import LoadTestError
from loadtest.rows import make_rows
from tests.loadtest.making import make_load

SETTLED = make_load(users=32, leave_out_first_round=True, least_rounds=2, warm_up_s=1.0, duration_s=4.0)


def make_batches(*, batch, seconds, count, waiting=1, begin=-1.0):
    """A server that answers `batch` requests at once every so many seconds; `waiting` batches wait."""
    ends = begin + np.repeat(np.arange(1, count + 1) * seconds, batch)
    starts = np.maximum(ends - (1 + waiting) * seconds, begin)
    pairs = zip(starts.tolist(), ends.tolist(), strict=True)
    return make_rows([(0, math.nan, sent, ended, 200, -1, "") for sent, ended in pairs])


def measured(rows, load):
    return make_window(load, Outcome(rows=rows, wall_zero=0.0), AnswerCheck())


def with_seconds(duration_s, **changes):
    return make_load(users=32, leave_out_first_round=True, duration_s=duration_s, **changes)


@pytest.mark.parametrize("end", [5.0, 5.2, 5.4, 5.6, 5.8])
def test_bursts_at_a_windows_ends_do_not_change_the_rate(end):
    window = measured(make_batches(batch=16, seconds=0.7, count=20), with_seconds(end))
    assert window.rate == pytest.approx(16 / 0.7, rel=0.02)


def test_the_window_opens_when_each_user_has_its_first_answer():
    window = measured(make_batches(batch=16, seconds=1.5, count=9), with_seconds(9.0))
    assert (window.begin_s, window.end_s) == (2.0, 9.0)


def test_a_window_that_is_not_longer_than_the_first_round_is_rejected():
    with pytest.raises(LoadTestError, match=r"of 32 users took 5\.0 of 5\.5 s; measure longer \(DURATION=\)"):
        measured(make_batches(batch=16, seconds=3.0, count=4), with_seconds(5.5))


@pytest.mark.parametrize(
    ("last_rate", "seconds"),
    [
        (0.0, 4.0),  # unknown yet
        (64.0, 4.0),  # a round of half a second is within the ramp
        (16.0, 5.0),  # a round of 2 s: one second of it is left behind the ramp
        (4.0, 23.0),  # a round of 8 s: 7 behind the ramp, and two more
    ],
)
def test_a_slow_server_is_measured_for_whole_rounds(last_rate, seconds):
    turn = SimpleNamespace(load=SETTLED, up=SimpleNamespace(rate=last_rate))
    assert Turn._plan_duration(turn) == seconds


def test_errors_are_counted_by_what_they_were():
    rows = make_rows(
        [
            (0, math.nan, 1.0, 1.1, 200, -1, ""),
            (0, math.nan, 2.0, 2.1, 503, -1, ""),
            (0, math.nan, 3.0, 3.1, 0, -1, "TimeoutError"),
            (0, math.nan, 10.5, 10.6, 503, -1, ""),  # behind the window
        ]
    )
    window = measured(rows, make_load())
    assert (window.requests, window.errors) == (3, 2)
    assert window.error_kinds == {"status 503": 1, "TimeoutError": 1}


def test_latency_counts_from_when_a_request_was_due_and_the_generators_lag_is_told():
    rows = make_rows([(0, at, at + 0.1, at + 0.3, 200, -1, "") for at in np.arange(0, 10, 0.1)])
    window = measured(rows, make_load(10.0))
    assert window.p50_ms == pytest.approx(300)
    assert window.lag_p99_ms == pytest.approx(100)
    assert measured(rows.assign(due=math.nan), make_load()).lag_p99_ms is None


def test_a_window_without_any_request_has_no_latency():
    window = measured(make_rows([]), make_load(10.0))
    assert (window.requests, window.rate, window.p50_ms, window.lag_p99_ms) == (0, 0.0, None, None)
