"""Rows from made-up requests and looks: each promise is seen to hold and to break."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from loadtest.drivers.records import make_records
from loadtest.experiments.chaos.row import (
    CUT,
    NOTHING,
    SILENT,
    Evidence,
    Look,
    Promise,
    count_slow_seconds,
    find_full_s,
    make_row,
)

WHOLE = Look(at=0.0, phase="ready", full=True, workers=2, planned=2)
TIMED_OUT = "TimeoutError: no whole answer within 15 s"
RESET = "ConnectionResetError: [Errno 104] Connection reset by peer"


def look(at, *, full=True, **changes):
    return dataclasses.replace(WHOLE, at=at, full=full, **changes)


def make_evidence(**changes):
    plain = {
        "fault": "x", "front": "haproxy", "title": "x", "deadline_ms": 1000, "peak": 100.0, "rate": 60.0,
        "promise": Promise(failed=0), "fault_s": 5.0, "fault_ended_s": 5.0, "looks": (look(5.5), look(9.0)),
        "verified": True,
    }  # fmt: skip
    return Evidence(**{**plain, **changes})


def make_requests(*others, count=1000, latency=0.05):
    """So many good ones, ten milliseconds apart, and others: (due, took, status, error)."""
    rows = [(0, at, at, at + latency, 200, -1, "") for at in np.arange(count) / 100]
    rows += [(0, due, due, due + took, status, -1, error) for due, took, status, error in others]
    return make_records(rows, ())


def row_of(*others, **changes):
    return make_row(make_evidence(**changes), make_requests(*others))


def test_a_row_without_a_fault_keeps_every_promise():
    row = row_of()
    assert (row.sent, row.good, row.refused, row.failed, row.unanswered, row.late) == (1000, 1000, 0, 0, 0, 0)
    assert (row.full_s, row.slow_s, row.verdict, row.broken) == (0.0, 0, "kept", ())


def test_each_end_of_a_request_is_counted_once():
    row = row_of(
        (6.0, 0.1, 503, "LocustBadStatusCode: 503"), (6.0, 0.1, 413, "x"), (6.0, 0.2, 0, RESET),
        (6.0, 6.0, 0, TIMED_OUT), (6.0, 1.5, 200, ""),
    )  # fmt: skip
    assert (row.sent, row.good, row.refused, row.failed, row.unanswered, row.late) == (1005, 1001, 1, 1, 2, 1)
    assert row.kinds == {"413": 1, "503": 1, CUT: 1, SILENT: 1}
    assert row.others == f"1 × 413, 1 × 503, 1 × {CUT}, 1 × {SILENT}"
    assert row.broken == ("4 requests failed, promised: 0", "2 unanswered, promised: 0")


@pytest.mark.parametrize(("took", "late"), [(1.0, 0), (1.24, 0), (1.26, 1)])
def test_late_counts_from_when_a_request_was_due_with_a_little_for_the_driver(took, late):
    assert row_of((6.0, took, 200, "")).late == late


def test_an_answer_that_says_no_can_be_late_too_and_silence_is_not_late():
    assert row_of((6.0, 2.0, 504, "x"), (6.0, 7.0, 0, TIMED_OUT)).late == 1


def test_one_in_a_thousand_may_be_late():
    assert not row_of((6.0, 2.0, 200, "")).broken
    broken = row_of((6.0, 2.0, 200, ""), (6.0, 2.0, 200, "")).broken
    assert broken == ("2 of 1002 answered after the deadline, promised: 0.1%",)


@pytest.mark.parametrize(
    ("looks", "seconds"),
    [
        ((look(4.0, full=False), look(6.0)), 0.0),  # before the fault nothing counts
        ((look(6.0, full=False), look(20.0)), 15.0),
        ((look(6.0, full=False), look(7.0), look(8.0, full=False), look(9.0)), 4.0),
        ((look(6.0), look(7.0, full=False)), None),
        ((), None),
    ],
)
def test_full_strength_is_when_nothing_is_missing_any_more(looks, seconds):
    assert find_full_s(looks, 5.0, 5.0) == seconds


def test_a_fault_that_lasts_is_counted_from_its_end():
    looks = (look(6.0, full=False), look(24.0, full=False), look(40.0))
    assert find_full_s(looks, 5.0, 25.0) == 15.0
    assert find_full_s((look(6.0, full=False), look(8.0)), 5.0, 25.0) == 0.0


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"looks": (look(70.0, full=False), look(71.0))}, "at full strength after 66.0 s, promised: 60 s"),
        (
            {"looks": (look(70.0, full=False),)},
            "at full strength never while it was looked at, promised: 60 s",
        ),
        ({"looks": (look(9.0, strays=("a1 worker 7",)),)}, "1 strays, promised: 0"),
        ({"verified": False, "differs": ("resnet50 7: cpus",)}, "verify: resnet50 7: cpus"),
        ({"verified": None}, "verify: not good"),
        ({"promise": Promise(goodput=1.1)}, "100.1/s answered in time, promised: 110% of the peak, 110.0/s"),
        ({"problems": ("it did not happen",)}, "it did not happen"),
    ],
)  # fmt: skip
def test_each_promise_can_break(changes, text):
    assert row_of(**changes).broken == (text,)


def test_nothing_is_promised_where_things_are_only_looked_at():
    row = row_of((6.0, 9.0, 0, TIMED_OUT), promise=NOTHING, looks=(), verified=None)
    assert (row.unanswered, row.broken, row.verdict) == (1, (), "seen")


def test_a_server_that_stops_owes_what_was_sent_before():
    row = row_of((6.0, 0.0, 0, RESET), until_fault=True)
    assert (row.sent, row.unanswered, row.verdict) == (500, 0, "kept")
    assert row_of((4.0, 0.0, 0, RESET), until_fault=True).unanswered == 1


def test_what_was_open_may_be_cut_where_that_is_said_and_nothing_sent_later():
    promise = Promise(open_cut=True)
    assert row_of((4.9, 0.2, 0, RESET), promise=promise).verdict == "kept"
    assert row_of((4.9, 0.2, 0, RESET), promise=Promise()).broken == ("1 unanswered, promised: 0",)
    broken = row_of((4.9, 0.2, 0, RESET), (5.1, 0.2, 0, RESET), promise=promise).broken
    assert broken == ("1 unanswered, promised: 0",)


def test_what_was_not_done_breaks_nothing_and_says_why():
    row = make_row(make_evidence(not_done="no tmpfs", verified=None, looks=()), make_requests(count=0))
    assert (row.sent, row.verdict, row.broken, row.not_done) == (0, "not done", (), "no tmpfs")


def test_no_requests_are_no_proof():
    assert "no request was sent" in make_row(make_evidence(), make_requests(count=0)).broken


def test_goodput_counts_good_answers_by_their_deadline():
    rows = [(0, at, at, at + (0.5 if at < 5 else 1.5), 200, -1, "") for at in np.arange(1000) / 100]
    assert make_row(make_evidence(), make_records(rows, ())).goodput == pytest.approx(50, abs=0.2)


def test_slow_seconds_are_compared_with_those_before():
    rows = [(0, at, at, at + (0.5 if 6 <= at < 8 else 0.05), 200, -1, "") for at in np.arange(1000) / 100]
    assert count_slow_seconds(make_records(rows, ()), 5.0) == (50.0, 2)
    assert count_slow_seconds(make_records(rows[450:], ()), 5.0) == (None, None)
    row = make_row(make_evidence(promise=Promise(slow_s=1)), make_records(rows, ()))
    assert row.broken == ("2 slow seconds, promised: 1",)
