"""Programs that look into a process: recorded output, and a program that only seems to look."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from loadtest.experiments.profile import tools
from loadtest.experiments.profile.tools import COUNTERS, FLAMES, Tool, list_groups, parse_metrics, watch_by
from loadtest.systems.inprocess import InProcess

INTEL = """\
# started on Mon Nov 23 10:00:00 2026

{"counter-value" : "18693525.000000", "unit" : "", "event" : "TOPDOWN.SLOTS", "metric-value" : "43.226002", \
"metric-unit" : "%  tma_backend_bound", "metric-threshold" : "bad"}
{"metric-value" : "29.212267", "metric-unit" : "%  tma_frontend_bound"}
{"counter-value" : "7000.000000", "unit" : "", "event" : "cycles", \
"metric-value" : "3.7", "metric-unit" : "GHz"}
{"counter-value" : "<not counted>", "unit" : "", "event" : "x", "metric-value" : "nan", \
"metric-unit" : "%  tma_retiring"}
{"counter-value" : "9.000000", "unit" : "", "event" : "y", "metric-value" : 0.000000, \
"metric-unit" : "(null)"}
"""
AMD = """\
{"counter-value" : "1.0", "event" : "de_src_op_disp.all", "metric-value" : "61.5", \
"metric-unit" : "%slots  backend_bound"}
{"metric-value" : nan, "metric-unit" : "%  backend_bound_memory"}
{"metric-value" : 38.5, "metric-unit" : "%  retiring"}
"""
SEEMS = """#!{python}
import signal, sys, time
def end(*_):
    {said}
    sys.exit(0)
signal.signal(signal.SIGINT, end)
open({ready!r}, "w").close()
time.sleep(60)
"""
WRITES = 'open(sys.argv[1], "w").write(" ".join(sys.argv) + " saw {}")'
REFUSES = 'open(sys.argv[1], "w"); print("Operation not permitted"); sys.exit(1)'


def watch(tool, pid, wait):
    child = SimpleNamespace(process=SimpleNamespace(pid=pid))
    with watch_by(tool)(SimpleNamespace(reference=InProcess(children=(child,)))) as seen:
        wait()
    return seen.cut(0.0, 1.0)


@pytest.mark.parametrize(
    ("said", "seen"),
    [(WRITES.format("7"), {"one": "one look saw 7"}), (REFUSES, {"one_problem": "Operation not permitted"})],
)
def test_a_program_is_ended_and_what_it_wrote_is_kept_without_its_command(tmp_path, said, seen):
    ready, program = tmp_path / "ready", tmp_path / "program"
    program.write_text(SEEMS.format(python=sys.executable, said=said, ready=str(ready)))
    program.chmod(0o755)
    tool = Tool(
        key="one", what="one look",
        command=lambda pid, file: [str(program), str(file), str(pid)], read=str,
    )  # fmt: skip

    def wait():
        while not ready.exists():
            time.sleep(0.01)

    assert watch(tool, 7, wait) == seen


def test_metrics_are_read_and_counters_left():
    assert parse_metrics(INTEL) == {"tma_backend_bound": 43.226002, "tma_frontend_bound": 29.212267}
    assert parse_metrics(AMD) == {"backend_bound": 61.5, "retiring": 38.5}
    assert parse_metrics("") is None


@pytest.mark.parametrize(
    ("cycles", "groups", "told"),
    [
        ("<not supported>      cycles", "TopdownL1", "no counters on this machine"),
        ("1,000      cycles", "l2_cache tlb", "perf version 6.1 knows no top-down metrics of this CPU"),
        ("1,000      cycles", "l2_cache PipelineL1 PipelineL2", ""),
    ],
)
def test_without_counters_nothing_is_invented(monkeypatch, tmp_path, cycles, groups, told):
    answers = {"stat": cycles, "list": groups, "--version": "perf version 6.1\n"}
    monkeypatch.setattr(tools, "_ask", lambda command: answers[command[1]])
    monkeypatch.setattr(tools, "find_program", lambda *_: "perf")
    if told:
        (problem,) = watch(COUNTERS, os.getpid(), lambda: None).values()
        assert problem.startswith(told)
    else:
        command = COUNTERS.command(7, tmp_path)
        assert command[:5] == ["perf", "stat", "-j", "-M", "PipelineL1,PipelineL2"]
    assert list_groups("TopdownL1 TopdownL3 tma_L1_group TopdownL2") == ["TopdownL1", "TopdownL2"]


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo perf not found for kernel 6.8 >&2; exit 2", "perf may not count here: perf not found"),
        ("sleep 60", "perf cannot be run: "),
    ],
)
def test_why_perf_may_not_count_is_in_its_own_words(monkeypatch, tmp_path, script, told):
    program = tmp_path / "perf"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(tools, "find_program", lambda *_: str(program))
    monkeypatch.setattr(tools, "TRY_S", 2)
    (problem,) = watch(COUNTERS, os.getpid(), lambda: None).values()
    assert problem.startswith(told)


@pytest.fixture
def busy():
    process = subprocess.Popen([sys.executable, "-c", "while True: sum(range(1000))"])
    yield process.pid
    process.kill()
    process.wait()


def look(tool, pid):
    seen = watch(tool, pid, lambda: time.sleep(2.0))
    problem = seen.get(tool.problem, "")
    if re.search("not permitted|[Pp]ermission", problem):
        pytest.skip(f"no process may be traced here: {problem}")
    assert not problem
    return seen[tool.key]


def test_a_flame_graph_is_drawn_without_this_machines_paths(busy):
    drawn = look(FLAMES, busy)
    assert "flame graph" in drawn
    assert "py-spy record" not in drawn
    assert "<module>" in drawn or "&lt;module&gt;" in drawn
