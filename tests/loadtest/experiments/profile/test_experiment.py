"""What is measured, what is made of it, what is judged and what the page shows; nothing is started."""

from __future__ import annotations

import base64
import re
import sys
from dataclasses import asdict, replace
from functools import partial
from types import SimpleNamespace

import pytest

from loadtest.errors import LoadTestError
from loadtest.experiments.profile import experiment
from loadtest.experiments.profile.evidence import COLLECTORS, read_evidence
from loadtest.experiments.profile.experiment import (
    ALL_OFF,
    ONE,
    choose_other,
    judge,
    make_logged,
    make_turns,
)
from loadtest.experiments.profile.looks import LATENCY, QUEUE, parse_counters
from loadtest.report import make_section, write_report
from loadtest.systems.fleet import Member
from tests.loadtest.experiments.profile.figures import make_use, make_worker
from tests.loadtest.experiments.profile.test_onednn import RECORDED
from tests.loadtest.making import make_facts, make_kept, make_scenario, make_series

LINES = (RECORDED / "onednn-amd.log").read_text().splitlines()
ACCOUNT = {
    "requests": 1000, "batches": 63, "read_s": 12.0, "model_s": 26.0, "whole_s": 40.0, QUEUE: 5.0,
    LATENCY: 48.0,
}  # fmt: skip
OPERATORS = {"aten::conv": [64, 700e3, 700e3], "aten::relu": [8, 80e3, 80e3]}
PROFILES = [
    {
        "pid": pid,
        "operators": {"runs": 8, "seconds": 0.8, "operators": OPERATORS},
        "onednn": {"runs": 2, "seconds": 0.2, "lines": LINES},
    }
    for pid in (0, 1)
]
FLAME = {"flames": "<svg>frames</svg>"}
COUNTED_OFF: dict[str, float] | str = "no counters on this machine"
COUNTED_PLANNED: dict[str, float] | str = "no counters on this machine"
LIBRARIES = {"openmp": {"name": "intel"}, "allocator": {"name": "jemalloc"}}
DESCRIBED = tuple({"pid": pid, "threads": {"intra_op": 1, "inter_op": 1}, **LIBRARIES} for pid in (0, 1))


def make_seen(*workers):
    return {
        "plain": {"account": ACCOUNT},
        "threads": {"workers": [asdict(one) for one in workers], "cost_cores": 0.021},
        "operators": {"profiles": PROFILES},
    }


def make_system(name, rate, watched, **facts):
    series = []
    for collector in COLLECTORS:
        scenario = make_scenario(name=f"bert-{collector}")
        one = make_series(name, (rate, rate * 1.01), scenario=scenario, seen=watched.get(collector, {}))
        series.append(replace(one, facts=make_facts(name, **facts)))
    return series


def keep(tmp_path, *, worker=None, errors=0, other_seen=None):
    """A kit whose workers are healthy but for the one that is planted, beside a stock server."""
    workers = (worker or make_worker(0), make_worker(1))
    kit = make_system("kit int8", 100.0, make_seen(*workers), described=DESCRIBED,
                      seen={"libraries": ["libiomp5.so"]})  # fmt: skip
    crowd = [make_use(cpu, cores=0.4, waiting=0.4, migrations=7.0, strip=(cpu, 1) * 9) for cpu in (0, 1)]
    seen = {"threads": {"workers": [asdict(make_worker(7, *crowd, minor_faults=90_000.0))]}}
    stock = make_system("stock TorchServe", 10.0, seen if other_seen is None else other_seen, is_kit=False,
                        verify_before=None, verify_after=None)  # fmt: skip
    stock[0] = replace(stock[0], trials=tuple(replace(one, errors=errors) for one in stock[0].trials))
    logged = replace(
        make_series("stock TorchServe, logged", (9.0,), scenario=make_scenario(name="bert-plain")),
        facts=make_facts("stock TorchServe, logged", is_kit=False, seen={"onednn_lines": LINES[:14]}),
    )
    asked = {"model": "bert", "against": "stock", "precision": "int8"}
    blocks = {"turns": [*stock, *kit], "logged": [logged], **make_pooled()}
    return make_kept(tmp_path, blocks, kind="profile", asked=asked)


