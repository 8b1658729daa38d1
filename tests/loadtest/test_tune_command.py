"""What is asked of a tuning, what is rejected before anything is built, and tuned.json."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from config.settings import read_settings
from config.tuned import explain_stale, judge_tuned, read_tuned
from loadtest.errors import LoadTestError
from loadtest.results import start_result
from loadtest.tune import command, experiment, prepare
from tests.config.planning import MODELS, find_machine, make_facts, make_model, plan_machine
from tests.loadtest.test_tune import BEST, BOTH, MIX, MODEL, given, make_asked, race


@pytest.fixture(scope="module")
def whole():
    return race(given({BEST: 150.0}))


def find_facts(*models):
    return make_facts("two-cores", tuple(map(make_model, models)), precision="int8")


def ask(*options, models=MODEL, minutes=15.0, payloads="", mix=""):
    words = [f"MODELS={models}", f"PAYLOADS={payloads}", *options]
    return prepare.read_wish(read_settings(words, ()), minutes=minutes, mix=mix)


def test_settings_hold_for_every_plan_and_each_model_has_its_own_payloads():
    wish = ask("PRECISION=int8", "PORT=9000", "ALLOCATOR=")
    assert wish.arguments == ["PRECISION=int8", "SLO_P99_MS=200"]
    alone, mix = ask(models="bert resnet50"), ask(models="bert resnet50", mix="resnet50:7, bert:3")
    assert (mix.shares, mix.tunings, alone.tunings) == (MIX, [BOTH], [("bert",), (MODEL,)])
    assert {prepare.ask_first(alone, [model])["payloads"] for model in BOTH} == {""}  # what suits each
    assert prepare.ask_first(ask(payloads="cuts"), [MODEL])["payloads"] == "cuts"


TWO = {"models": "bert resnet50"}


@pytest.mark.parametrize(
    ("options", "how", "told"),
    [
        (["BATCH=8"], {}, "BATCH must not be given, it is what"),
        (["TOPOLOGY=x"], {}, "TOPOLOGY must not be given, plans on all"),
        ([], {"minutes": 2.0}, "--budget-minutes must be at least 5: got 2"),
        (
            [],
            {**TWO, "mix": "bert:1,resnet50:1", "payloads": "cuts"},
            "PAYLOADS must not be given with --mix",
        ),
        ([], {**TWO, "mix": "bert:1,bert:1,resnet50:1"}, "--mix must give each"),
        ([], {**TWO, "mix": "bert:0,resnet50:1"}, "--mix must be numbers above 0"),
        ([], {**TWO, "mix": "bert:x,resnet50:1"}, "--mix must be numbers above 0"),
        ([], {"mix": "resnet50:1"}, "--mix must give each"),
    ],
)
def test_what_cannot_be_fixed_is_rejected_before_anything_is_built(options, how, told):
    with pytest.raises(LoadTestError, match=f"^{told}"):
        ask(*options, **how)


@pytest.mark.parametrize(("options", "count"), [([], 2), (["BACKEND=ipex"], 2), (["PRECISION=fp32"], 0)])
def test_other_backends_and_precisions_that_passed_the_gate_are_raced(monkeypatch, options, count):
    """The default is FP32; OpenVINO is of another package set."""
    told, plan = [], plan_machine("two-cores", MODELS)
    definition = SimpleNamespace(name=MODEL, served=["ipex bf16", "ipex int8", "openvino int8"])
    archive = SimpleNamespace(definition=definition)
    monkeypatch.setattr(prepare, "read_topology", lambda: find_machine("two-cores"))
    monkeypatch.setattr(prepare, "find_missing", frozenset)
    monkeypatch.setattr(prepare, "time_batches", lambda *_: None)
    monkeypatch.setattr(prepare, "write_plan", lambda *_, **how: plan)
    testbed = SimpleNamespace(say=told.append, place=lambda _: (None, 1), store=Path("store"))
    found = [one.variant for one in prepare.list_others(ask(*options), archive, plan, testbed)]
    assert found == ["ipex bf16", "ipex int8"][:count]
    assert "not measured: openvino, inductor" in told[0]
    eager = prepare.find_variants(plan_machine("two-cores", backend={"bert": "eager"}), ["bert"])
    assert prepare.fix(eager) == ["BACKEND=bert=eager", "PRECISION=fp32"]


def test_what_is_resumed_is_compared_before_anything_is_timed(monkeypatch, tmp_path):
    """The memory that was there when it began decides on."""
    archive = SimpleNamespace(archive_id="1", definition=SimpleNamespace(weights="random"))
    monkeypatch.setattr(prepare, "read_archive", lambda path: archive)
    monkeypatch.setattr(prepare, "read_definitions", lambda *_: MODELS)
    monkeypatch.setattr(prepare, "list_others", lambda *_: [])
    plan, testbed = plan_machine("two-cores", MODELS), SimpleNamespace(store=tmp_path)
    asked, servers = prepare.prepare(ask(), [MODEL], plan, testbed)
    assert [*servers] == [*experiment.name_plans(asked["candidates"])]
    layouts = [{one["workers"] for one in prepare.prepare(wish, [MODEL], plan, testbed)[0]["candidates"]}
               for wish in (ask(), ask("WORKERS=2"), ask(**TWO))]  # fmt: skip
    assert [len(workers) for workers in layouts] == [2, 1, 1]
    kept = start_result("tune", "tune-resnet50", {**asked, "memory_mib": 1}, tmp_path)
    assert prepare.prepare(ask(), [MODEL], plan, testbed, kept.folder)[0]["memory_mib"] == 1
    archive.archive_id = "2"
    monkeypatch.setattr(prepare, "list_others", lambda *_: pytest.fail("timed"))
    with pytest.raises(LoadTestError, match=r'archives.resnet50: was "1", is "2"'):
        prepare.prepare(ask(), [MODEL], plan, testbed, kept.folder)


def test_tuned_json_has_what_differs_with_its_evidence(whole, tmp_path):
    facts = find_facts(MODEL)
    tuned = read_tuned(file := command.keep_tuned([(whole, "folder")], facts, tmp_path))
    assert tuned.chosen == {"batch": {MODEL: 4}, "variant": {MODEL: "ipex bf16"}}
    assert tuned.limit == {"percentile": 99.0, "ms": 200.0}
    assert all(
        word in tuned.evidence[MODEL] for word in ("w2x1-b4 / default: 1.", "adopted", "results/folder")
    )
    assert judge_tuned(file, facts)[0].find("batch", MODEL) == 4
    mix = race(given({"w1x2-b8-b8": 150.0}), shares=MIX)
    tuned = read_tuned(command.keep_tuned([(mix, "folder")], facts, tmp_path))
    variant = dict.fromkeys(MIX, "ipex bf16")
    assert tuned.chosen == {"workers": 1, "cores_per_worker": 2, "variant": variant}
    # Workers are one number for all models.
    assert read_tuned(command.keep_tuned([(mix, ""), (mix, "")], facts, tmp_path)).chosen == {}


@pytest.fixture
def tune(whole, monkeypatch, tmp_path):
    """The command, where every race ends as a whole one."""

    def call(models, *options, failing=()):
        def fake(wish, models, *_):
            if models[0] in failing:
                raise LoadTestError("no archive")
            return make_asked(), models

        def end(bench, models):
            return experiment.Race({**whole.asked, "models": [*models]}, whole.blocks)

        monkeypatch.setattr(prepare, "make_plan", lambda *_: SimpleNamespace(settings={}))
        monkeypatch.setattr(command, "read_facts", lambda _: find_facts(*models))
        monkeypatch.setattr(prepare, "prepare", fake)
        monkeypatch.setattr(command, "measure_race", end)
        monkeypatch.setattr(
            command, "call", lambda *words: print(*words, file=(tmp_path / "prepared").open("a"))
        )
        monkeypatch.setattr(prepare, "time_batches", lambda *_: None)
        given = [f"MODELS={' '.join(models)}", "PRECISION=int8", f"RUN_DIR={tmp_path}", "WEIGHTS=random"]
        words = ["--results", str(tmp_path), *options]
        return command.run_tune.main(words, obj=read_settings(given, ()), standalone_mode=False)

    return call


def test_one_file_is_written_for_all_models(tune, tmp_path):
    assert tune(BOTH) == 0
    (built,) = (tmp_path / "prepared").read_text().splitlines()
    assert built == "models build PRECISION=int8 WEIGHTS=random"
    assert explain_stale(read_tuned(tmp_path / "tuned.json"), find_facts(*BOTH)) == ""


def test_a_model_that_fails_costs_the_others_their_file_alone(tune, tmp_path, capsys):
    with pytest.raises(LoadTestError, match="bert: could not be tuned: no archive"):
        tune(BOTH, failing=("bert",))
    assert "bert: could not be tuned: no archive" in capsys.readouterr().out
    assert len([*tmp_path.glob("*tune-resnet50/report.html")]) == 1
    assert explain_stale(read_tuned(tmp_path / "tuned.json"), find_facts("resnet50")) == ""


def test_what_cannot_be_resumed_is_told_before_anything_is_built(tune, tmp_path):
    start_result("tune", "tune-bert", {"models": ["bert"], "budget_minutes": 9.0}, tmp_path)
    with pytest.raises(LoadTestError, match=r"budget_minutes: was 9.0, is 15.0"):
        tune(("bert",), "--resume", "latest")
    assert not (tmp_path / "prepared").exists()
    with pytest.raises(LoadTestError, match="bert: could not be tuned"):
        tune(BOTH, "--resume", "latest")
    assert len([*tmp_path.glob("*tune-resnet50/report.html")]) == 1
    with pytest.raises(LoadTestError, match="--resume of several models must be latest: got x"):
        tune(BOTH, "--resume", "x")


def test_a_server_with_other_settings_is_not_tuned_beside(monkeypatch, tmp_path):
    monkeypatch.setattr(command, "find_marked", lambda _: [SimpleNamespace(is_supervisor=True)])
    monkeypatch.setattr(command, "read_plan", lambda _: SimpleNamespace(settings={"precision": "int8"}))
    command.check_running(read_settings(["PRECISION=int8", f"RUN_DIR={tmp_path}"], ()))
    with pytest.raises(LoadTestError, match="a server with other PRECISION runs from"):
        command.check_running(read_settings([], ()))
