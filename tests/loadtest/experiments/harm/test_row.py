"""A row counts what came back, and a promise says what broke it."""

from __future__ import annotations

import pytest

from loadtest.experiments.harm.client import REFUSED, RESET, SILENT, Outcome
from loadtest.experiments.harm.row import (
    Look,
    Promise,
    Seen,
    find_broken,
    judge,
    make_row,
    render_table,
    render_words,
)

BEFORE = Look(
    java=7,
    resident_mib={1: 1000.0, 2: 2000.0},
    peak_mib={1: 1000.0, 2: 2000.0},
    cpu_s={1: 5.0, 2: 6.0},
    out_of_memory=1,
    log_kib=10.0,
)
AFTER = Look(
    java=7,
    resident_mib={1: 1010.0, 2: 2020.0},
    peak_mib={1: 1300.0, 2: 2020.0},
    cpu_s={1: 6.5, 2: 6.0},
    out_of_memory=1,
    log_kib=12.0,
)


def outcomes(*kinds):
    return [
        Outcome(status=one, seconds=0.5) if isinstance(one, int) else Outcome(failure=one, seconds=30.0)
        for one in kinds
    ]


def row(*kinds, after=AFTER, again_s=0.4, **seen):
    return make_row("x", Seen(outcomes=outcomes(*kinds), **seen), BEFORE, after, again_s)


def change(look, **values):
    return Look(**{**vars(look), **values})


def test_what_came_back_is_counted():
    got = row(200, 200, 413, 503, RESET, SILENT)
    assert got.kinds == {"200": 2, "413": 1, "503": 1, RESET: 1, SILENT: 1}
    assert (got.sent, got.count(2), got.count(4), got.count(5), got.slowest_s) == (6, 2, 1, 1, 0.5)


def test_what_it_cost_is_of_the_dearest_worker():
    got = row(200)
    assert (got.peak_mib, got.kept_mib, got.cpu_s, got.log_kib) == (300.0, 20.0, 1.5, 2.0)
    assert got.resident_mib == {"1": (1000.0, 1010.0), "2": (2000.0, 2020.0)}
    assert (got.workers_lost, got.server_lost, got.out_of_memory) == (0, False, 0)


def test_a_new_worker_in_anothers_place_is_a_loss():
    new = {1: 1010.0, 3: 2500.0}
    got = row(200, after=change(AFTER, resident_mib=new, peak_mib=new, cpu_s={1: 5.0, 3: 9.0}))
    assert got.workers_lost == 1
    assert got.resident_mib["2"] == (2000.0, None)
    assert got.kept_mib == 10.0


def test_a_server_without_anything_left_is_a_row_too():
    got = row(RESET, after=change(AFTER, java=None, resident_mib={}, peak_mib={}, cpu_s={}), again_s=None)
    assert (got.server_lost, got.workers_lost, got.peak_mib) == (True, 2, 0.0)
    assert list(find_broken(got, Promise())) == [
        "the server ended",
        "answered 1 × reset, promised: 200, 413, 429, 503",
        "2 workers lost, promised: 0",
        "right again after more than a minute, promised: 5 s",
    ]


def test_what_was_promised_and_held_is_not_broken():
    promise = Promise(peak_mib=300.0, kept_mib=20.0, cpu_s=1.5, log_kib=2.0)
    assert not list(find_broken(row(200, 413, 429, 503), promise))


@pytest.mark.parametrize("kind", [500, 400, RESET, REFUSED, SILENT])
def test_overload_may_answer_four_things_only(kind):
    assert list(find_broken(row(200, kind), Promise())) == [
        f"answered 1 × {kind}, promised: 200, 413, 429, 503"
    ]


def test_what_was_only_looked_at_is_not_called_kept():
    assert judge(row(200), Promise()).verdict == "kept"
    assert judge(row(500), Promise(kinds=None)).verdict == "seen"
    assert judge(row(500, faults=("wrong",)), Promise()).broken[0] == "wrong"
    assert judge(row(500), Promise()).verdict == "BROKEN"


def test_what_nothing_is_promised_of_breaks_nothing():
    assert not list(find_broken(row(500, RESET, SILENT), Promise(kinds=None)))


@pytest.mark.parametrize(
    ("promise", "text"),
    [
        ({"peak_mib": 299.0}, "a worker's memory rose by 300.0 MiB, promised: 299"),
        ({"kept_mib": 19.0}, "a worker kept 20.0 MiB, promised: 19"),
        ({"cpu_s": 1.0}, "the workers computed 1.5 s, promised: 1"),
        ({"log_kib": 1.0}, "the logs grew by 2.0 KiB, promised: 1"),
        ({"again_s": 0.3}, "right again after 0.4 s, promised: 0.3 s"),
    ],
)
def test_a_broken_promise_says_what_it_got(promise, text):
    assert list(find_broken(row(200), Promise(**promise))) == [text]


def test_an_out_of_memory_error_breaks_any_promise():
    got = row(200, after=change(AFTER, out_of_memory=4))
    assert list(find_broken(got, Promise(kinds=None))) == ["3 OutOfMemoryErrors in the logs, promised: none"]


def test_a_worker_that_was_killed_on_purpose_may_be_lost():
    rest = {1: 1010.0}
    got = row(200, after=change(AFTER, resident_mib=rest, peak_mib=rest, cpu_s={1: 5.0}))
    assert not list(find_broken(got, Promise(workers_lost=1)))
    assert list(find_broken(got, Promise())) == ["1 workers lost, promised: 0"]


def test_the_table_has_a_line_an_experiment_and_words_below():
    lines = render_table([row(200, 503, RESET, SILENT, notes=("seen",), faults=("wrong",)), row(200)])
    assert lines[0].split() == [
        "experiment", "sent", "2xx", "4xx", "5xx", "no", "answer", "cut", "off", "workers", "lost", "right",
        "again", "slowest", "peak", "kept", "CPU",
    ]  # fmt: skip
    assert lines[1].split()[:7] == ["x", "4", "1", "0", "1", "1", "1"]
    assert lines[1].endswith("+300 MiB  +20 MiB  1.5 s  BROKEN")
    assert lines[2].endswith("kept")
    assert lines[3:] == ["x: BROKEN: wrong", "x: seen"]


def test_a_server_that_ended_and_never_came_back_is_in_the_table():
    got = row(RESET, after=change(AFTER, java=9), again_s=None)
    assert "0 + server" in render_table([got])[1]
    assert "never" in render_table([got])[1]
    assert render_words(got) == []