def make_pooled(flame=FLAME):
    """One process, of which a flame graph was drawn."""
    # py-spy fails what it halts for long, and none of its turn's figures is quoted.
    drawn = make_series(ONE, (40.0,), scenario=make_scenario(name="bert-flames"), seen=flame, errors=3)
    counted = [make_counted(ALL_OFF, COUNTED_OFF), make_counted(ONE, COUNTED_PLANNED)]
    return {"flames": [drawn], "counters": counted}


def make_counted(name, counted):
    key = "counters" if isinstance(counted, dict) else "counters_problem"
    return make_series(name, (100.0,), scenario=make_scenario(name="bert-counters"), seen={key: counted})


def test_a_request_is_cut_into_parts_that_add_up(tmp_path):
    _, kit = read_evidence(keep(tmp_path))
    client, server, phases = kit.client_ms, kit.server_ms, kit.phases
    assert (client, server) == (pytest.approx(50.0), pytest.approx(48.0))
    assert [round(one.ms, 6) for one in phases] == [2.0, 5.0, 3.0, 12.0, 26.0, 2.0]
    assert sum(one.ms for one in phases) == pytest.approx(client)


def test_operators_of_all_workers_are_added(tmp_path):
    _, kit = read_evidence(keep(tmp_path))
    assert (kit.runs, kit.run_ms) == (32, pytest.approx(100.0))
    assert [(one.name, one.calls, one.own_ms) for one in kit.operators] == [
        ("aten::conv", 256, 2800.0), ("aten::relu", 32, 320.0),
    ]  # fmt: skip
    assert kit.operators_share == pytest.approx(0.975)


def test_a_stock_servers_log_is_that_of_its_other_start(tmp_path):
    stock, kit = read_evidence(keep(tmp_path))
    assert (len(stock.log.calls), len(kit.log.calls)) == (7, 56)
    assert (stock.operators, stock.phases) == ((), ())


def test_a_healthy_kit_is_judged_good(tmp_path):
    verdicts = judge(keep(tmp_path))
    assert [one.met for one in verdicts] == [True] * 3
    assert verdicts[0].figure.value == pytest.approx(10.0)
    assert [round(one.figure.value, 1) for one in verdicts[1:]] == [96.0, 97.5]


def test_what_does_not_add_up_is_missed(tmp_path):
    kept = keep(tmp_path)
    one = read_evidence(kept)[1]
    low, high = replace(one, server_ms=0.8 * one.client_ms), replace(one, run_ms=0.9 * one.run_ms)
    assert [verdict.met for verdict in experiment.judge_sums(low)] == [False, True]
    assert [verdict.met for verdict in experiment.judge_sums(high)] == [True, False]


def test_a_system_in_doubt_has_no_figure_anywhere(tmp_path):
    kept = keep(tmp_path, errors=3)
    (verdict,) = judge(kept)
    section = make_section(kept)
    assert (verdict.met, verdict.figure) == (False, None)
    assert not section.valid
    assert [table.title for table in section.tables if table.rows] == ["Side by side"]
    assert {row[1] for row in section.tables[0].rows} == {"INVALID"}
    assert section.plots == ()


def read_table(section, title):
    (table,) = (one for one in section.tables if one.title == title)
    return [dict(zip(table.header, row, strict=True)) for row in table.rows]


def test_the_page_has_every_figure_and_loads_nothing(tmp_path):
    report = write_report([keep(tmp_path)], tmp_path)
    page = (report.folder / "report.html").read_text()
    assert report.valid
    assert len(page) < 2_000_000
    assert not re.search(r"""(src|href)=["']?(http|//|/)""", page)
    for title in ("Side by side", "Threads", "Memory", "Operators of kit int8", "oneDNN in sum"):
        assert f"<h3>{title}</h3>" in page
    assert page.count("data:image/svg+xml;base64,") == 3
    drawing = base64.b64encode(b"<svg>frames</svg>").decode()
    assert f'<object type="image/svg+xml" data="data:image/svg+xml;base64,{drawing}"></object>' in page
    assert (report.folder / "1-flame.svg").read_text() == "<svg>frames</svg>"


