"""What the looks at a server find, and what becomes of the file that says so."""

from __future__ import annotations

import dataclasses
from concurrent.futures import Future

import pytest

from server.api import Client
from server.archives import read_archive
from server.errors import ApiError
from server.health import STOPPING, Canaries, Health, keep_health
from server.processes import Activity
from tests.server.fakes import make_archive, wait_for

UP = {"id": "9000", "status": "READY", "pid": 7}
DOWN = {"id": "9001", "status": "UNLOADING", "pid": -1}
RIGHT = {"label": "good", "probabilities": {"good": 0.75}}
WRONG = {"label": "bad", "probabilities": {"bad": 0.75}}


@pytest.fixture
def health(plan, run, torchserve, tmp_path):
    return Health(
        plan=dataclasses.replace(plan, models={"bert": plan.models["bert"]}),
        archives={"bert": read_archive(make_archive(tmp_path / "bert.mar", name="bert"))},
        client=Client(inference_url=torchserve.url, management_url=torchserve.url),
        run=run,
        read=lambda pid: None,
    )


def serve(torchserve, workers, answer=(200, RIGHT)):
    torchserve.routes = {
        "GET /models/bert": (200, [{"workers": workers}]),
        "POST /predictions/bert": answer,
    }


HELD_S = 40.0


@pytest.fixture
def canaries():
    """Those of one model, and the answers that are due, the oldest first."""
    sent: list[Future[str]] = []

    def send() -> Future[str]:
        sent.append(Future())
        return sent[-1]

    return Canaries(send, HELD_S), sent


def test_a_wrong_answer_counts_until_a_right_one_comes(canaries):
    one, sent = canaries
    for answer, verdict in (
        ("wrong", "wrong"),
        (ApiError("full", status=503), "wrong"),
        (ApiError("no answer: it ended"), "no answer: it ended"),
        ("", ""),
        (ApiError("full", status=429), ""),
    ):
        one.ask()
        if isinstance(answer, str):
            sent[-1].set_result(answer)
        else:
            sent[-1].set_exception(answer)
        assert [one.judge(0, 0.0), one.judge(0, 6 * 3600.0)] == [verdict] * 2
    assert one.answered == 2


@pytest.mark.parametrize(("waiting", "hangs"), [(0, True), (1, False)])
def test_a_canary_that_a_worker_holds_for_longer_than_any_batch_is_a_worker_that_hangs(
    canaries, waiting, hangs
):
    one, sent = canaries
    for now in range(0, 1000, 30):
        one.ask()
        assert bool(one.judge(waiting, float(now))) is (hangs and now > HELD_S)
    assert len(sent) == one.under_way == 4


def test_a_worker_that_is_stopped_is_told(health, torchserve):
    serve(torchserve, [UP, UP])
    stopped = Activity(stopped=True, cpu_seconds=0.0, start_ticks=1, switches=0)
    ill = dataclasses.replace(health, read=lambda _: stopped)
    assert ill.look(0.0) == "not ready: bert: worker 7 is stopped"


@pytest.mark.parametrize(
    ("workers", "answer", "text"),
    [
        ([UP, UP], (200, RIGHT), "ready"),
        ([UP, DOWN], (200, RIGHT), "not ready: bert: 1 of 2 workers ready"),
        ([UP, UP], (200, WRONG), "not ready: bert: wrong answer: expected 'good': got 'bad'"),
        ([UP, UP], (200, b"<html>"), "not ready: bert: http://127.0.0.1:"),
        ([UP, UP], (500, {"code": 500}), "not ready: bert: http://127.0.0.1:"),
        ([UP, UP], (503, {"code": 503}), "ready"),
        ([UP, UP], (429, {"code": 429}), "ready"),
    ],
)
def test_looks_tell_what_they_find(health, torchserve, workers, answer, text):
    serve(torchserve, workers, answer)
    looks = [health.look(float(number)) for number in range(4)]  # the third sends a canary
    canary = wait_for(lambda: [what for what, _, _ in torchserve.requests if what.startswith("POST")])
    assert canary == ["POST /predictions/bert"]
    assert wait_for(lambda: health.look(5.0).startswith(text))
    assert looks[0] == ("ready" if DOWN not in workers else text)


def test_the_file_follows_the_server_and_its_end(health, torchserve, run):
    serve(torchserve, [UP, DOWN])
    reports: list[str] = []
    with keep_health(health, reports.append, seconds=0.01):
        assert wait_for(lambda: "1 of 2" in run.health.read_text())
        serve(torchserve, [UP, UP])
        assert wait_for(lambda: run.health.read_text() == "ready\n")
    assert run.health.read_text() == f"{STOPPING}\n"
    assert reports == ["health: not ready: bert: 1 of 2 workers ready", "health: ready"]


def test_a_server_that_was_stopped_is_not_looked_at_in_its_first_moments(health, torchserve, monkeypatch):
    """It may be stopped again: what is asked then is late behind that pause."""
    serve(torchserve, [UP, UP])
    before = health._watched
    with monkeypatch.context() as patched:
        patched.setattr("server.health.LOOK_SECONDS", -1.0)  # each wait took too long
        with keep_health(health, lambda _: None, seconds=0.01):
            assert wait_for(lambda: health._watched is not before)
            assert health.looks == 1  # the start's
            patched.undo()
            assert wait_for(lambda: health.looks > 1)


def test_a_look_that_fails_is_not_the_last_one(health, torchserve, run, monkeypatch):
    serve(torchserve, [UP, UP])

    def fail(*_):
        raise RuntimeError("a bug")

    with monkeypatch.context() as patched, keep_health(health, lambda _: None, seconds=0.01):
        patched.setattr(health, "look", fail)
        assert wait_for(lambda: run.health.read_text() == "not ready: cannot look: RuntimeError: a bug\n")
        patched.undo()
        assert wait_for(lambda: run.health.read_text() == "ready\n")
