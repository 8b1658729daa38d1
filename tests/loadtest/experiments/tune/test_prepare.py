"""What is asked for, what is refused before anything is built, and which plans fit the machine."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from config.topology import read_topology
from loadtest.commands import main
from loadtest.errors import LoadTestError
from loadtest.experiments.tune import prepare
from loadtest.experiments.tune.prepare import (
    find_payloads,
    fix_variants,
    list_in_other_variants,
    parse_mix,
    read_wish,
)
from loadtest.experiments.tune.run import find_resumed
from loadtest.systems.system import ROOT
from tests.config.planning import MACHINES, MODELS, plan_machine
from tests.loadtest.making import make_kept


def ask(*options: str, models: str = "resnet50", limit_ms: str = "", **how):
    how = {"minutes": 15.0, "payloads": "", "mix": "", **how}
    return read_wish(["--models", models, "--run-dir", "run", "--slo-p99-ms", limit_ms, *options], **how)


def test_knobs_of_a_plan_hold_for_every_plan_and_others_are_its_own():
    wish = ask("--precision", "int8", "--port", "9000", "--allocator", "", "--tuned", "run/tuned.json")
    given = {"PRECISION": "int8"}
    assert (wish.models, wish.limit.seconds, wish.given) == (("resnet50",), 0.2, given)
    assert wish.arguments[:4] == ["--precision", "int8", "--slo-p99-ms", "200"]
    assert wish.arguments[4:] == ["--timings", str((ROOT / "run/timings.json").resolve())]
    assert ask("--slo-p99-ms", "500").limit.seconds == 0.5


@pytest.mark.parametrize(
    ("options", "how", "name"),
    [
        (["--batch", "8"], {}, "BATCH"),
        (["--delay-ms", "5"], {}, "DELAY_MS"),
        (["--topology", "x"], {}, "TOPOLOGY"),
        ([], {"limit_ms": "0"}, "SLO_P99_MS"),
        ([], {"minutes": 2.0}, "BUDGET_MINUTES"),
        ([], {"models": "bert resnet50", "mix": "bert:1,resnet50:1", "payloads": "cuts"}, "PAYLOADS"),
    ],
)
def test_what_is_found_here_or_gives_no_figures_is_refused_by_name(options, how, name):
    with pytest.raises(LoadTestError, match=f"^{name}"):
        ask(*options, **how)


def test_each_models_plans_have_its_engine_and_precision_and_name_no_other_model():
    plan = plan_machine("two-cores", backend="bert=eager")
    assert [fix_variants(plan, [name]) for name in plan.models] == [
        ["--backend", engine, "--precision", "fp32"] for engine in ("bert=eager", "resnet50=ipex")
    ]


def list_others(monkeypatch, wish, models, machine="two-cores"):
    """The default is FP32; BF16 and INT8 passed, eager's was refused; OpenVINO is of another package set."""
    told = []
    held = ("ipex bf16", "ipex int8", "eager bf16", "openvino int8")
    archive = SimpleNamespace(accuracy=dict.fromkeys(held), lost={"eager bf16": "refused"})
    monkeypatch.setattr(prepare, "read_topology", lambda: read_topology(MACHINES / machine))
    monkeypatch.setattr(prepare, "find_missing", frozenset)
    monkeypatch.setattr(prepare, "time_batches", lambda *_: None)
    monkeypatch.setattr(prepare, "write_plan", lambda *_, **how: plan_machine(machine, MODELS))
    site = SimpleNamespace(say=told.append, place=lambda _: (None, 1), store=ROOT)
    plan = plan_machine(machine, MODELS)
    return list_in_other_variants(wish, models, plan, dict.fromkeys(models, archive), site), told


def test_other_engines_and_precisions_that_the_archive_holds_are_raced(monkeypatch):
    found, told = list_others(monkeypatch, ask(), ["resnet50"])
    assert [one.variant for one in found] == ["ipex bf16", "ipex int8"]
    assert "not measured: openvino, inductor" in told[0]
    int8 = found[1]
    assert int8.name.endswith("-ipex-int8")
    assert int8.arguments[:4] == ["--backend", "ipex", "--precision", "int8"]


def test_of_what_a_person_named_no_other_is_raced_and_none_of_a_mix(monkeypatch):
    found, _ = list_others(monkeypatch, ask("--backend", "ipex"), ["resnet50"])
    assert [one.variant for one in found] == ["ipex bf16", "ipex int8"]
    assert list_others(monkeypatch, ask("--precision", "fp32"), ["resnet50"])[0] == []
    mix = ask(models="bert resnet50", mix="bert:1,resnet50:3")
    assert list_others(monkeypatch, mix, ["bert", "resnet50"])[0] == []


def test_workers_are_free_where_nobody_named_them_and_one_model_is_served():
    assert ask().free_layout
    assert not ask("--workers", "2").free_layout
    assert not ask(models="bert resnet50").free_layout
    assert ask(models="bert resnet50", mix="bert:1,resnet50:3").free_layout


def test_a_mix_is_shares_of_all_models():
    assert parse_mix("resnet50:7, bert:3", ("bert", "resnet50")) == {"bert": 0.3, "resnet50": 0.7}


@pytest.mark.parametrize(
    "text", ["resnet50:1", "resnet50:1,bert:x", "resnet50:1,bert:0", "resnet50:1,other:1"]
)
def test_what_is_no_mix_is_refused(text):
    with pytest.raises(LoadTestError, match="MIX must"):
        parse_mix(text, ("bert", "resnet50"))


def test_each_model_is_sent_what_its_open_loop_sends():
    assert (find_payloads("resnet50"), find_payloads("bert")) == ("photos", "texts")
    with pytest.raises(LoadTestError, match="no open scenario of densenet121: PAYLOADS= names"):
        find_payloads("densenet121")


def test_latest_is_each_races_own(tmp_path):
    kept = make_kept(tmp_path, {}, kind="tune", name="tune-bert")
    assert find_resumed("latest", ["bert"], tmp_path, alone=False) == kept.folder
    assert find_resumed("latest", ["resnet50"], tmp_path, alone=False) is None
    assert find_resumed("", ["bert"], tmp_path, alone=False) is None
    with pytest.raises(LoadTestError, match="RESUME of several models must be latest: got x"):
        find_resumed("x", ["bert"], tmp_path, alone=False)


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ([], 0, ""),
        (["--budget-minutes", "often"], 1, "error: BUDGET_MINUTES must be a number above 0: got often"),
    ],
)
def test_the_command_judges_its_values_before_anything_is_built(options, code, text, capsys):
    plan = ["--models", "resnet50", "--precision", "", "--run-dir", "run", "--tuned", "run/tuned.json"]
    assert main(["tune", "--check", "--resume", "", *options, "--", *plan]) == code
    assert capsys.readouterr().err.startswith(text)
