"""The in-process reference runs the archive's own handler as planned, and refuses what would be no limit."""

from __future__ import annotations

import dataclasses
import json

import pytest

from config.plan import Plan, Setting
from loadtest.errors import LoadTestError
from loadtest.inprocess import (
    Run,
    check_described,
    in_process_reference,
    model_share,
    render_worker_environment,
    total_rate,
)
from loadtest.payloads import JPEG, Payload, write_list, write_texts
from loadtest.photos import write_photo
from loadtest.servers import write_plan
from loadtest.variants import vary_archive
from server.rundir import RunDir

PLAIN = ("--no-ipex", "--no-pinning", "--allocator", "system", "--openmp", "gnu", "--workers", "1")
PORT = 9640


def plan_tiny(archive, run_dir, *, store=None) -> Plan:
    folders = ["--models-dir", str(archive.parent), "--model-store", str(store or archive.parent)]
    return write_plan(run_dir, port=PORT, model=archive.stem, arguments=[*PLAIN, *folders])


@pytest.fixture
def photos(tmp_path):
    (tmp_path / "photos").mkdir()
    write_photo(tmp_path / "photos" / "photo.jpg")
    payload = Payload(file="photo.jpg", content_type=JPEG, path="/predictions/tiny_image")
    return write_list(tmp_path / "photos", [payload])


def test_an_image_handler_answers_whole_batches(tiny_image_archive, photos, tmp_path):
    plan = plan_tiny(tiny_image_archive, tmp_path / "run")
    batch = plan.models["tiny_image"].batch_size.value
    with in_process_reference(
        "limit", tmp_path / "run", plan=plan, model="tiny_image", payloads=photos
    ) as reference:
        assert [one["model"] for one in reference.described] == ["tiny_image"]
        first, second = reference.measure(0.1), reference.measure(0.1)
    for (run,) in (first, second):
        assert run.requests == batch * len(run.batch_seconds) > 0
        assert 0 < run.model_seconds < sum(run.batch_seconds) <= run.seconds
    assert [child.process.returncode for child in reference.children] == [0]


def test_a_variant_is_what_runs(tiny_text_archive, tmp_path):
    store = tmp_path / "store"
    vary_archive(tiny_text_archive, store, model={"token_lengths": [24]})
    texts = write_texts(tmp_path / "texts", ["one text", "another one of them"], model="tiny_text")
    plan = plan_tiny(tiny_text_archive, tmp_path / "run", store=store)
    with in_process_reference(
        "limit", tmp_path / "run", plan=plan, model="tiny_text", payloads=texts
    ) as reference:
        assert reference.measure(0.1)[0].requests > 0
        shapes = reference.described[0]["shapes"]
    assert {shape["length"] for shape in shapes} == {24}


def test_refused_requests_give_no_figure(tiny_image_archive, photos, tmp_path):
    (photos / "photo.jpg").write_bytes(b"no image")
    plan = plan_tiny(tiny_image_archive, tmp_path / "run")
    with (
        in_process_reference(
            "limit", tmp_path / "run", plan=plan, model="tiny_image", payloads=photos
        ) as reference,
        pytest.raises(LoadTestError, match="answers were not 200: 415 Unsupported Media Type"),
    ):
        reference.measure(0.1)


def test_a_handler_that_cannot_load_is_said(tiny_image_archive, photos, tmp_path):
    plan = plan_tiny(tiny_image_archive, tmp_path / "run")
    options = Setting(value=json.dumps({"tiny_image": {"precision": "fp64"}}), reason="test")
    broken = dataclasses.replace(plan, environment={**plan.environment, "CPU_KIT_OPTIONS": options})
    with (
        pytest.raises(LoadTestError, match=r"(?s)in-process reference ended.*precision must be one of"),
        in_process_reference("limit", tmp_path / "run", plan=broken, model="tiny_image", payloads=photos),
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
    check_described(described[0], "tiny_image", [described[1]])


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
    with pytest.raises(LoadTestError, match="the in-process reference must have"):
        check_described(described[0], "tiny_image", [described[1], {**described[1], field: value}])


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


def test_rates_of_processes_add_up():
    runs = [
        Run(requests=100, seconds=10.0, batch_seconds=(), model_seconds=8.0, cpu_seconds=10.0),
        Run(requests=60, seconds=12.0, batch_seconds=(), model_seconds=8.5, cpu_seconds=10.0),
    ]
    assert total_rate(runs) == 15.0
    assert model_share(runs) == 0.75
