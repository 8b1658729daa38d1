"""Status says what runs, loudly where weights are random, or why nothing does; curl lines can be pasted."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

import pytest

from server.api import Client
from server.archives import read_archive, write_samples
from server.call import render_calls
from server.state import Failure, write_state
from server.status import render_model, render_status
from tests.server.fakes import make_archive
from tests.server.test_api import write_keys


@pytest.fixture
def client(run, torchserve):
    return Client(inference_url=torchserve.url, management_url=torchserve.url, key_file=run.key_file)


@pytest.fixture
def bert(tmp_path):
    return read_archive(make_archive(tmp_path / "bert.mar", name="bert", text="it's good"))


def test_not_running(run):
    assert render_status(run, None) == (f"not running ({run.path})", False)


def test_the_last_failure_is_shown_with_cause_and_cure(run):
    write_state(
        run.failure, Failure(model="bert", step="freeze", cause="no", cure="yes", log="a.log", lines=("x",))
    )
    text, serving = render_status(run, None)
    assert not serving
    assert text.splitlines()[1:] == [
        "the last one failed:", "  bert: freeze: no", "    | x", "  cure: yes", "  log: a.log",
    ]  # fmt: skip


def test_leftovers_are_named(run, dummy):
    dummy(run.path)
    assert "1 process(es) of an earlier server are left: make stop" in render_status(run, None)[0]


@pytest.mark.parametrize(("second", "serving"), [("READY", True), ("UNLOADING", False)])
def test_a_model_shows_workers_precision_and_weights(plan, torchserve, client, bert, second, serving):
    workers = [{"status": "READY", "pid": 2**22 + 1}, {"status": second, "pid": -1}]
    torchserve.routes = {"GET /models/bert": (200, [{"workers": workers}])}
    lines, good = render_model(plan, bert, client)
    assert good is serving
    assert lines[0] == f"bert: {2 if serving else 1} of 2 workers ready, fp32, batch 8 within 20 ms"
    assert lines[1] == "  weights: random (seed 0)  <-- NOT TRAINED"
    assert lines[2:] == [
        "  note: a stand-in",
        "  worker 4194305: ready, cpus ?, ? MiB",
        "  worker: has no process yet",
    ]


def test_a_model_that_does_not_answer_is_not_served(plan, client, bert):
    lines, good = render_model(plan, bert, client)
    assert not good
    assert "answered 404" in lines[0]


def test_curl_lines_can_be_pasted(plan, run, torchserve, client, bert):
    write_keys(run)
    plan = dataclasses.replace(plan, models={"bert": plan.models["bert"]})
    lines = render_calls(plan, {"bert": bert}, {"bert": Path("x")}, client).splitlines()
    assert shlex.split(lines[0]) == [
        "curl", "-H", "Authorization: Bearer inf", "-H", "Content-Type: application/json",
        "-d", '{"text": "it\'s good"}', f"{torchserve.url}/predictions/bert",
    ]  # fmt: skip
    assert lines[1].startswith("# the token is good until ")
    assert lines[1].endswith("or the next start; a new one: make curl")


def test_images_are_sent_as_files(plan, run, client, bert, tmp_path):
    image = dataclasses.replace(bert.canary, content_type="image/jpeg", file="a.jpg")
    archives = {"bert": dataclasses.replace(bert, canary=image)}
    samples = write_samples(archives, tmp_path / "with blank")
    plan = dataclasses.replace(plan, models={"bert": plan.models["bert"]})
    words = shlex.split(render_calls(plan, archives, samples, client).splitlines()[0])
    assert words == ["curl", "-T", str(samples["bert"]), f"{client.inference_url}/predictions/bert"]
