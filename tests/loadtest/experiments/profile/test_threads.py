"""What the kernel counts of threads is read, cut to the window, and never taken for more than it is."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from loadtest.experiments.profile.evidence import read_worker_use
from loadtest.experiments.profile.threads import (
    ASLEEP,
    Counts,
    Glance,
    Reading,
    ThreadWatch,
    parse_counts,
    parse_stat,
    read_counts,
    read_glances,
    summarise_worker,
)

STAT = (
    "412 (a) worker (x) R 1 412 412 0 -1 4194304 1234 0 5 0 700 300 0 0 20 0 31 0 48840987 9 8 "
    "18446744073709551615 1 1 0 0 0 0 0 16781312 2 0 0 0 17 3 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
)
SCHED = "python (412, #threads: 31)\n----\nse.exec_start  :  48840987.088\nse.nr_migrations   :    17\n"
STATUS = "Name:\tpython\nvoluntary_ctxt_switches:\t900\nnonvoluntary_ctxt_switches:\t33\n"
WHOLE = Counts(run_s=2.5, wait_s=0.5, migrations=17, involuntary=33)


def test_a_threads_stat_is_read_behind_any_name():
    assert parse_stat(STAT) == Glance(name="a) worker (x", running=True, cpu=3, cpu_s=10.0, minor_faults=1234)


@pytest.mark.parametrize(
    ("texts", "counts"),
    [
        ({"schedstat": "2500000000 500000000 77\n", "sched": SCHED, "status": STATUS}, WHOLE),
        ({"sched": "nr_migrations : 17\n"}, Counts(migrations=17)),
        ({"status": STATUS}, Counts(involuntary=33)),
        ({}, Counts()),
    ],
)
def test_what_a_kernel_does_not_count_is_none(texts, counts):
    assert parse_counts(**texts) == counts


def test_all_threads_are_read_and_one_that_ended_is_left_out(tmp_path):
    for tid in (412, 413, 414):
        folder = tmp_path / "412" / "task" / str(tid)
        folder.mkdir(parents=True)
        if tid != 414:
            (folder / "stat").write_text(STAT)
            (folder / "status").write_text(STATUS)
    assert set(read_glances(412, tmp_path)) == set(read_counts(412, tmp_path)) == {412, 413}
    assert read_glances(9, tmp_path) == {}


def glance(cpu: int, cpu_s: float, faults: int = 0, *, running: bool = False) -> Glance:
    return Glance(name="python", running=running, cpu=cpu, cpu_s=cpu_s, minor_faults=faults)


def make_readings() -> list[Reading]:
    """Two seconds: thread 1 computes and moves once, thread 2 sleeps, thread 3 is born and computes."""
    strip = [(0, 0.0), (0, 0.5), (1, 1.0), (1, 1.0), (1, 1.9)]
    readings = []
    for place, (cpu, cpu_s) in enumerate(strip):
        threads = {1: glance(cpu, cpu_s, 10 * place), 2: glance(2, 7.0)}
        if place >= 3:
            threads[3] = glance(3, 0.3 * (place - 3), 100)
        readings.append(Reading(at=100 + 0.5 * place, glances={5: threads}))
    first = {1: Counts(run_s=1.0, wait_s=1.0, migrations=3, involuntary=10), 2: Counts(run_s=4.0)}
    last = {
        1: Counts(run_s=2.9, wait_s=1.1, migrations=4, involuntary=30), 2: Counts(run_s=4.0),
        3: Counts(run_s=0.3, wait_s=0.1, migrations=2),
    }  # fmt: skip
    stat = {"/cpu.stat": {"nr_periods": 0.0, "nr_throttled": 0.0, "microseconds": 0.0}}
    later = {"/cpu.stat": {"nr_periods": 20.0, "nr_throttled": 20.0, "microseconds": 400_000.0}}
    ends = {0: (first, stat), len(readings) - 1: (last, later)}
    return [
        Reading(at=one.at, glances=one.glances, counts={5: ends[place][0]}, throttled={5: ends[place][1]})
        if place in ends
        else one
        for place, one in enumerate(readings)
    ]


def test_a_window_tells_what_each_busy_thread_did():
    worker = summarise_worker(5, make_readings(), 700)
    busiest, born = worker.busy
    assert (busiest.tid, busiest.cores, busiest.waiting) == (1, 0.95, 0.05)
    assert (busiest.migrations, busiest.involuntary) == (0.5, 10.0)
    assert busiest.strip == (ASLEEP, 0, 1, ASLEEP, 1)
    assert (born.tid, born.cores, born.migrations, born.cpus) == (3, 0.15, 1.0, {3})
    assert (worker.threads, worker.cpus, worker.minor_faults) == (3, {0, 1, 3}, 70.0)
    assert (worker.throttled_ms, worker.resident_mib) == (20.0, 700)


def test_what_is_kept_is_read_back():
    watch = ThreadWatch(pids=[5], readings=make_readings())
    cut = watch.cut(99.0, 103.0)
    assert read_worker_use(cut["workers"][0]) == summarise_worker(5, make_readings(), None)
    assert asdict(read_worker_use(cut["workers"][0])) == cut["workers"][0]


@pytest.mark.parametrize("window", [(0.0, 50.0), (100.0, 100.6), (101.9, 110.0)])
def test_a_window_without_two_readings_tells_nothing(window):
    assert ThreadWatch(pids=[5], readings=make_readings()).cut(*window) == {}
