"""The health file: right after the start, whatever a look finds, and not ready from the first signal on."""

from __future__ import annotations

import dataclasses

import pytest

from server.api import Client
from server.archives import read_archive
from server.health import Health, keep_health
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
        client=Client(inference_url=torchserve.url, management_url=torchserve.url, key_file=run.key_file),
        run=run,
    )


def serve(torchserve, workers, answer=(200, RIGHT)):
    torchserve.routes = {
        "GET /models/bert": (200, [{"workers": workers}]),
        "POST /predictions/bert": answer,
    }


@pytest.mark.parametrize(
    ("workers", "answer", "text"),
    [
        ([UP, UP], (200, RIGHT), "ready"),
        ([UP, DOWN], (200, RIGHT), "not ready: bert: 1 of 2 workers ready"),
        ([UP, UP], (200, WRONG), "not ready: bert: wrong answer: expected the label 'good'"),
        ([UP, UP], (500, {"code": 500}), "not ready: bert: http://127.0.0.1:"),
        ([UP, UP], (503, {"code": 503}), "ready"),
    ],
)
def test_a_look_tells_what_it_finds(health, torchserve, workers, answer, text):
    serve(torchserve, workers, answer)
    assert health.look(ask=True).startswith(text)


def test_most_looks_cost_no_inference(health, torchserve):
    serve(torchserve, [UP, UP], (200, WRONG))
    assert health.look(ask=False) == "ready"
    assert [what for what, _, _ in torchserve.requests] == ["GET /models/bert"]


def test_without_an_answer_it_is_not_ready(health, torchserve):
    assert health.look(ask=False).startswith("not ready: bert: http://127.0.0.1:")


def test_the_file_follows_the_server_and_its_end(health, torchserve, run):
    serve(torchserve, [UP, DOWN])
    with keep_health(health, seconds=0.01):
        assert wait_for(lambda: "1 of 2" in run.health.read_text())
        serve(torchserve, [UP, UP])
        assert wait_for(lambda: run.health.read_text() == "ready\n")
    assert run.health.read_text() == "not ready: stopping\n"
