"""tuned.json of one model and of two, and what a plan makes of it."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from config.topology import read_topology
from config.tuned import explain_stale, judge_tuned, read_tuned
from loadtest import actions
from loadtest.commands import main
from loadtest.errors import LoadTestError
from loadtest.experiments.tune import run
from loadtest.experiments.tune.outcome import find_outcome
from loadtest.experiments.tune.run import keep_tuned
from loadtest.report import write_report
from tests.config.planning import make_inputs
from tests.loadtest.experiments.tune.results import MIX, MODEL, run_tune


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run_tune(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("asked", [{}, {"precision": "int8"}])
def test_what_was_found_is_what_the_next_plan_goes_by(whole, tmp_path, asked):
    """Engine and precision stay with the numbers."""
    inputs = make_inputs(models=(MODEL,), **asked)
    file = keep_tuned([whole], inputs, tmp_path)
    tuned, best = read_tuned(file), find_outcome(whole).served.candidate
    assert tuned.chosen == {"batch": dict(best.batch), "variant": {MODEL: "ipex int8"}}
    assert tuned.limit == {"percentile": 99.0, "ms": 200.0}
    used, _ = judge_tuned(file, read_topology(), inputs)
    assert used.decide("variant", MODEL).value == "ipex int8"
    assert whole.folder.name in used.decide("batch", MODEL).reason


def fake_races(monkeypatch, kept, models, failing=()):
    """All end as `kept`, but of those that fail."""

    def run_experiment(experiment, site, **_):
        if experiment in failing:
            raise LoadTestError("no plan keeps it")
        return kept

    inputs = make_inputs(models=models, precision="int8")
    monkeypatch.setattr(run, "plan_all", lambda wish, site: SimpleNamespace(inputs=inputs))
    monkeypatch.setattr(run, "prepare", lambda wish, models, plan, site: models[0])
    monkeypatch.setattr(run, "run_experiment", run_experiment)
    monkeypatch.setattr(actions, "open_site", lambda options: nullcontext(SimpleNamespace(say=print)))


def tune(tmp_path, models):
    options = ["--models", " ".join(models), "--precision", "int8", "--run-dir", str(tmp_path)]
    return main(["tune", "--resume", "", "--results", str(tmp_path), "--", *options])


def test_a_model_that_cannot_be_tuned_costs_the_others_nothing(whole, tmp_path, monkeypatch, capsys):
    fake_races(monkeypatch, whole, ("bert", MODEL), failing=("bert",))
    assert tune(tmp_path, ("bert", MODEL)) == 1
    told = capsys.readouterr()
    assert "bert: could not be tuned: no plan keeps it" in told.out
    assert "written: " in told.out
    assert told.err == "error: bert: no plan keeps it\n"
    # Raced alone, its numbers hold for it alone.
    assert read_tuned(tmp_path / "tuned.json").made_for["models"] == [MODEL]


def test_the_order_in_which_models_are_named_makes_nothing_stale(whole, tmp_path, monkeypatch):
    fake_races(monkeypatch, whole, ("bert", MODEL))
    assert tune(tmp_path, (MODEL, "bert")) == 0
    inputs = make_inputs(models=("bert", MODEL), precision="int8")
    assert explain_stale(read_tuned(tmp_path / "tuned.json"), read_topology(), inputs) == ""


def test_where_no_model_can_be_tuned_nothing_is_written(whole, tmp_path, monkeypatch, capsys):
    fake_races(monkeypatch, whole, ("bert",), failing=("bert",))
    assert tune(tmp_path, ("bert",)) == 1
    told = capsys.readouterr()
    assert told.err == "error: bert: no plan keeps it\n"
    assert "could not be tuned" not in told.out
    assert not (tmp_path / "tuned.json").exists()


def test_a_right_default_leaves_nothing_to_choose(tmp_path):
    kept = run_tune(tmp_path, peaks=lambda name: 100.0 if name == "default" else 90.0)
    tuned = read_tuned(keep_tuned([kept], make_inputs(models=(MODEL,)), tmp_path))
    assert tuned.chosen == {}
    assert "the default is right" in tuned.evidence[MODEL]


def test_the_page_shows_every_plan_the_limit_and_what_is_chosen(whole, tmp_path):
    report = write_report([whole], tmp_path)
    assert report.valid
    found = find_outcome(whole)
    for row in found.rows:
        assert row.name in report.text
    assert f"Chosen: {found.served.name}" in report.text
    assert [file.name for file in report.folder.glob("*.png")] == [f"1-tune-{MODEL}.png"]


def test_what_was_found_of_a_mix_is_every_models(tmp_path):
    kept = run_tune(tmp_path, shares=MIX, peaks=lambda name: 150.0 if name == "w1x2-b8-b8" else 100.0)
    tuned = read_tuned(keep_tuned([kept], make_inputs(models=("bert", MODEL), precision="int8"), tmp_path))
    assert tuned.chosen.pop("variant").keys() == {"bert", MODEL}
    assert tuned.chosen == {"workers": 1, "cores_per_worker": 2}
    assert set(tuned.evidence) == {"bert", MODEL}
    assert write_report([kept], tmp_path).valid
