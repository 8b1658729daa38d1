"""The command: which experiments run, what is kept, and the exit code."""

from __future__ import annotations

import json

import pytest

from loadtest.errors import LoadTestError
from loadtest.harm import __main__ as command
from loadtest.harm.client import RESET, Outcome
from loadtest.harm.experiments import EXPERIMENTS, Experiment, sending
from loadtest.harm.faults import find_statuses
from loadtest.harm.row import Look, Promise, Seen
from server.errors import ApiError

CALM = Look(java=1, resident_mib={2: 9.0}, peak_mib={2: 9.0}, cpu_s={2: 1.0}, out_of_memory=0, log_kib=1.0)


class FakeSite:
    """A server that survives everything, but for what its experiments bring back."""

    port = 1

    def __init__(self, restarts=()):
        self.restarts = list(restarts)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def ensure(self):
        return self.restarts.pop(0) if self.restarts else False

    def forget_peaks(self):
        return None

    def look(self):
        return CALM

    def time_canaries(self):
        return 0.1


def make_experiment(name, *kinds, promise=None):
    outcomes = [Outcome(status=one) if isinstance(one, int) else Outcome(failure=one) for one in kinds]
    return Experiment(
        name=name,
        title=f"about {name}",
        run=lambda site: Seen(outcomes=outcomes),
        promise=promise or Promise(),
    )


@pytest.fixture
def run(monkeypatch, tmp_path):
    def run(*experiments, arguments=(), site=None):
        monkeypatch.setattr(command, "EXPERIMENTS", experiments)
        monkeypatch.setattr(command, "Site", lambda *_, **__: site or FakeSite())
        return command.main([*arguments, "--results", str(tmp_path)])

    return run


def test_kept_promises_are_exit_code_0_and_rows_are_kept(run, tmp_path, capsys):
    assert run(make_experiment("a", 200), make_experiment("b", 503)) == 0
    kept = {file.stem: json.loads(file.read_text()) for file in tmp_path.glob("*/*.json")}
    assert {name: row["kinds"] for name, row in kept.items()} == {"a": {"200": 1}, "b": {"503": 1}}
    assert "b: about b" in capsys.readouterr().out


def test_a_broken_promise_is_exit_code_1_and_the_others_run_on(run, tmp_path, capsys):
    assert run(make_experiment("a", RESET), make_experiment("b", 200)) == 1
    assert {file.stem for file in tmp_path.glob("*/*.json")} == {"a", "b"}
    assert "a: BROKEN: answered 1 × reset, promised: 200, 413, 429, 503" in capsys.readouterr().out


@pytest.mark.parametrize("problem", [ConnectionRefusedError(111, "refused"), ApiError("no answer")])
def test_an_experiment_that_lost_its_server_is_broken_and_the_others_run_on(run, tmp_path, capsys, problem):
    def fail(_):
        raise problem

    lost = Experiment(name="a", title="about a", run=fail, promise=Promise())
    assert run(lost, make_experiment("b", 200)) == 1
    assert {file.stem for file in tmp_path.glob("*/*.json")} == {"a", "b"}
    assert f"a: BROKEN: could not go on: {type(problem).__name__}: {problem}" in capsys.readouterr().out


def test_a_start_that_fails_leaves_the_rows_before_it(run, capsys):
    class Lost(FakeSite):
        def ensure(self):
            if self.restarts:
                raise LoadTestError("python -m server start failed")
            self.restarts.append(True)

    assert run(make_experiment("a", 200), make_experiment("b", 200), site=Lost()) == 1
    shown = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in shown] == ["experiment", "a", "error:"]


def test_only_those_that_are_named_run(run, tmp_path):
    assert run(make_experiment("a", RESET), make_experiment("b", 200), arguments=["b"]) == 0
    assert [file.stem for file in tmp_path.glob("*/*.json")] == ["b"]


def test_an_unknown_name_says_what_is_known(capsys):
    with pytest.raises(SystemExit):
        command.main(["overlord"])
    assert "EXPERIMENT must be one of curl, bad-urls" in capsys.readouterr().err


def test_a_server_that_was_lost_is_started_again_and_said(run, capsys):
    assert run(make_experiment("a", 200), make_experiment("b", 200), site=FakeSite([False, True])) == 0
    assert "b: about b\n  the server was started again first" in capsys.readouterr().out


def test_good_values_are_only_looked_at(tmp_path):
    assert command.main(["--check", "overload", "--results", str(tmp_path)]) == 0
    assert not list(tmp_path.iterdir())


def test_names_and_promises_are_whole():
    names = [one.name for one in EXPERIMENTS]
    assert len(names) == len(set(names))
    assert all(one.title and one.promise.again_s <= 5.0 for one in EXPERIMENTS)


def test_requests_that_could_not_be_begun_are_a_fault(monkeypatch):
    from loadtest.harm import experiments

    monkeypatch.setattr(experiments, "send_all", lambda requests, *_, **__: [Outcome(status=200)])
    assert sending(lambda site: [None] * 3, at_most_s=7.0)(FakeSite()).faults == (
        "2 of 3 requests could not be sent within 7 s",
    )
    assert sending(lambda site: [None])(FakeSite()).faults == ()


def test_statuses_of_pipelined_answers_are_read_in_order():
    received = b"HTTP/1.1 400 Bad\r\nContent-Length: 2\r\n\r\nnoHTTP/1.1 200 OK\r\n\r\n"
    assert find_statuses(received) == [400, 200]