def test_where_no_flame_graph_could_be_drawn_the_page_says_why(tmp_path, monkeypatch):
    problem = {"flames_problem": "Permission denied"}
    monkeypatch.setattr(sys.modules[__name__], "make_pooled", partial(make_pooled, problem))
    section = make_section(keep(tmp_path))
    assert section.drawings == ()
    assert section.closing[-2] == "No flame graph: Permission denied."


def test_hardware_counters_are_told_where_they_are(tmp_path, monkeypatch):
    section = make_section(keep(tmp_path / "without"))
    assert "No top-down analysis: no counters on this machine." in section.closing
    assert [one.title for one in section.tables if one.title == "Top-down analysis" and one.rows] == []
    module = sys.modules[__name__]
    monkeypatch.setattr(module, "COUNTED_OFF", {"tma_backend_bound": 60.0, "tma_retiring": 30.0})
    monkeypatch.setattr(module, "COUNTED_PLANNED", {"tma_backend_bound": 40.0})
    section = make_section(keep(tmp_path / "with"))
    rows = [tuple(row.values()) for row in read_table(section, "Top-down analysis")]
    assert rows == [("tma_backend_bound", "60.0", "40.0"), ("tma_retiring", "30.0", "–")]


def test_figures_stand_where_they_belong(tmp_path):
    section = make_section(keep(tmp_path))
    stock, kit = read_table(section, "Side by side")
    assert (stock["requests/s"], kit["requests/s"]) == ("10.0", "100.5")
    assert kit["ratio"].startswith("10.0×")
    assert kit["looking at threads"] == "2.1% of a core"
    crowd, first, _ = read_table(section, "Threads")
    assert (crowd["computing"], crowd["migrations/s"], crowd["waiting"]) == ("2", "7.0", "40.0 %")
    assert (first["CPUs"], first["throttled"], first["intra-op, inter-op"]) == ("0", "0 ms a period", "1, 1")
    summed = {row["system"]: row for row in read_table(section, "oneDNN in sum")}
    assert summed["stock TorchServe"]["reorders of activations"] == "3"
    assert summed["stock TorchServe"]["with post-ops"] == "0 %"
    assert summed["kit int8"]["not read"] == "0"


def test_both_systems_take_turns_with_each_collector():
    members = [Member(name=name, open=lambda _: None) for name in ("stock TorchServe", "kit int8")]
    block = make_turns("resnet50", members, 20.0)
    names = [(turn.member.name, turn.scenario.name, turn.level) for turn in block.turns]
    assert names[:4] == [
        ("stock TorchServe", "resnet50-plain", 32), ("stock TorchServe", "resnet50-threads", 32),
        ("stock TorchServe", "resnet50-operators", 32), ("kit int8", "resnet50-plain", 64),
    ]  # fmt: skip
    assert {turn.scenario.duration_s * block.repeats for turn in block.turns} == {20.0}
    assert len({turn.watch for turn in block.turns}) == len(COLLECTORS)
    assert make_logged("resnet50", "stock TorchServe", 20.0).turns[0].member.name.endswith(", logged")


def test_a_running_server_must_serve_the_model_alone(monkeypatch):
    both = SimpleNamespace(models=("resnet50", "bert"), name="running: run")
    monkeypatch.setattr(experiment, "find_system", lambda **_: both)
    with pytest.raises(LoadTestError, match="AGAINST must serve resnet50 alone: got resnet50, bert in run"):
        choose_other("resnet50", "run")
    monkeypatch.setattr(experiment, "find_system", lambda **_: replace_models(both))
    assert choose_other("resnet50", "run").name == "running: run"


def replace_models(system):
    return SimpleNamespace(models=("resnet50",), name=system.name)


def test_torchserves_counters_are_read_for_one_model():
    text = (
        "# HELP ts_queue_latency_microseconds x\n"
        'ts_queue_latency_microseconds{model_name="bert",model_version="1.0",hostname="a",} 2500000.0\n'
        'ts_queue_latency_microseconds{model_name="resnet50",hostname="a",} 1.0E9\n'
        'ts_inference_latency_microseconds{model_name="bert",model_version="1.0",} 4.5E6\n'
    )
    assert parse_counters(text, "bert") == {QUEUE: 2.5, LATENCY: 4.5}
    assert parse_counters("", "bert") == {}
