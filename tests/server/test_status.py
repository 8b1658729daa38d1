"""Status says what runs as it is now, what is wrong and what to do, or why nothing runs."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace

import pytest

from config.plan import write_plan
from server import status
from server.haproxy import HaproxyError
from server.state import Cause, Failure, Part, Phase, Record, write_state
from server.status import Status, ask, render_status
from tests.plans import make_model
from tests.server.fakes import make_archive, write_running

LIVE = {"batchSize": 4, "maxBatchDelay": 1, "responseTimeout": 60, "startupTimeout": 360,
        "jobQueueStatus": {"pendingRequests": 3, "remainingCapacity": 17}}  # fmt: skip
NOBODY = 2**22 + 1
"""Process id of no process."""
WORKER = {"status": "READY", "pid": NOBODY}
AT = "2026-01-01T00:00:00Z"
SUPERVISOR = SimpleNamespace(pid=NOBODY, role="supervisor", is_supervisor=True, is_java=False)
JAVA = SimpleNamespace(pid=NOBODY, role="TorchServe", is_supervisor=False, is_java=True)
HAPROXY = SimpleNamespace(pid=os.getpid(), role="HAProxy", is_supervisor=False, is_java=False)


@pytest.fixture
def plan(plan, torchserve, tmp_path):
    """All instances are the fake TorchServe; the archives are in tmp_path."""
    for name, source in (("bert", "random (seed 0)"), ("resnet50", "IMAGENET1K_V2")):
        make_archive(tmp_path / f"{name}.mar", name=name, weights=source)
        torchserve.routes[f"GET /models/{name}"] = (200, [{**LIVE, "workers": [WORKER]}])
    return at_address(replace(plan, model_store=str(tmp_path)), torchserve.url, *plan.instances)


def at_address(plan, url, *names):
    """These instances' management API is there."""
    instances = {
        name: replace(
            plan.instances[name], properties={**plan.instances[name].properties, "management_address": url}
        )
        for name in names
    }
    return replace(plan, instances={**plan.instances, **instances})


@pytest.fixture
def show(planned, plan, monkeypatch):
    """Status of a server with these processes and this record: its text, whether it serves, the problems."""

    def show(*processes, plan=plan, queued=None, **changes):
        monkeypatch.setattr(status, "find_marked", lambda _: list(processes))
        runtime = SimpleNamespace(read_stats=lambda: read_stats(queued))
        monkeypatch.setattr(status, "Runtime", lambda _: runtime)
        write_plan(plan, planned.plan)
        parts = {name: Part(phase=Phase.READY, since=AT) for name in plan.instances}
        parts |= changes.pop("parts", {})
        known = {"pid": 1, "phase": Phase.READY, "since": AT, "proxy": Part(phase=Phase.READY, since=AT)}
        write_state(planned.record, Record(**{**known, "instances": parts, **changes}))
        text, serving = render_status(planned)
        return text, serving, dict(Status(planned, list(processes)).find_problems())

    write_running(planned, "ready", seconds_to_ready=31.2)
    return show


def read_stats(queued):
    if queued is None:
        raise HaproxyError("no socket")
    return {name: SimpleNamespace(queued=count) for name, count in queued.items()}


def test_two_models_in_two_instances_fit_a_screen(show):
    text, serving, problems = show(SUPERVISOR, JAVA, queued={"bert": 40})
    lines = text.splitlines()
    assert serving
    assert problems == {}
    assert len(lines) <= 20  # lines to paste come below
    assert max(map(len, lines)) <= 100
    rows = {line.split(":")[0]: line for line in lines}
    assert rows["http"].startswith(f"http://127.0.0.1:8080: ready since {AT}")
    assert "2/2 workers" in rows["bert"]
    assert "46 waiting" in rows["bert"]  # in HAProxy, and in each TorchServe
    assert "ipex fp32" in rows["bert"]
    (marked,) = [place for place, line in enumerate(lines) if line.endswith("<-- NOT TRAINED")]
    assert lines[marked - 1] == rows["bert"]
    assert rows["proxy"].endswith("ports: 8080 predictions, 8082 metrics")
    assert rows["a2"].endswith("ports: gRPC 8103, 8104")


@pytest.mark.parametrize("workers", [[], [{"status": "UNLOADING", "pid": -1}]])
def test_a_worker_that_is_missing_is_named_with_its_log(show, torchserve, workers):
    torchserve.routes["GET /models/bert"] = (200, [{**LIVE, "workers": workers}])
    _, serving, problems = show(SUPERVISOR, JAVA)
    assert not serving
    assert problems["a1: 0 of 1 workers of bert"].endswith("instances/a1/logs/model_log.log")


def test_an_instance_that_does_not_answer_is_named_and_keeps_no_other_from_being_told(show, plan, tmp_path):
    plan = at_address(plan, f"unix:{tmp_path}/none", "a1")
    text, serving, problems = show(SUPERVISOR, JAVA, plan=plan)
    assert not serving
    assert [what[:12] for what in problems] == ["a1: unix:" + str(tmp_path)[:3]] * 2
    assert "bert: 1/2 workers" in text
    # While it starts nothing else is to be expected.
    assert show(SUPERVISOR, JAVA, plan=plan, parts={"a1": Part()}, phase=Phase.STARTING)[1:] == (False, {})


