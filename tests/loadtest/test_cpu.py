"""CPU time is read of every process of a server, by its role."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from loadtest.cpu import GENERATOR, read_machine_cpu, read_process_cpu, watch_cpu
from server.rundir import MARK

BUSY = "import time\nwhile time.process_time() < 0.3: pass\nprint('done', flush=True)\ninput()"
TICKS = os.sysconf("SC_CLK_TCK")


def test_times_are_fields_14_and_15_whatever_the_name(tmp_path):
    (tmp_path / "7").mkdir()
    fields = ["S", *["0"] * 10, str(3 * TICKS), str(TICKS), *["9"] * 30]
    (tmp_path / "7" / "stat").write_text(f"7 (a ) name) {' '.join(fields)}\n")
    assert read_process_cpu(7, tmp_path) == 4.0


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


def test_a_process_that_ended_has_used_nothing(tmp_path):
    assert read_process_cpu(7, tmp_path) == 0.0


def test_a_marked_process_is_watched(tmp_path):
    environment = {**os.environ, MARK: str(tmp_path)}
    with watch_cpu(tmp_path) as use:
        process = subprocess.Popen(
            [sys.executable, "-c", BUSY],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        process.stdout.readline()
    process.communicate(b"\n")
    assert use.by_role["helper"] == pytest.approx(0.3, abs=0.25)


def test_children_that_ended_are_the_load_generator(tmp_path):
    with watch_cpu(tmp_path) as use:
        subprocess.run([sys.executable, "-c", BUSY], input=b"\n", capture_output=True, check=True)
    assert use.by_role[GENERATOR] >= 0.3
