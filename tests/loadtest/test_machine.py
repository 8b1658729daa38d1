"""CPU time is read of every process of a server by its role, and cut to the window."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from loadtest import machine
from loadtest.machine import GENERATOR, PACKAGES, CpuWatch, Reading, find_cpu_use, read_host
from server.rundir import MARK

WAIT = "print(flush=True); input()"
BUSY = f"import time\n{WAIT}\nwhile time.process_time() < 0.3: pass\n{WAIT}"


def read_at(at, busy, *, stolen=0.0, own=0.0, **by_role):
    return Reading(at=at, busy=busy, stolen=stolen, by_role=by_role, own=own)


READINGS = [
    read_at(0.0, 0.0),
    read_at(10.0, 20.0, worker=15.0, launcher=3.0),
    read_at(20.0, 38.0, worker=29.0, launcher=2.0, helper=1.0, stolen=0.5, own=0.1),
    read_at(30.0, 99.0, worker=30.0, stolen=9.0),
]


def test_what_was_used_is_that_between_the_readings_around_the_window():
    use = find_cpu_use(READINGS, 10.5, 19.0, generator_cores=0.2)
    # A role that began meanwhile used all of its time; one that ended used none that is known.
    assert use.by_role == {"worker": 14.0, "launcher": 0.0, "helper": 1.0, GENERATOR: 2.0}
    assert (use.seconds, use.cpus, use.stolen) == (10.0, len(os.sched_getaffinity(0)), 0.5)
    # 18 busy, of which 14 were the worker's, 1 the helper's, 2 the generator's and 0.1 ours.
    assert (use.others, use.share(4.0)) == (pytest.approx(0.9), 0.4 / use.cpus)


def test_a_window_that_reaches_out_of_the_readings_has_those_there_are():
    assert find_cpu_use(READINGS, -5.0, 99.0, generator_cores=0.0).seconds == 30.0
    assert find_cpu_use(READINGS, 10.5, 19.0, generator_cores=5.0).others == 0.0
    for few in ([], READINGS[:1]):
        assert find_cpu_use(few, 0, 1, generator_cores=0.0) is None


def test_busy_and_stolen_time_are_of_the_cpus_we_may_use(monkeypatch):
    names = ["user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest", "guest_nice"]
    each = [(1, 2, 3, 50, 60, 4, 5, 7, 1, 1), (1, 0, 0, 50, 60, 0, 0, 2, 0, 0), [99] * 10]
    every = [SimpleNamespace(**dict(zip(names, one, strict=True))) for one in each]
    monkeypatch.setattr(machine.psutil, "cpu_times", lambda *, percpu: every if percpu else None)
    for cpus, wanted in (({0}, (15.0, 7.0)), ({0, 1}, (16.0, 9.0))):
        monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _pid, cpus=cpus: cpus)
        found = CpuWatch(None)._read()
        assert (found.busy, found.stolen, found.by_role) == (*wanted, {})


def test_a_marked_process_is_watched_and_may_end(tmp_path):
    environment = {**os.environ, MARK: str(tmp_path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", BUSY], env=environment, **pipes) as process:
        process.stdout.readline()
        with CpuWatch(tmp_path) as watch:
            process.stdin.write(b"\n")
            process.stdin.flush()
            process.stdout.readline()
        process.communicate(b"\n")
    first, last = watch.readings[0], watch.readings[-1]
    assert last.by_role["helper"] - first.by_role["helper"] == pytest.approx(0.3, abs=0.25)
    assert last.busy >= first.busy > 0
    assert last.at > first.at
    assert watch._read().by_role == {}


def test_the_host_is_told_without_its_name():
    host = read_host()
    assert {"cpu", "vendor", "flags", "cpus", "memory_gib", "virtual", "kernel", "python"} <= set(host)
    assert set(host["versions"]) == set(PACKAGES)
    assert host["versions"]["numpy"]
    assert socket.gethostname() not in [host["cpu"], host["kernel"], host["vendor"]]
    assert not [key for key in host if "name" in key or "node" in key]
