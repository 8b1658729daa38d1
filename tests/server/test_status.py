"""Status says what runs as it is now, loudly where that is not the plan, or why nothing does."""

from __future__ import annotations

import itertools

import pytest

from server import status
from server.archives import read_archive
from server.processes import JAVA_MAIN
from server.status import render_instance, render_model
from tests.server.fakes import make_archive, write_running

LIVE = {
    "batchSize": 8,
    "maxBatchDelay": 20,
    "responseTimeout": 120,
    "startupTimeout": 360,
    "jobQueueStatus": {"pendingRequests": 3, "remainingCapacity": 125},
}

PIDS = (2**22 + 1, 2**22 + 2)
"""Of no process."""


def tell(*backends):
    """What the workers say of themselves, one after the other."""
    facts = [
        {"pid": pid, "backend": {"name": backend}, "precision": "fp32"}
        for pid, backend in zip(PIDS, backends, strict=False)
    ]
    told = itertools.cycle(facts)
    return {"GET /models/bert?customized=true": lambda: (200, [{"customizedMetadata": next(told)}])}


@pytest.fixture
def bert(tmp_path):
    return read_archive(make_archive(tmp_path / "bert.mar", name="bert"))


@pytest.mark.parametrize(("second", "serving"), [("READY", True), ("UNLOADING", False)])
def test_a_model_shows_what_is_live(plan, torchserve, client, bert, second, serving):
    workers = [{"status": "READY", "pid": PIDS[0]}, {"status": second, "pid": -1}]
    torchserve.routes = {"GET /models/bert": (200, [{**LIVE, "workers": workers}]), **tell("ipex")}
    lines, good = render_model(plan, "bert", bert, client)
    assert good is serving
    assert len(lines) == 8
    assert lines[0] == f"bert: {2 if serving else 1} of 2 workers ready, ipex fp32"
    assert lines[4] == "  weights: random (seed 0)  <-- NOT TRAINED"


@pytest.mark.parametrize(
    ("backends", "shown"),
    [
        (("ipex", "ipex"), "ipex fp32"),
        (("eager", "eager"), "eager fp32  <-- NOT AS PLANNED: ipex fp32"),
        (("ipex", "eager"), "eager fp32 and ipex fp32  <-- NOT AS PLANNED: ipex fp32"),
        ((), "ipex fp32 (planned; not told)"),
    ],
)
def test_what_computes_is_the_workers_own_word(plan, torchserve, client, bert, monkeypatch, backends, shown):
    workers = [{"status": "READY", "pid": pid} for pid in PIDS]
    torchserve.routes = {"GET /models/bert": (200, [{**LIVE, "workers": workers}])}
    if backends:
        torchserve.routes |= tell(*backends)
    else:
        monkeypatch.setattr(status, "TOLD_WITHIN_S", 0.0)
    lines, _ = render_model(plan, "bert", bert, client)
    assert lines[0] == f"bert: 2 of 2 workers ready, {shown}"


@pytest.mark.parametrize(
    ("changed", "planned"),
    [
        ({"batchSize": 1}, "batch 8 within 20 ms"),
        ({"maxBatchDelay": 5000}, "batch 8 within 20 ms"),
        ({"responseTimeout": 3600}, "time-outs: response 120 s, startup 360 s"),
        ({"jobQueueStatus": {"pendingRequests": 0, "remainingCapacity": 9}}, "queue of 128"),
        ({"jobQueueStatus": None}, "queue of 128"),
    ],
)
def test_what_is_not_as_planned_is_marked(plan, torchserve, client, bert, changed, planned):
    torchserve.routes = {"GET /models/bert": (200, [{**LIVE, **changed}])}
    lines, _ = render_model(plan, "bert", bert, client)
    (marked,) = [one for one in lines if "NOT AS PLANNED" in one]
    assert marked.endswith(planned)


def test_a_queue_counted_while_requests_come_and_go_is_looked_at_again(plan, torchserve, client, bert):
    """Taken and free places are of two moments: only a sum that is never the planned one is another size."""
    looks = itertools.cycle([125, 124])

    def describe():
        return 200, [{**LIVE, "jobQueueStatus": {"pendingRequests": 4, "remainingCapacity": next(looks)}}]

    torchserve.routes = {"GET /models/bert": describe}
    assert "  4 requests wait, queue of 128" in render_model(plan, "bert", bert, client)[0]


def test_an_archive_that_is_gone_keeps_no_status_from_being_told(
    planned, dummy, tmp_path, torchserve, client, plan
):
    dummy(planned.path, JAVA_MAIN)
    write_running(planned, "ready")
    text, serving = render_instance(planned, tmp_path)
    assert not serving  # nobody listens on the recorded plan's ports
    assert text.splitlines()[0].startswith("http://127.0.0.1:9380: ready, started now; TorchServe ")
    torchserve.routes = {"GET /models/bert": (200, [LIVE])}
    lines, _ = render_model(plan, "bert", None, client)
    assert "  weights: unknown, bert.mar is gone from the model store, or damaged: make models" in lines
