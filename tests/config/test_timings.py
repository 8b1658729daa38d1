"""What shall be timed, which timings count, what is served, and what follows from it."""

from __future__ import annotations

import dataclasses
import json

import pytest

from config.errors import ConfigError
from config.rules.site import make_site, make_timing_job
from config.timings import Timings, read_timings
from config.topology import read_topology
from config.tuned import Tuned
from tests.config.planning import INSTALLED, MACHINES, make_inputs, make_model, plan_machine

ALL = {"fp32": 1500, "bf16": 1200, "int8": 1000}
MODELS = tuple(make_model(name, ALL) for name in ("bert", "resnet50"))
TOPOLOGY = read_topology(MACHINES / "two-cores")


def make_job(models=MODELS, tuned=None, *, machine=TOPOLOGY, **changes):
    inputs = make_inputs(**{"models": tuple(one.name for one in models), "topology": "live", **changes})
    return make_timing_job(machine, models, inputs, INSTALLED, tuned or Tuned())


def time_job(job, *, tail_s=0.0, **speeds) -> Timings:
    """As `python -m models time` would write it; instead of a speed a text is a problem, and a dict has the
    seconds by size of batch. The longest of a hundred takes `tail_s` more."""

    def entry(model, speed):
        if isinstance(speed, str):
            return {"problem": speed}
        sizes = job.models[model].batches
        taken = speed if isinstance(speed, dict) else {size: size / speed for size in sizes}
        service = {
            str(size): {
                "batches": 9,
                "lowest_s": 0.9 * s,
                "median_s": s,
                "p99_s": s + tail_s,
                "highest_s": 1.2 * s,
                "busy": 1.0,
            }
            for size, s in taken.items()
        }
        return {"samples_per_second": speed, "batch_size": max(service, key=int), "service": service}

    models = {
        model: {"archive_id": f"id of {model}", "variants": {job.models[model].variant: entry(model, speed)}}
        for model, speed in speeds.items()
    }
    raw = {"schema": 5, "settings": job.settings, "versions": {"torch": "2.8.0"}, "models": models}
    return Timings(source="run/timings.json", raw=json.loads(json.dumps(raw)))


def plan_by(timings, **changes):
    return plan_machine("two-cores", MODELS, timings, **{"topology": "live", **changes})


def find_variants(plan):
    return {name: f"{one.backend.value} {one.precision.value}" for name, one in plan.models.items()}


def test_the_job_says_where_the_workers_are_and_how_they_run():
    job = make_job()
    assert job.models["bert"].variant == "ipex fp32"
    assert (job.seconds, job.bound) == (2.5, 10.0)
    plan = plan_machine("two-cores", MODELS)
    assert (job.settings["slots"], job.settings["threads"]) == ([[0], [1]], 1)
    seen = {**plan.environment, **plan.worker_environment}
    environment = job.settings["environment"]
    assert environment["LD_PRELOAD"] == "/kit/.venv/lib/libiomp5.so:/usr/lib/libjemalloc.so.2"
    own = dict.fromkeys(("LD_PRELOAD", "CPU_KIT_OPTIONS", "TS_IPEX_ENABLE"), "")
    assert environment | own == {name: str(setting.value) for name, setting in seen.items()} | own
    assert not {"CPU_KIT_OPTIONS", "TS_IPEX_ENABLE"} & {*environment}


@pytest.mark.parametrize("backend", ["ipex", "eager", "openvino", "bert=openvino,resnet50=eager"])
def test_settings_of_timings_are_the_same_whatever_computes(backend):
    assert make_job(backend=backend).settings == make_job().settings


def test_the_job_follows_what_is_asked_for():
    job = make_job(
        profile="latency", allocator="system", openmp="gnu", off=("trace",), precision="bf16", backend="eager"
    )
    assert (job.models["bert"].variant, job.models["bert"].batches) == ("eager bf16", (1,))
    assert (job.settings["slots"], job.settings["threads"]) == ([[0, 1]], 2)
    assert job.settings["environment"]["LD_PRELOAD"] == ""
    assert job.settings["off"] == ["trace"]


@pytest.mark.parametrize(
    ("model", "batches"),
    [
        ({}, (1, 4, 16)),
        ({"batch_sizes": (1, 2)}, (1, 2)),
        ({"batch_sizes": (32, 64)}, (32, 64)),
        ({"token_lengths": (16, 512)}, (1, 8, 24)),
    ],
)
def test_sizes_within_what_is_warmed(model, batches):
    assert make_job(models=(make_model("m", **model),)).models["m"].batches == batches


