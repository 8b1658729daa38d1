"""Which experiments run, what is kept, and the exit code."""

from __future__ import annotations

import json

import pytest

from loadtest.errors import LoadTestError
from loadtest.experiments.harm import run as module
from loadtest.experiments.harm.client import RESET, Outcome
from loadtest.experiments.harm.experiments import EXPERIMENTS, Experiment, sending
from loadtest.experiments.harm.faults import find_statuses
from loadtest.experiments.harm.row import Look, Promise, Seen
from loadtest.results.kept import EXPERIMENT_FILE
from loadtest.systems.fleet import Site
from server.errors import ApiError

CALM = Look(java=1, resident_mib={2: 9.0}, peak_mib={2: 9.0}, cpu_s={2: 1.0}, out_of_memory=0, log_kib=1.0)


class FakeVictim:
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
        run=lambda _: Seen(outcomes=outcomes),
        promise=promise or Promise(),
    )


@pytest.fixture
def run(monkeypatch, tmp_path):
    def run(*experiments, names=(), victim=None):
        monkeypatch.setattr(module, "EXPERIMENTS", experiments)
        monkeypatch.setattr(module, "Victim", lambda *_: victim or FakeVictim())
        site = Site(store=tmp_path, folder=tmp_path, first_port=1, say=print)
        return module.run_harm(site, results=tmp_path, names=names)

    return run


def read_rows(folder):
    files = [file for file in folder.glob("*/*.json") if file.name != EXPERIMENT_FILE]
    return {file.stem: json.loads(file.read_text()) for file in files}


def test_kept_promises_are_exit_code_0_and_rows_are_kept(run, tmp_path, capsys):
    assert run(make_experiment("a", 200), make_experiment("b", 503)) == 0
    assert {name: row["kinds"] for name, row in read_rows(tmp_path).items()} == {
        "a": {"200": 1},
        "b": {"503": 1},
    }
    assert "b: about b" in capsys.readouterr().out


def test_a_broken_promise_is_exit_code_1_and_the_others_run_on(run, tmp_path, capsys):
    assert run(make_experiment("a", RESET), make_experiment("b", 200)) == 1
    assert set(read_rows(tmp_path)) == {"a", "b"}
    assert "a: BROKEN: answered 1 × reset, promised: 200, 413, 429, 503" in capsys.readouterr().out


@pytest.mark.parametrize("problem", [ConnectionRefusedError(111, "refused"), ApiError("no answer")])
def test_an_experiment_that_lost_its_server_is_broken_and_the_others_run_on(run, tmp_path, capsys, problem):
    def fail(_):
        raise problem

    lost = Experiment(name="a", title="about a", run=fail, promise=Promise())
    assert run(lost, make_experiment("b", 200)) == 1
    assert set(read_rows(tmp_path)) == {"a", "b"}
    assert f"a: BROKEN: could not go on: {type(problem).__name__}: {problem}" in capsys.readouterr().out


def test_a_start_that_fails_leaves_the_rows_before_it(run, tmp_path, capsys):
    class Lost(FakeVictim):
        def ensure(self):
            if self.restarts:
                raise LoadTestError("python -m server start failed")
            self.restarts.append(True)

    with pytest.raises(LoadTestError, match="server start failed"):
        run(make_experiment("a", 200), make_experiment("b", 200), victim=Lost())
    assert list(read_rows(tmp_path)) == ["a"]
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown[-2:]] == ["experiment", "a"]


def test_only_those_that_are_named_run(run, tmp_path):
    assert run(make_experiment("a", RESET), make_experiment("b", 200), names=["b"]) == 0
    assert list(read_rows(tmp_path)) == ["b"]


def test_what_cannot_be_done_is_said_before_anything_starts():
    with pytest.raises(LoadTestError, match=r"EXPERIMENT must be one of curl, bad-urls, .*: got overlord"):
        module.check_harm(["overlord"], "fp32")
    with pytest.raises(LoadTestError, match="PRECISION must be one of fp32, bf16, int8: got fp64"):
        module.check_harm(["curl"], "fp64")


def test_a_server_that_was_lost_is_started_again_and_said(run, capsys):
    assert run(make_experiment("a", 200), make_experiment("b", 200), victim=FakeVictim([False, True])) == 0
    assert "b: about b\n  the server was started again first" in capsys.readouterr().out


def test_names_and_promises_are_whole():
    names = [one.name for one in EXPERIMENTS]
    assert len(names) == len(set(names))
    assert all(one.title and one.promise.again_s <= 5.0 for one in EXPERIMENTS)


def test_requests_that_could_not_be_begun_are_a_fault(monkeypatch):
    from loadtest.experiments.harm import experiments

    monkeypatch.setattr(experiments, "send_all", lambda requests, *_, **__: [Outcome(status=200)])
    assert sending(lambda _: [None] * 3, at_most_s=7.0)(FakeVictim()).faults == (
        "2 of 3 requests could not be sent within 7 s",
    )
    assert sending(lambda _: [None])(FakeVictim()).faults == ()


def test_statuses_of_pipelined_answers_are_read_in_order():
    received = b"HTTP/1.1 400 Bad\r\nContent-Length: 2\r\n\r\nnoHTTP/1.1 200 OK\r\n\r\n"
    assert find_statuses(received) == [400, 200]
