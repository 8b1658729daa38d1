"""`make profile`: what is read of threads, logs and tools, what is made of it, and what the page shows."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import matplotlib
import pytest
from click.testing import CliRunner

from config.settings import read_settings
from loadtest.answers import AnswerCheck
from loadtest.bench import Bench
from loadtest.drivers import Outcome
from loadtest.errors import LoadTestError
from loadtest.profile import experiment, threads, tools
from loadtest.profile.command import run_profile
from loadtest.profile.experiment import KIT, LATENCY, LOGGED, OTHER, QUEUE, THREADS, Side, make_sides
from loadtest.profile.onednn import break_down, parse_log, sum_up
from loadtest.profile.tools import COUNTERS, FLAMES, Told, Tool, watch_by
from loadtest.report import INVALID, render_markdown
from loadtest.results import read_result, start_result
from loadtest.rows import make_rows
from loadtest.servers.base import Running, Server, Testbed
from server.rundir import RunDir


def read_log(name):
    return (Path(__file__).parent / "recorded" / f"onednn-{name}.log").read_text().splitlines()


def test_a_log_of_two_copies_on_amd_is_read_whole():
    log = parse_log(read_log("amd"))
    assert (len(log.calls), log.unknown, log.versions) == (14, {}, ("oneDNN v3.7.1", "oneDNN v3.7.2"))
    convolutions = log.calls[log.calls["primitive"] == "convolution"]
    assert [*convolutions["fused"]] == ["", "", *["eltwise_relu"] * 4]
    assert {"AVX-512", "VNNI"} <= {*convolutions["computes with"]}
    lines, told = break_down(parse_log(read_log("amd") * 2)), sum_up(log)
    assert (lines["calls"].sum(), len(lines) <= 14) == (28, True)
    assert [*lines["ms"]] == sorted(lines["ms"], reverse=True)
    assert (told["reorders of activations"], told["reorders of weights"]) == (4, 2)
    assert (told["for each of these"], sum_up(parse_log([]))["for each of these"]) == (0.5, None)


def test_other_forms_are_read_and_unknown_lines_are_counted():
    log, arm = parse_log(read_log("intel-amx")), parse_log(read_log("arm"))
    assert (len(log.calls), log.unknown, {*log.calls["computes with"]}) == (4, {}, {"AMX"})
    assert [*log.calls["types"][:2]] == ["u8→s8→u8", "bf16→bf16→bf16"]
    assert [*log.calls["fused"]] == ["eltwise_relu", "eltwise_gelu_erf + binary_add", "", "eltwise_relu"]
    assert [*arm.calls["computes with"]] == ["Arm Compute Library", "SVE"]
    assert {*arm.unknown} == {"v1,ukernel,exec,cpu", "v1,primitive,exec,cpu", "v1,common,error,cpu"}
    assert sum_up(arm)["lines not read"].startswith("3, 1 × v1,")


def test_a_broken_line_is_not_dropped_and_a_loggers_words_are_no_part_of_a_line():
    good = f"2026-11-22 [INFO ] stdout MODEL_LOG - {read_log('arm')[3]}"
    for cut in ("", "v1", "v1,primitive,exec", "v1,primitive,exec,cpu,a,b,c,d,e,f,g,x", "v1,graph,exec", "a"):
        log = parse_log([good, f"onednn_verbose,{cut}", "[METRICS]Time:9|#ModelName:x", ""])
        assert (len(log.calls), log.unknown.total()) == (1, 1), cut


def write_thread(proc, tid, *, state="S", ticks=0, cpu=0, faults=0, run=None, moved=None, taken=None):
    folder = proc / "5" / "task" / str(tid)
    folder.mkdir(parents=True, exist_ok=True)
    fields = " ".join(str({0: state, 7: faults, 11: ticks, 36: cpu}.get(place, 0)) for place in range(50))
    (folder / "stat").write_text(f"{tid} (a) worker (x) {fields}\n")
    if run:
        (folder / "schedstat").write_text(f"{run[0] * 10**9:.0f} {run[1] * 10**9:.0f} 7\n")
        (folder / "sched").write_text(f"python (412)\n----\nse.nr_migrations   :   {moved}\n")
    if taken:
        (folder / "status").write_text(f"voluntary_ctxt_switches:\t9\nnonvoluntary_ctxt_switches:\t{taken}\n")


def test_a_window_tells_what_each_busy_thread_did(tmp_path, monkeypatch):
    """Two seconds: 1 computes and moves, 2 sleeps, 3 is born, 4 is not counted, 6 ends; process 9 is gone."""
    monkeypatch.setattr(threads, "_TICKS", 100)
    monkeypatch.setattr(threads, "read_resident_mib", lambda *_: 700)
    write_thread(tmp_path, 6)
    with threads.ThreadWatch(SimpleNamespace(list_workers=lambda: {"bert": [5, 9]}), tmp_path) as watch:
        time.sleep(0.3)
    assert ({one["tid"] for one in watch.glances}, 0 < watch.cost < 1) == ({6}, True)
    watch.glances, watch.throttled = [], {}
    lost = {"/cpu.stat": {"nr_periods": 0.0, "nr_throttled": 0.0, "microseconds": 0.0}}
    monkeypatch.setattr(threads, "read_throttled", lambda pid, _: {5: dict(lost), 9: {}}[pid])
    for place, (cpu, ticks) in enumerate([(0, 0), (0, 50), (1, 100), (1, 100), (1, 190)]):
        run, moved, taken = ((2.9, 1.1), 4, 30) if place == 4 else ((1, 1), 3, 10)
        write_thread(tmp_path, 1, ticks=ticks, cpu=cpu, faults=10 * place, run=run, moved=moved, taken=taken)
        write_thread(tmp_path, 2, ticks=700, cpu=2, run=(4, 0), moved=1)
        write_thread(tmp_path, 4, ticks=20 * place, cpu=2, state="R")
        write_thread(tmp_path, 6, ticks=100 * place)
        if place >= 3:
            write_thread(tmp_path, 3, ticks=30 * (place - 3), cpu=3, faults=100, run=(0.3, 0.1), moved=2)
            (tmp_path / "5" / "task" / "6" / "stat").unlink()
        watch.look(100 + 0.5 * place, full=place in (0, 4))
        lost["/cpu.stat"] = {"nr_periods": 20.0, "nr_throttled": 20.0, "microseconds": 400_000.0}
    cut = watch.cut(99.0, 103.0)
    names = ("cores", "waiting", "migrations", "involuntary")
    assert {one["tid"]: [one[name] for name in names] for one in cut["threads"]} == {
        1: [0.95, 0.05, 0.5, 10.0], 4: [0.4, None, None, None], 3: [0.15, 0.25, 1.0, None],
    }  # fmt: skip
    assert cut["threads"][0]["name"] == "a) worker (x"
    assert [cut["threads"][n]["strip"] for n in (0, 2)] == [[-1, 0, 1, -1, 1], [-1, -1, -1, -1, 3]]
    assert cut["workers"] == [
        {"pid": 5, "threads": 4, "resident_mib": 700, "minor_faults": 70.0, "throttled_ms": 20.0},
        {"pid": 9, "threads": 0, "resident_mib": 700, "minor_faults": 0.0, "throttled_ms": None},
    ]
    assert [watch.cut(*one) for one in ((0.0, 50.0), (100.0, 100.6), (101.9, 110.0))] == [{}] * 3


METRICS = """{"event" : "SLOTS", "metric-value" : "43.2", "metric-unit" : "%  tma_backend_bound", "x" : "bad"}
{"event" : "cycles", "metric-value" : "3.7", "metric-unit" : "GHz"}
{"counter-value" : "<not counted>", "metric-value" : "nan", "metric-unit" : "%  tma_retiring"}
{"metric-value" : 61.5, "metric-unit" : "%slots  backend_bound"}
"""
SEEMS = """#!{python}
import signal, sys, time
signal.signal(signal.SIGINT, lambda *_: [{said}, sys.exit({code})])
open({ready!r}, "w").close()
time.sleep(60)
"""
WRITES = 'open(sys.argv[1], "w").write(" ".join(sys.argv) + " saw 7")'


def look(tool, ready=Path("/")):
    process = SimpleNamespace(process=SimpleNamespace(pid=7))
    with watch_by(tool, SimpleNamespace(runner=tools.InProcess(children=(process,)))) as told:
        while not ready.exists():
            time.sleep(0.01)
    return told.cut(0.0, 1.0)


@pytest.mark.parametrize(("said", "code", "told"), [
    (WRITES, 128 + signal.SIGINT, {"seen": "one look saw 7"}),
    (f'{WRITES}, print("Operation not permitted")', 1, {"problem": "Operation not permitted"}),
    ("0", 0, {"problem": "program wrote nothing that tells"}),
])  # fmt: skip
def test_a_program_is_ended_and_what_it_wrote_is_kept_without_its_command(tmp_path, said, code, told):
    ready, program = tmp_path / "ready", tmp_path / "program"
    program.write_text(SEEMS.format(python=sys.executable, said=said, code=code, ready=str(ready)))
    program.chmod(0o755)

    tool = Tool("one", "one look", lambda _, file: [str(program), str(file)], lambda text: text or None)
    assert look(tool, ready) == told


@pytest.mark.parametrize(("script", "told"), [
    ("echo perf not found for kernel 6.8 >&2; exit 2", "perf may not count here: perf not found"),
    ('echo "<not supported> cycles"', "no counters on this machine"),
    ('[ $1 = --version ] && echo "perf version 6.1"; true', "perf version 6.1 knows no top-down metrics"),
    ("exec sleep 60", "perf may not count here: Command"),
    (None, "perf is not installed"),
])  # fmt: skip
def test_why_a_tool_cannot_look_is_in_its_own_words(monkeypatch, tmp_path, script, told):
    monkeypatch.setattr(tools, "TRY_S", 2)
    monkeypatch.setattr(tools.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin" if script else str(tmp_path))
    if script:
        (tmp_path / "perf").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "perf").chmod(0o755)
    else:
        assert look(FLAMES) == {"problem": "py-spy is not installed (make load-tools)"}
    assert look(COUNTERS)["problem"].startswith(told)
    assert COUNTERS.read(METRICS) == {"tma_backend_bound": 43.2, "backend_bound": 61.5}


ACCOUNT = {"requests": 500, "batches": 32, "read_s": 6.0, "model_s": 13.0, "whole_s": 20.0}
OPERATORS = {"runs": 8, "seconds": 0.8, "operators": {"conv": [64, 700e3, 700e3], "relu": [8, 80e3, 90e3]}}
USE = {"pid": 1, "name": "python", "cores": 0.6, "waiting": 0.4, "migrations": 7.0, "strip": [0, 1] * 9}
WORKER = {"threads": 30, "minor_faults": 4000.0, "resident_mib": 700, "throttled_ms": None}
SEEN = {"cost_cores": 0.021, "libraries": ["libiomp5.so"], "workers": [{"pid": 1, **WORKER}],
        "threads": [{**USE, "tid": 1}, {**USE, "tid": 2, "cores": 0.1, "waiting": None}]}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Fake(Running):
    """With `is_kit` the kit's two workers, or another server: requests a second, some of which may fail."""

    models: tuple[str, ...] = ("bert",)
    is_kit: bool = False
    rate: float = 10.0
    failed: bool = False
    served_s: float = 48.0
    asked: list[str] = field(default_factory=list)
    client = property(lambda self: SimpleNamespace(metrics=self.render_metrics))
    list_workers = lambda self: {"bert": [1, 2]}  # noqa: E731
    verify = lambda self: {"good": True} if self.is_kit else None  # noqa: E731

    def __post_init__(self):
        object.__setattr__(self, "runner", SimpleNamespace(run=self.send))

    def render_metrics(self):
        seconds = ((QUEUE, 5), (LATENCY, self.served_s))
        lines = [f'{name}{{model_name="bert",}} {1e6 * s * self.asked.count("")}\n' for name, s in seconds]
        return "".join(lines + [line.replace("bert", "resnet50") for line in lines])

    def describe_workers(self, *, profile=""):
        self.asked.append(profile)
        phases = {name: value * self.asked.count("") for name, value in ACCOUNT.items()}
        seen = {"operators": OPERATORS, "onednn": {"lines": read_log("intel-amx")}}
        known = {"openmp": {"name": "intel"}, "threads": {"intra_op": 1}, "phases": phases, "profile": seen}
        return [{"pid": pid, **known} for pid in (1, 2)] if self.is_kit else []

    def send(self, load, *_):
        sent = [number / self.rate for number in range(round(load.duration_s * self.rate))]
        rows = [(0, None, at, at + 0.05, 500 if at > 9 and self.failed else 200, -1, "") for at in sent]
        return Outcome(rows=make_rows(rows), wall_zero=time.time())


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Measures fakes, and makes the same result of what is kept."""
    monkeypatch.setitem(matplotlib.rcParams, "svg.hashsalt", "same ids")
    for name, found in (("find_cpu_use", None), ("Bench.find_payloads", []), ("Bench.find_expected", None)):
        monkeypatch.setattr(f"loadtest.bench.{name}", lambda *_, found=found, **__: found)
    monkeypatch.setattr("loadtest.bench.check_answers", lambda *_: AnswerCheck(checked=9, wrong=0, source=""))
    monkeypatch.setitem(experiment.WATCHES, THREADS, lambda _: nullcontext(Told(SEEN)))
    looks, run_dir = {"flames": {"seen": "<svg>"}}, RunDir.at(tmp_path / "logged")
    monkeypatch.setattr(experiment, "watch_by", lambda tool, _: nullcontext(Told(looks[tool.key])))
    run_dir.logs.mkdir(parents=True)
    (run_dir.logs / "model_log.log").write_text("[INFO ] " + "\n[INFO ] ".join(read_log("amd")))

    def run(counters=None, **changes):
        looks["counters"] = counters or {"problem": "no counters here"}
        known = {OTHER: {}, LOGGED: {"run": run_dir}, "alone": {}, "alone-off": {}}
        known[KIT] = {"is_kit": True, "rate": 100.0}
        fakes = [Fake(name=role, **(one | changes.get(role, {}))) for role, one in known.items()]
        servers = [Server(name=one.name, open=lambda _, one=one: nullcontext(one)) for one in fakes]
        named = {one.name: {"name": one.name, "users": 8} for one in servers}
        kept = start_result("profile", "x", {"model": "bert", "seconds": 20.0, "sides": named}, tmp_path)
        with Bench(kept, Testbed(store=tmp_path, folder=tmp_path, first_port=1, say=lambda _: None)) as bench:
            result = experiment.run(bench, {one.name: Side(one, 8) for one in servers})
        again = experiment.run(Bench(read_result(kept.folder)))
        assert render_markdown(again, kept) == render_markdown(result, kept)
        assert [one.svg for one in again.plots] == [one.svg for one in result.plots]
        return again

    return run


def find_rows(result, title):
    return [row for one in result.tables if one.title == title for row in one.frame.to_dict("records")]


def test_a_healthy_kit_is_validated_good_and_every_view_is_there(measured):
    result = measured()
    assert [round(one.figure.value, 1) for one in result.verdicts] == [10.0, 96.0, 97.5]
    assert (result.passed, result.valid) == (True, True)
    other, kit = find_rows(result, "Side by side")
    told = [round(kit[name].value, 1) for name in ("ratio", "with threads, ratio", "with operators, ratio")]
    assert (other["ratio"], told, round(kit["requests/s"].value)) == (None, [10.0, 1.0, 1.0], 100)
    way = [round(one, 2) for one in find_rows(result, "A request's way")[0].values() if one != "kit"]
    assert way == [50, 2, 5, 12, 3, 26, 2, 0.96]
    worker = find_rows(result, "Threads")[1]
    assert (worker["computing"], worker["CPUs"], worker["intra-op"]) == (1, "0,1", 1)
    assert (round(worker["cores used"], 2), round(worker["waiting %"], 2)) == (0.7, 0.4)
    assert round(find_rows(result, "Memory")[1]["minor faults/request"]) == 40
    assert [row["own ms"] for row in find_rows(result, "Operators of kit")] == [87.5, 10]
    assert [one["calls"] for one in find_rows(result, "oneDNN in sum")] == [14, 16]
    assert [one.name for one in result.plots] == ["film-1", "film-2", "flame"]
    assert "No top-down analysis: no counters here." in result.method
    (row,) = find_rows(measured(counters={"seen": {"bound": 60.0}}), "Top-down analysis")
    assert row == {"metric": "bound", "alone-off": 60.0, "alone": 60.0}


@pytest.mark.parametrize(("kit", "told"), [
    ({"served_s": 47.0}, "MISSED"), ({"served_s": 47.6}, "passed"), ({"served_s": 52.4}, "passed"),
    ({"served_s": 53.0}, "MISSED"), ({"is_kit": False}, "INVALID: its workers did not tell"),
])  # fmt: skip
def test_what_does_not_add_up_or_is_not_told_is_missed(measured, kit, told):
    verdicts = measured(kit=kit).verdicts
    assert told in str(verdicts[1])
    assert [one.passed for one in verdicts] == [True, told == "passed", "INVALID" not in told]


@pytest.mark.parametrize(("bad", "good"), [("kit", "other"), ("other", "kit")])
def test_a_server_in_doubt_shows_no_figure(measured, bad, good):
    result = measured(**{bad: {"failed": True}})
    assert (result.valid, result.verdicts[0].figure, result.passed) == (False, None, False)
    sides = find_rows(result, "Side by side")
    assert [row["server"] for row in sides if row["requests/s"] == INVALID] == [bad]
    for title in ("A request's way", "Threads", "Memory", "oneDNN in sum"):
        assert {row["server"] for row in find_rows(result, title)} == {good}
    assert len(result.verdicts) == {"kit": 1, "other": 3}[bad]


def test_what_the_kit_is_beside_is_checked_before_anything_is_built(monkeypatch):
    users = {one.server.name: one.users for one in make_sides("resnet50").values()}
    assert (users["plain TorchServe"], users["plain TorchServe, logged"], users["kit int8"]) == (32, 32, 64)
    assert LOGGED not in make_sides("bert", against="off")
    monkeypatch.setattr(experiment, "find_running", lambda _: SimpleNamespace(models=("resnet50", "bert")))
    monkeypatch.setattr("loadtest.profile.command.build_store", lambda *_: pytest.fail("built"))
    with pytest.raises(LoadTestError, match="MODELS must be one of"):
        CliRunner().invoke(run_profile, [], obj=read_settings([], ()), catch_exceptions=False)
    settings = read_settings(["MODELS=bert"], ())
    with pytest.raises(LoadTestError, match="--against must serve bert alone: got resnet50, bert in run"):
        CliRunner().invoke(run_profile, ["--against=run"], obj=settings, catch_exceptions=False)
