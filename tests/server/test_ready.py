"""The wait ends when all workers are up and the canary is right, or at the first failure."""

from __future__ import annotations

import dataclasses

import pytest

from server.api import Client
from server.archives import read_archive
from server.ready import StartFailed, Surroundings, wait_until_ready
from server.state import Failure
from tests.server.fakes import Clock, make_archive

READY = {"id": "9000", "status": "READY", "pid": 7}
LOADING = {"id": "9001", "status": "UNLOADING", "pid": -1}
GOOD = {"label": "good", "probabilities": {"good": 0.75}}


@pytest.fixture
def wait(plan, run, torchserve, tmp_path):
    """Run the wait for one model; gives (seconds, lines)."""
    model = {"bert": plan.models["bert"]}
    archives = {"bert": read_archive(make_archive(tmp_path / "bert.mar", name="bert"))}
    lines: list[str] = []

    def call(find_failure=lambda: None, find_death=lambda: None):
        clock = Clock()
        around = Surroundings(
            client=Client(inference_url=torchserve.url, management_url=torchserve.url),
            find_failure=find_failure,
            find_death=find_death,
            report=lines.append,
            sleep=clock.sleep,
            now=clock,
        )
        return wait_until_ready(dataclasses.replace(plan, models=model), archives, around), lines

    return call


def in_turn(*answers):
    """Gives the answers one after the other, then the last one for ever."""
    left = list(answers)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


def describe(*workers):
    return 200, [{"workers": list(workers)}]


def test_ready_means_all_workers_and_a_right_canary(torchserve, wait):
    torchserve.routes = {
        "GET /models/bert": in_turn(
            (503, {}), describe(), describe(READY, LOADING), describe(READY, LOADING), describe(READY, READY)
        ),
        "POST /predictions/bert": (200, GOOD),
    }
    seconds, lines = wait()
    assert (seconds, len(lines)) == (2.0, 4)
    assert torchserve.requests[-1] == ("POST /predictions/bert", "", b"hello")


@pytest.mark.parametrize(
    ("described", "predicted", "cause"),
    [
        (describe(READY, READY), (200, {**GOOD, "probabilities": {"good": 0.1}}), "wrong answer"),
        (describe(READY, READY), (500, {"code": 500}), "no answer"),
        ((404, {"code": 404}), (200, GOOD), "does not know the model"),
    ],
)
def test_what_does_not_answer_right_fails_at_once(torchserve, wait, described, predicted, cause):
    torchserve.routes = {"GET /models/bert": described, "POST /predictions/bert": predicted}
    with pytest.raises(StartFailed, match=cause) as failed:
        wait()
    assert failed.value.failure.model == "bert"


def test_the_first_failed_worker_ends_the_wait(torchserve, wait):
    torchserve.routes = {"GET /models/bert": describe(READY, LOADING)}
    found = in_turn(
        None, None, Failure(model="bert", cause="first sight"), Failure(model="bert", cause="whole")
    )
    with pytest.raises(StartFailed) as failed:
        wait(find_failure=found)
    assert failed.value.failure.cause == "whole"  # the log was read again after the first sign


def test_the_wait_has_an_end(torchserve, wait, plan):
    torchserve.routes = {"GET /models/bert": describe(READY, LOADING)}
    limit = plan.models["bert"].startup_timeout_s.value + 120
    with pytest.raises(StartFailed, match=f"after {limit} s"):
        wait()
