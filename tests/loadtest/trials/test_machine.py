"""CPU time is read of every process of a system by its role, and cut to the window."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from loadtest.trials.machine import (
    GENERATOR,
    CpuWatch,
    Reading,
    find_cpu_use,
    read_machine_cpu,
    read_process_cpu,
)
from server.rundir import MARK

BUSY = """import time
print("up", flush=True)
input()
while time.process_time() < 0.3: pass
print("done", flush=True)
input()
"""
TICKS = os.sysconf("SC_CLK_TCK")


def test_times_are_fields_14_and_15_whatever_the_name(tmp_path):
    (tmp_path / "7").mkdir()
    fields = ["S", *["0"] * 10, str(3 * TICKS), str(TICKS), *["9"] * 30]
    (tmp_path / "7" / "stat").write_text(f"7 (a ) name) {' '.join(fields)}\n")
    assert read_process_cpu(7, tmp_path) == 4.0
    assert read_process_cpu(8, tmp_path) == 0.0


def test_busy_and_stolen_time_are_of_the_cpus_we_may_use(tmp_path):
    def line(name, *numbers):
        return " ".join([name, *(str(number * TICKS) for number in numbers)])

    # user nice system idle iowait irq softirq steal guest guest_nice
    (tmp_path / "stat").write_text(
        "\n".join(
            [
                line("cpu", *[99] * 10),
                line("cpu0", 1, 2, 3, 50, 60, 4, 5, 7, 1, 1),
                line("cpu1", 1, 0, 0, 50, 60, 0, 0, 2, 0, 0),
                line("cpu10", *[99] * 10),
                line("intr", 5, 5),
            ]
        )
    )
    assert read_machine_cpu({0}, tmp_path) == (15.0, 7.0)
    assert read_machine_cpu({0, 1}, tmp_path) == (16.0, 9.0)


def read_at(at: float, busy: float, *, stolen: float = 0.0, worker: float = 0.0, own: float = 0.0) -> Reading:
    return Reading(at=at, busy=busy, stolen=stolen, by_role={"worker": worker}, own=own)


def test_what_was_used_is_that_of_the_window():
    readings = [
        read_at(0.0, 0.0),
        read_at(10.0, 20.0, worker=15.0),
        read_at(20.0, 38.0, worker=29.0, stolen=0.5, own=0.1),
        read_at(30.0, 99.0, worker=30.0, stolen=9.0),
    ]
    use = find_cpu_use(readings, 10.5, 19.0, generator_cores=0.2)
    assert (use.seconds, use.by_role) == (10.0, {"worker": 14.0, GENERATOR: 2.0})
    # 18 busy, of which 14 were the worker's, 2 the generator's and 0.1 ours.
    assert (use.others, use.stolen) == (pytest.approx(1.9), 0.5)


def test_without_two_readings_nothing_is_known():
    assert find_cpu_use([], 0, 1, generator_cores=0.0) is None
    assert find_cpu_use([read_at(0.0, 1.0)], 0, 1, generator_cores=0.0) is None


def test_a_marked_process_is_watched(tmp_path):
    environment = {**os.environ, MARK: str(tmp_path)}
    command = [sys.executable, "-c", BUSY]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen(command, env=environment, **pipes)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()
    with CpuWatch(tmp_path) as watch:
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
    process.communicate(b"\n")
    first, last = watch.readings[0], watch.readings[-1]
    assert last.by_role["helper"] - first.by_role["helper"] == pytest.approx(0.3, abs=0.25)
    assert last.busy >= first.busy > 0
