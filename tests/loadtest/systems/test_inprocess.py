"""The in-process reference runs the archive's own handler as planned, and refuses what would be no limit."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from config.plan import Plan, Setting
from loadtest.drivers.job import make_job, write_job
from loadtest.errors import LoadTestError
from loadtest.payloads import make_payloads
from loadtest.scenarios.scenario import Arrival, Scenario
from loadtest.systems.fleet import Fleet, Site
from loadtest.systems.inprocess import (
    check_described,
    in_process,
    render_worker_environment,
    run_in_process,
)
from loadtest.systems.kit import write_plan
from server.processes import find_marked
from server.rundir import RunDir

PLAIN = ("--backend", "eager", "--no-pinning", "--allocator", "system", "--openmp", "gnu", "--workers", "1")
PORT = 9640
WINDOW = {"warm_up_s": 0.2, "duration_s": 1.5}


def plan_tiny(archive, run_dir) -> Plan:
    folders = ["--models-dir", str(archive.parent), "--model-store", str(archive.parent)]
    return write_plan(run_dir, port=PORT, model=archive.stem, arguments=[*PLAIN, *folders])


def make_scenario(loop="closed", **changes):
    known = {"name": "x", "model": "m", "payloads": "x", "arrival": Arrival(loop=loop), "steps": (1,)}
    return Scenario(**{**known, **WINDOW, **changes})


@pytest.fixture(scope="module")
def image_system(tiny_image_archive, tmp_path_factory):
    """One for tests that only send."""
    run = RunDir.at(tmp_path_factory.mktemp("limit") / "run")
    with run_in_process("limit", run, plan_tiny(tiny_image_archive, run.path), "tiny_image") as system:
        yield system


def run_job(system, payloads, folder, **changes):
    job = make_job(make_scenario(**changes), level=1, repeat=0, url="", token="", payloads=payloads)
    return system.reference.run(job, write_job(job, payloads, folder))


def test_an_image_handler_answers_whole_batches_in_its_pinned_processes(tiny_image_archive, tmp_path):
    said: list[str] = []
    site = Site(store=tiny_image_archive.parent, folder=tmp_path, first_port=PORT, say=said.append)
    photos = make_payloads("one-photo", model="tiny_image")
    arguments = [*PLAIN, "--models-dir", str(tiny_image_archive.parent)]
    member = in_process("limit", "tiny_image", arguments)
    with Fleet(site=site).opened() as fleet:
        system = fleet.bring(member, halt=False).system
        batch = system.plan.models["tiny_image"].batch_size.value
        outcome = run_job(system, photos, tmp_path / "job")
        assert (system.is_kit, system.url, system.token(60), system.list_workers("tiny_image")) == (
            True, "", "", [],
        )  # fmt: skip
        system.halt()  # it ends none the less
    records = outcome.records
    assert records.good.all()
    assert len(records) == batch * len(np.unique(records.sent)) > batch
    assert -0.2 <= records.sent.min() < 1.5 < records.ended.max()
    assert (records.sent[batch:] >= records.ended[:-batch]).all()
    assert 0 < outcome.model_share < 1
    assert outcome.cpu_shares == ()
    assert {"label", "probability"} <= set(json.loads(records.answers[0])[0])
    assert find_marked(system.run.path) == []
    assert said == ["  starting limit"]


def test_texts_are_sent_in_the_jobs_order_and_answers_belong_to_them(tiny_text_archive, tmp_path):
    run = RunDir.at(tmp_path / "run")
    plan = plan_tiny(tiny_text_archive, run.path)
    texts = make_payloads("texts", model="tiny_text")[:5]
    with run_in_process("limit", run, plan, "tiny_text") as system:
        listed = run_job(system, texts, tmp_path / "listed", shuffled=False).records
        shuffled = run_job(system, texts, tmp_path / "shuffled").records
    assert listed.payload.tolist() == [number % 5 for number in range(len(listed))]
    first_round = shuffled.payload[:5].tolist()  # of as many as the time was enough for
    assert len({*first_round}) == len(first_round) > 0
    assert all(json.loads(listed.answers[one])["probabilities"] for one in listed.answer)


def test_refused_requests_are_errors_and_no_figures(image_system, tmp_path):
    (photo,) = make_payloads("one-photo", model="tiny_image")
    broken = dataclasses.replace(photo, body=b"no image")
    records = run_job(image_system, [photo, broken], tmp_path / "job", shuffled=False).records
    assert records.good.tolist() == [payload == 0 for payload in records.payload]
    assert set(records.status) == {200, 415}
    assert set(records.error) == {"", "Unsupported Media Type"}


@pytest.mark.parametrize("changes", [{"loop": "open"}, {"stop_after": 5}])
def test_other_loads_than_closed_loops_by_time_are_refused(image_system, tmp_path, changes):
    photos = make_payloads("one-photo", model="tiny_image")
    with pytest.raises(LoadTestError, match="runs closed loops that end by time"):
        run_job(image_system, photos, tmp_path / "job", **changes)


def test_a_handler_that_cannot_load_is_said(tiny_image_archive, tmp_path):
    run = RunDir.at(tmp_path / "run")
    plan = plan_tiny(tiny_image_archive, run.path)
    options = Setting(value=json.dumps({"tiny_image": {"precision": "fp64"}}), reason="test")
    broken = dataclasses.replace(plan, environment={**plan.environment, "CPU_KIT_OPTIONS": options})
    with (
        pytest.raises(LoadTestError, match=r"(?s)in-process reference ended.*precision must be one of"),
        run_in_process("limit", run, broken, "tiny_image"),
    ):
        pass


@pytest.fixture
def described(tiny_image_archive, tmp_path):
    plan = plan_tiny(tiny_image_archive, tmp_path / "run")
    cores = plan.layout.cores_per_worker.value
    return plan, {
        "precision": "fp32",
        "threads": {"intra_op": cores},
        "allocator": {"name": "system"},
        "openmp": {"name": "gnu"},
    }


def test_a_process_as_planned_is_accepted(described):
    check_described(described[0], "tiny_image", [described[1]], described[1]["threads"]["intra_op"])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("precision", "bf16"),
        ("threads", {"intra_op": 99}),
        ("allocator", {"name": "jemalloc"}),
        ("openmp", {"name": "intel"}),
    ],
)
def test_a_process_without_the_plans_settings_is_refused(described, field, value):
    threads = described[1]["threads"]["intra_op"]
    with pytest.raises(LoadTestError, match="the in-process reference must have"):
        check_described(described[0], "tiny_image", [described[1], {**described[1], field: value}], threads)


def test_the_environment_is_a_planned_workers(tiny_image_archive, tmp_path):
    plan = plan_tiny(tiny_image_archive, tmp_path / "run")
    libraries = Setting(value=["/lib/a.so", "/lib/b.so"], reason="test")
    preloading = dataclasses.replace(
        plan, worker_environment={**plan.worker_environment, "LD_PRELOAD": libraries}
    )
    environment = render_worker_environment(preloading, RunDir.at(tmp_path / "run"))
    assert environment["LD_PRELOAD"] == "/lib/a.so:/lib/b.so"
    assert environment["TS_IPEX_ENABLE"] == "false"
    for name, setting in plan.environment.items():
        assert environment[name] == str(setting.value)