def test_what_was_tuned_is_served_where_nobody_names_another():
    tuned = Tuned(chosen={"variant": {"bert": "openvino int8"}}, evidence={"bert": "faster"})
    inputs = make_inputs(models=("bert", "resnet50"), topology="live")
    job = make_job(tuned=tuned)
    assert {name: one.variant for name, one in job.models.items()} == {
        "bert": "openvino int8",
        "resnet50": "ipex fp32",
    }
    timings = time_job(job, bert=40.0, resnet50=10.0)
    planned = make_site(TOPOLOGY, MODELS, inputs, INSTALLED, timings, tuned).plan
    assert find_variants(planned) == {"bert": "openvino int8", "resnet50": "ipex fp32"}
    assert planned.models["bert"].precision.reason == "tuned on this machine (tuned.json); bert: faster"
    options = json.loads(planned.environment["CPU_KIT_OPTIONS"].value)
    assert {name: f"{one['backend']} {one['precision']}" for name, one in options.items()} == (
        find_variants(planned)
    )
    assert planned.timings["models"]["bert"]["variants"].keys() == {"openvino int8"}


def test_memory_is_counted_in_the_tuned_precisions():
    tight = dataclasses.replace(TOPOLOGY, memory_limit_mib=4420)
    inputs = make_inputs(models=("bert", "resnet50"), topology="live")
    tuned = dict.fromkeys(("bert", "resnet50"), "ipex int8")
    assert make_site(tight, MODELS, inputs, INSTALLED, tuned=Tuned(chosen={"variant": tuned})).plan
    tuned["resnet50"] = "ipex fp32"
    with pytest.raises(
        ConfigError, match=r"each model \(bert ipex int8, resnet50 ipex fp32\): needed \d+ MiB"
    ):
        make_site(tight, MODELS, inputs, INSTALLED, tuned=Tuned(chosen={"variant": tuned}))


def test_what_other_backends_and_models_took_changes_no_plan():
    """They stand beside: a server that runs must not look like another one once these are timed."""
    alone = time_job(make_job(), bert=12.0, resnet50=20.0)
    beside = json.loads(json.dumps(alone.raw))
    beside["models"]["densenet121"] = beside["models"]["bert"]
    beside["models"]["bert"] = json.loads(json.dumps(beside["models"]["bert"]))
    beside["models"]["bert"]["variants"]["eager fp32"] = beside["models"]["bert"]["variants"]["ipex fp32"]
    planned = plan_by(dataclasses.replace(alone, raw=beside))
    assert planned.to_json() == plan_by(alone).to_json()
    assert planned.timings["versions"] == {"torch": "2.8.0"}
    assert type(planned).from_json(planned.to_json()) == planned


@pytest.mark.parametrize(
    "change",
    [
        {"models": {}},
        {"models": {"bert": {}}},
        {"settings": {"cpu_model": "another", "off": []}},
        {"models": time_job(make_job(profile="latency"), bert=12.0, resnet50=20.0).raw["models"]},
    ],
)
def test_timings_of_something_else_do_not_count(change):
    timings = time_job(make_job(), bert=12.0, resnet50=20.0)
    planned = plan_by(dataclasses.replace(timings, raw={**timings.raw, **change}))
    assert planned.timings == {}
    assert "no timings of " in planned.models["bert"].batch_size.reason


@pytest.mark.parametrize(
    "changes", [{"backend": "bert=eager"}, {"precision": "int8"}, {"allocator": "system"}]
)
def test_timings_of_another_plan_do_not_count(changes):
    timings = time_job(make_job(), bert=12.0, resnet50=20.0)
    assert plan_by(timings, **changes).timings == {}


def test_sizes_that_there_was_no_time_for_are_not_missing():
    timings = time_job(make_job(), bert=12.0, resnet50=20.0)
    entry = timings.raw["models"]["bert"]["variants"]["ipex fp32"]
    del entry["service"]["16"]
    assert plan_by(timings).timings == {}
    entry["left_out"] = [16]
    assert plan_by(timings).timings == timings.raw


def test_what_could_not_be_timed_is_said_with_the_reason():
    timings = time_job(make_job(precision="int8"), bert="cannot be loaded here: no IPEX", resnet50=45.2)
    planned = plan_by(timings, precision="int8")
    reasons = [planned.models[name].batch_size.reason for name in ("bert", "resnet50")]
    assert reasons[0].endswith("no timing: cannot be loaded here: no IPEX")
    assert "timed on this machine with all workers busy, 1 in 22.1 ms (19.9-26.5)" in reasons[1]


def test_timings_that_are_not_there_or_of_an_earlier_version_are_none(tmp_path):
    file = tmp_path / "timings.json"
    assert read_timings(file).raw == {}
    file.write_text('{"schema": 2, "settings": {}, "models": {}}')
    assert read_timings(file).raw == {}


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 5}', '{"schema": 5, "models": {}}'])
def test_a_file_that_holds_no_timings(tmp_path, text):
    (tmp_path / "timings.json").write_text(text)
    with pytest.raises(ConfigError, match=r"timings .*timings.json"):
        read_timings(tmp_path / "timings.json")


def test_a_model_needs_the_precision():
    with pytest.raises(ConfigError, match="PRECISION of m must be one of bf16: got fp32"):
        make_job(models=(make_model("m", {"bf16": 900}),))