@pytest.mark.parametrize("health", ["", "bert: 0 of 1 workers ready"])
def test_what_is_restarted_is_told_with_the_cause(show, torchserve, health):
    torchserve.routes["GET /models/bert"] = (200, [{**LIVE, "workers": []}])
    cause = Cause(at=AT, cause="java was killed")
    part = Part(phase=Phase.BACKING_OFF, restarts=3, causes=(cause,), health=health)
    text, serving, problems = show(SUPERVISOR, JAVA, parts={"a1": part, "a2": part}, phase=Phase.DEGRADED)
    assert not serving
    assert list(problems) == [f"{name} backing off: {health or cause.cause}" for name in ("a1", "a2")]
    assert text.count(f"restarted 3 × (last at {AT}: {cause.cause})") == 2


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"proxy": Part(phase=Phase.UNWELL, health="no answer")}, "proxy unwell: no answer"),
        ({"message": "the disk is full"}, "the disk is full"),
        ({"reload": "failed: no archive"}, "the last reload failed: no archive"),
    ],
)
def test_what_the_supervisor_says_is_passed_on(show, changes, what):
    assert list(show(SUPERVISOR, JAVA, **changes)[2]) == [what]


def test_without_a_supervisor_nothing_it_wrote_counts(show, torchserve):
    assert show(JAVA, message="old")[1:] == (False, {})
    torchserve.routes["GET /models/bert"] = (200, [{**LIVE, "workers": []}])
    text, serving, problems = show(JAVA)
    assert not serving
    assert "supervisor not running" in text.splitlines()[0]
    assert AT not in text
    assert "HAProxy not watched, not running" in text
    assert "HAProxy not watched, not running" not in show(JAVA, HAPROXY)[0]
    assert set(problems.values()) == {status.RESTART}


@pytest.mark.parametrize("left", [[], [SimpleNamespace(is_supervisor=False, is_java=False)]])
def test_what_does_not_run_is_explained_by_the_last_failure(run, monkeypatch, left):
    monkeypatch.setattr(status, "find_marked", lambda _: left)
    failure = Failure(cause="no memory", model="bert", fix="WORKERS=1", log="run/log", lines=("x",))
    write_state(run.failure, failure)
    text, serving = render_status(run)
    lines = text.splitlines()
    assert not serving
    assert lines[0] == f"not running ({run.path})"
    assert ("1 process(es) of an earlier server" in text) is bool(left)
    assert lines[-4:] == ["  what: bert: no memory", "    | x", "  do: WORKERS=1", "  log: run/log"]


def test_files_that_are_gone_are_told_and_keep_no_model_from_serving(show, plan, planned, tmp_path):
    (tmp_path / "bert.mar").unlink()
    text, serving, problems = show(SUPERVISOR, JAVA)
    assert serving
    assert text.count("weights:") == 1
    assert list(problems.values()) == ["make models MODELS=bert"]
    planned.state.write_text("{")
    assert "server.json is missing or damaged" in show(SUPERVISOR, JAVA)[2]


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        ({"batchSize": 1}, ["batch 1 (planned 4)"]),
        ({"maxBatchDelay": 5000}, ["delay in ms 5000 (planned 1)"]),
        ({"responseTimeout": 3600}, ["response time-out in s 3600 (planned 60)"]),
        (
            {"startupTimeout": 7, "batchSize": 2},
            ["batch 2 (planned 4)", "startup time-out in s 7 (planned 360)"],
        ),
        ({"jobQueueStatus": {"pendingRequests": 0, "remainingCapacity": 9}}, ["queue 9 (planned 20)"]),
        ({"jobQueueStatus": None}, ["queue None (planned 20)"]),
        ({}, []),
    ],
)
def test_what_is_not_as_planned_is_marked(plan, show, torchserve, changed, difference):
    torchserve.routes["GET /models/bert"] = (200, [{**LIVE, **changed, "workers": [WORKER]}])
    assert ask(plan, "a1", "bert").differences == difference
    told = [what.partition("has of bert: ")[2] for what in show(SUPERVISOR, JAVA)[2]]
    assert told == ([", ".join(difference)] * 2 if difference else [])


def test_all_versions_of_a_foreign_archive_count(show, plan, torchserve):
    old = make_model("old", kit=False, backend="", precision="", archives={"1.0": "/a.mar", "2.0": "/b.mar"})
    plan = replace(plan, instances={"a1": replace(plan.instances["a1"], models={"old": old})})
    for version in ("1.0", "2.0"):
        torchserve.routes[f"GET /models/old/{version}"] = (200, [{**LIVE, "workers": [WORKER]}])
    text, serving, problems = show(SUPERVISOR, JAVA, plan=plan)
    assert (serving, problems) == (True, {})
    assert "old: 2/2 workers, an archive that others made" in text
    torchserve.routes["GET /models/old/2.0"] = (200, [{**LIVE, "workers": []}])
    assert not show(SUPERVISOR, JAVA, plan=plan)[1]
