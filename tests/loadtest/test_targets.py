"""Rows are chosen by name, results are kept, and the exit code is the verdict."""

from __future__ import annotations

import json

import pytest

from loadtest import targets
from loadtest.errors import LoadTestError
from loadtest.goals import Goal
from loadtest.rows import ROWS, Row
from loadtest.rows.outcome import Outcome
from loadtest.samples import load_samples
from loadtest.targets import main
from tests.loadtest.making import make_measurement, make_samples, make_turns

TARGETS = {
    "resnet50-int8": (12.0, 95.0),
    "resnet50-bf16": (6.5,),
    "resnet50-fp32": (3.3,),
    "bert-128": (7.0, 92.0),
    "bert-mixed": (2.0, 25.0, 1.5),
}


def make_row(name, value):
    goal = Goal(what="a / b", value=value, limit=2.0, at_least=True, unit="×")

    def measure(bench):
        turns = make_turns("kit, int8", make_measurement(samples=make_samples([0.1])))
        return Outcome(goals=[goal], turns={"kit, int8": turns})

    return Row(name=name, title="A row", measure=measure)


def fail(bench):
    raise LoadTestError("the server is gone")


@pytest.fixture
def rows(monkeypatch):
    broken = Row(name="broken", title="A row that fails", measure=fail)
    monkeypatch.setattr(targets, "ROWS", (make_row("good", 3.0), make_row("bad", 1.0), broken))


def test_every_target_of_the_table_has_a_row():
    assert [row.name for row in ROWS] == [*TARGETS, "resnet50-latency", "load"]


@pytest.mark.parametrize(
    ("chosen", "code"), [(["good"], 0), (["bad"], 1), (["good", "bad"], 1), (["broken"], 1)]
)
def test_the_exit_code_is_the_verdict(rows, tmp_path, chosen, code):
    assert main([*chosen, "--results", str(tmp_path)]) == code


def test_a_row_that_fails_does_not_stop_the_others(rows, tmp_path, capsys):
    assert main(["--results", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert "good: a / b: 3×, target ≥ 2×: met" in printed.out
    assert "bad: a / b: 1×, target ≥ 2×: MISSED" in printed.out
    assert "broken: NOT MEASURED" in printed.out
    assert "error: broken: the server is gone" in printed.err


def test_results_are_kept_with_their_raw_samples(rows, tmp_path):
    main(["good", "--results", str(tmp_path)])
    (file,) = tmp_path.glob("*/good.json")
    kept = json.loads(file.read_text(encoding="utf-8"))
    assert kept["goals"][0]["met"] is True
    (repeat,) = kept["sides"][0]["repeats"]
    assert load_samples(file.parent / repeat["samples"]).latency.tolist() == [0.1]


def test_good_values_are_only_looked_at(rows, tmp_path):
    assert main(["good", "--check", "--results", str(tmp_path)]) == 0
    assert not list(tmp_path.iterdir())


def test_an_unknown_row_is_refused_with_the_known_ones(capsys):
    with pytest.raises(SystemExit):
        main(["resnet51"])
    assert "TARGET must be one of resnet50-int8, " in capsys.readouterr().err
