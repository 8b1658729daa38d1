"""CPU time and steal come from /proc/stat, for the measured window alone."""

from __future__ import annotations

import pytest

from loadtest.host import CpuWatch, find_cpu_use, parse_cpu_times

LINE = "cpu  {user} 0 {system} {idle} 0 0 0 {steal} 0 0\ncpu0 1 2 3"


def reading(at, **ticks):
    return parse_cpu_times(LINE.format(**{"user": 0, "system": 0, "idle": 0, "steal": 0, **ticks}), at)


def test_shares_are_those_of_the_window():
    readings = [
        reading(0.0),
        reading(10.0, user=500, idle=500),
        reading(20.0, user=900, system=50, idle=1020, steal=30),
        reading(30.0, user=900, idle=1020, steal=1000),
    ]
    use = find_cpu_use(readings, 10.0, 20.0)
    assert (use.busy, use.steal) == (pytest.approx(0.48), pytest.approx(0.03))


def test_without_two_readings_nothing_is_known():
    assert find_cpu_use([], 0, 1) is None
    assert find_cpu_use([reading(0.0, idle=1)], 0, 1) is None


def test_the_watch_reads_this_machine():
    with CpuWatch() as watch:
        pass
    assert len(watch.readings) >= 2
    assert watch.readings[-1].total >= watch.readings[0].total > 0
