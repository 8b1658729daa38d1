"""Options: each is validated before anything is measured, and says what it must be."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from config.settings import read_settings
from loadtest import command
from loadtest.cli import choose_scenarios, commands, find_where
from loadtest.drivers import ROOT
from loadtest.errors import LoadTestError
from loadtest.experiments import loadtest
from loadtest.servers.base import kept_server
from tests.loadtest.making import keep, make_series
from tests.loadtest.test_report import CLOSED, make_scenario

NOTHING = dict.fromkeys(
    ("run_dir", "url", "processes", "scenario", "users", "rate", "payloads", "locustfile", "driver"), ""
)


def given(**values):
    return {**NOTHING, "duration": None, "repeats": None, **values}


def choose(models=("bert",), loop="", **values):
    return [(one.name, one.levels) for one in choose_scenarios(given(**values), models, loop)]


def test_without_a_name_all_that_fit_are_chosen():
    assert choose() == [("bert-closed", ("auto",)), ("bert-open", ("60%",))]
    any_model = choose(models=("my-detector", "bert"))
    assert [name for name, _ in any_model[:3]] == ["my-detector-closed", "my-detector-open", "bert-closed"]
    kit = ["bert-closed", "bert-open", "resnet50-closed", "resnet50-open"]
    assert [name for name, _ in choose(models=())] == kit  # of a URL, where nobody knows
    assert choose(scenario="router-open") == [("router-open", ("60%",))]
    assert choose(users="8,32") == [("bert-closed", (8.0, 32.0))]
    assert choose(rate="20 80%") == [("bert-open", (20.0, "80%"))]
    assert choose(driver="ab") == [("bert-closed", ("auto",))]
    assert choose(loop="open") == [("bert-open", ("60%",))]


def test_what_is_changed_reaches_the_load():
    (one, _) = choose_scenarios(given(duration=3.0, payloads="one-text", repeats=2), ("bert",))
    assert (one.load.duration_s, one.load.payloads, one.repeats) == (3.0, "one-text", 2)


def test_a_locustfile_of_ones_own_is_a_scenario_of_its_own(tmp_path):
    own = tmp_path / "mine.py"
    own.touch()
    (one,) = choose_scenarios(given(locustfile=str(own), users="3"), ("bert",))
    assert (one.name, one.load.locustfile, one.levels, one.load.validated) == (
        "mine",
        str(own),
        (3.0,),
        False,
    )


@pytest.mark.parametrize(
    ("values", "wrong"),
    [
        ({"users": "3", "rate": "3"}, "USERS are of a closed loop, RATE of an open one: got both"),
        (
            {"scenario": "no-such"},
            "--scenario must be MODEL-closed, MODEL-open, or a .yaml file: got no-such",
        ),
        ({"scenario": "bert-open", "users": "3"}, "USERS does not fit the loop of bert-open"),
        ({"users": "none"}, "users must be 1 to 10000, or auto: got 'none'"),
        ({"users": "2.5"}, "users must be 1 to 10000"),
        ({"rate": "120%%"}, "rate must be requests a second, or a share such as 60%"),
        ({"locustfile": "no-such.py"}, "--locustfile must be a file: got no-such.py"),
        ({"scenario": "bert-open", "driver": "ab"}, "driver must be locust"),
    ],
)
def test_what_does_not_fit_is_said(values, wrong):
    with pytest.raises(LoadTestError, match=re.escape(wrong)):
        choose(**values)


def test_where_the_load_goes():
    assert find_where(given()) == "run"
    assert find_where(given(run_dir="other")) == "other"
    assert find_where(given(url="http://h:1/x")) == "http://h:1/x"


def call(line: str, results: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "loadtest", *line.split(), "--results", str(results)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_every_command_says_what_its_options_mean():
    for name, one in commands.commands.items():
        for parameter in one.params:
            assert isinstance(parameter, click.Argument) or parameter.help, f"{name}: {parameter.name}"
        assert one.help, name


@pytest.mark.parametrize(
    ("line", "code", "wrong"),
    [
        ("run DURATION=0", 1, "error: DURATION must be seconds, more than 0: got 0"),
        ("run URL=http://127.0.0.1:9 --driver jmeter", 2, "'jmeter' is not one of"),
        ("run --processes 0 URL=http://127.0.0.1:9", 1, "--processes must be 1 to 99"),
        ("compare --a x", 1, "error: x holds no result"),
        ("compare", 1, "error: --a must be given"),
        ("ablation MODELS=no-such", 1, "MODELS must be one of resnet50"),
        ("ablation MODELS=bert ARGS=--resume=latest", 1, "no result of settings-bert"),
        ("report no-such", 1, "no-such holds no result; the latest there are: none"),
        ("report", 1, "no result of anything"),
        ("gate RUN_DIR=no-such-folder --a no-such-folder --b x", 1, "error: no server answers from"),
        ("run PRECISON=int8", 1, "error: unknown setting PRECISON; did you mean PRECISION?"),
    ],
)
def test_mistakes_are_sentences_and_nothing_is_measured(tmp_path, line, code, wrong):
    done = call(line, tmp_path / "results")
    assert done.returncode == code, done.stderr
    assert wrong in done.stderr
    assert "Traceback" not in done.stderr


def test_a_build_that_fails_ends_the_command_before_anything_is_measured(tmp_path):
    (tmp_path / "file").touch()
    done = call(f"ablation MODELS=bert --store {tmp_path}/file/store", tmp_path)
    assert done.returncode != 0
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_a_kept_result_is_reported_again_and_one_that_was_interrupted_with_what_is_there(tmp_path):
    asked = loadtest.ask(kept_server("kit"), [make_scenario(CLOSED, (16,))])
    whole = keep(tmp_path, {"bert-closed": [make_series("kit", (50.0,) * 3)]}, asked=asked)
    done = call("report", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "bert-closed, 16 users: requests/s: 50" in done.stdout
    assert (whole.folder / "report.html").is_file()
    cut = keep(tmp_path, {}, asked=asked)
    assert "was interrupted before its block" in call(f"report {cut.folder.name}", tmp_path).stdout
    two = loadtest.show_loads("several", [make_series(name, (50.0,) * 3) for name in ("kit", "other")])
    assert [one.what.partition(":")[0] for one in two.verdicts] == ["kit", "other"]


def test_two_kept_results_are_compared(tmp_path):
    asked = loadtest.ask(kept_server("kit"), [make_scenario(CLOSED, (16,))])
    first, second = (
        keep(tmp_path, {"bert-closed": [make_series("kit", rates)]}, asked=asked).folder.name
        for rates in ((50.0, 50.1, 49.9), (40.0, 40.1, 39.9))
    )
    done = call(f"compare --a {first} --b {second}", tmp_path)
    assert (done.returncode, "REGRESSION" in done.stdout) == (1, True)
    done = call(f"compare --a {first} --b {first}", tmp_path)
    assert (done.returncode, "no regression" in done.stdout) == (0, True)


def test_a_server_is_started_only_where_none_runs_and_with_what_serves(monkeypatch, tmp_path):
    called: list[tuple[str, ...]] = []
    monkeypatch.setattr(command, "call", lambda *words: called.append(words))
    settings = read_settings([f"RUN_DIR={tmp_path}", "PRECISION=int8", "USERS=3", "ARGS=--driver ab"], ())
    command.serve_first(settings)
    assert called == [("server", "serve", "PRECISION=int8", f"RUN_DIR={tmp_path}")]
    command.serve_first(read_settings(["URL=http://127.0.0.1:9"], ()))
    monkeypatch.setattr(command, "find_marked", lambda _: [SimpleNamespace(is_supervisor=True)])
    command.serve_first(settings)
    assert len(called) == 1
