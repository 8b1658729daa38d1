"""The batch profile: what is to be timed, which figures count, and what follows from them."""

from __future__ import annotations

import dataclasses
import json

import pytest

from config.errors import ConfigError
from config.plan import Plan
from config.planning import BatchProfile, make_profile_job, read_profile
from config.tuned import NOT_TUNED, Tuned
from tests.config import planning
from tests.config.planning import MODELS, find_machine, make_foreign, make_model, plan_machine, plan_one


def make_job(models=MODELS, *, tuned=NOT_TUNED, **changes):
    return make_profile_job(planning.make_facts("two-cores", models, **{"topology": "", **changes}), tuned)


def time_job(job, *, tail_s=0.0, **speeds) -> BatchProfile:
    """As `python -m models time` would write it; instead of a speed a text is a problem, and a dict has the
    seconds by size of batch. The longest of a hundred takes `tail_s` more."""

    def entry(model, speed):
        if isinstance(speed, str):
            return {"problem": speed}
        sizes = job.models[model].batches
        taken = speed if isinstance(speed, dict) else {size: size / speed for size in sizes}
        service = planning.time_sizes(taken, tail_s)
        return {"samples_per_second": speed, "batch_size": max(service, key=int), "service": service}

    models = {
        model: {"archive_id": f"id of {model}", "variants": {job.models[model].variant: entry(model, speed)}}
        for model, speed in speeds.items()
    }
    raw = {"schema": 5, "settings": job.settings, "versions": {"torch": "2.8.0"}, "models": models}
    return BatchProfile(source="run/timings.json", raw=json.loads(json.dumps(raw)))


def plan_by(profile, **changes) -> Plan:
    return plan_machine("two-cores", MODELS, profile=profile, **{"topology": "", **changes})


def test_the_job_says_where_the_workers_are_and_how_they_run():
    job, plan = make_job(), plan_one("two-cores")
    assert (job.models["bert"].variant, job.seconds, job.bound) == ("ipex fp32", 2.5, 10.0)
    assert (job.settings["slots"], job.settings["threads"]) == ([[0], [1]], 1)
    environment = dict(job.settings["environment"])
    assert environment.pop("LD_PRELOAD") == "/kit/.venv/lib/libiomp5.so:/usr/lib/libjemalloc.so.2"
    seen = {**plan.environment, **plan.worker_environment}
    assert environment == {name: seen[name] for name in environment}
    assert {*seen} - {*environment} == {"LD_PRELOAD", "CPU_KIT_OPTIONS", "TS_IPEX_ENABLE"}
    assert json.loads(job.to_json())["models"]["bert"] == {"variant": "ipex fp32", "batches": [1, 8, 24]}


def test_settings_of_a_profile_are_the_same_whatever_computes():
    for backend in ({"*": "eager"}, {"*": "openvino"}, {"bert": "openvino", "resnet50": "eager"}):
        assert make_job(backend=backend).settings == make_job().settings


def test_threads_of_workers_that_nothing_pins_are_not_bound_when_they_are_timed():
    """All would have their first thread on the same CPU."""
    job = make_profile_job(planning.make_facts("no-numa", instances=1))
    assert job.settings["slots"] == [[0, 1, 2, 3]] * 2
    assert "KMP_AFFINITY" not in job.settings["environment"]


def test_the_job_follows_the_settings():
    libraries = {"allocator": "system", "openmp": "gnu"}
    job = make_job(mode="latency", off=("trace",), precision="bf16", backend={"*": "eager"}, **libraries)
    assert (job.models["bert"].variant, job.models["bert"].batches) == ("eager bf16", (1,))
    assert (job.settings["slots"], job.settings["threads"]) == ([[0, 1]], 2)
    assert (job.settings["environment"]["LD_PRELOAD"], job.settings["off"]) == ("", ["trace"])


@pytest.mark.parametrize(
    ("model", "batches"),
    [
        ({}, (1, 4, 16)), ({"batch_sizes": (1, 2)}, (1, 2)), ({"batch_sizes": (32, 64)}, (32, 64)),
        ({"token_lengths": (16, 512)}, (1, 8, 24)),
    ],
)  # fmt: skip
def test_sizes_within_what_is_warmed(model, batches):
    assert make_job((make_model("m", **model),)).models["m"].batches == batches


def test_of_archives_that_others_made_nothing_is_timed():
    assert make_job((), foreign=(make_foreign(),)).models == {}
    mixed = make_job(foreign=(make_foreign(),))
    assert ({*mixed.models}, mixed.settings["slots"]) == ({"bert", "resnet50"}, [[0]])


def test_what_was_tuned_is_served_where_nobody_names_another():
    tuned = Tuned(chosen={"variant": {"bert": "openvino int8"}}, evidence={"bert": "faster"})
    job = make_job(tuned=tuned)
    variants = {"bert": "openvino int8", "resnet50": "ipex fp32"}
    assert {name: one.variant for name, one in job.models.items()} == variants
    plan = plan_by(time_job(job, bert=40.0, resnet50=10.0), tuned=tuned)
    assert {name: f"{one.backend} {one.precision}" for name, one in plan.models.items()} == variants
    assert plan.reasons["a1.bert.precision"] == "tuned on this machine (tuned.json); bert: faster"
    assert plan.profile["models"]["bert"]["variants"].keys() == {"openvino int8"}


def test_memory_is_counted_in_the_tuned_precisions():
    tight = dataclasses.replace(find_machine("two-cores"), memory_limit_mib=4420)
    tuned = dict.fromkeys(("bert", "resnet50"), "ipex int8")
    assert plan_machine(tight, tuned=Tuned(chosen={"variant": tuned}))
    words = r"each model \(bert ipex int8, resnet50 ipex fp32\): needed \d+ MiB"
    with pytest.raises(ConfigError, match=words):
        plan_machine(tight, tuned=Tuned(chosen={"variant": {**tuned, "resnet50": "ipex fp32"}}))


def test_what_other_backends_and_models_took_changes_no_plan():
    """They stand beside: a server that runs must not look like another one once these are timed."""
    alone = time_job(make_job(), bert=12.0, resnet50=20.0)
    beside = json.loads(json.dumps(alone.raw))
    beside["models"]["densenet121"] = beside["models"]["bert"]
    beside["models"]["bert"] = json.loads(json.dumps(beside["models"]["bert"]))
    beside["models"]["bert"]["variants"]["eager fp32"] = beside["models"]["bert"]["variants"]["ipex fp32"]
    plan = plan_by(dataclasses.replace(alone, raw=beside))
    assert plan.to_json() == plan_by(alone).to_json()
    assert plan.profile["versions"] == {"torch": "2.8.0"}
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    "change",
    [
        {"models": {}},
        {"models": {"bert": {}}},
        {"settings": {"cpu_model": "another", "off": []}},
        {"models": time_job(make_job(mode="latency"), bert=12.0, resnet50=20.0).raw["models"]},
    ],
)
def test_a_profile_of_something_else_does_not_count(change):
    profile = time_job(make_job(), bert=12.0, resnet50=20.0)
    plan = plan_by(dataclasses.replace(profile, raw={**profile.raw, **change}))
    assert plan.profile == {}
    assert "batch profile " in plan.reasons["a1.bert.batch_size"]


def test_a_profile_of_another_plan_does_not_count():
    profile = time_job(make_job(), bert=12.0, resnet50=20.0)
    for changes in ({"backend": {"bert": "eager"}}, {"precision": "int8"}, {"allocator": "system"}):
        assert plan_by(profile, **changes).profile == {}


def test_sizes_that_there_was_no_time_for_are_not_missing():
    profile = time_job(make_job(), bert=12.0, resnet50=20.0)
    entry = profile.raw["models"]["bert"]["variants"]["ipex fp32"]
    del entry["service"]["24"]
    assert plan_by(profile).profile == {}
    entry["skipped"] = [24]
    assert plan_by(profile).profile == profile.raw


def test_what_could_not_be_timed_is_said_with_the_reason():
    profile = time_job(make_job(precision="int8"), bert="cannot be loaded here: no IPEX", resnet50=45.2)
    plan = plan_by(profile, precision="int8")
    assert plan.reasons["a1.bert.batch_size"].endswith("not timed: cannot be loaded here: no IPEX")
    assert "timed on this machine" in plan.reasons["a1.resnet50.batch_size"]


def test_a_profile_that_is_not_there_or_of_an_earlier_version_is_none(tmp_path):
    file = tmp_path / "timings.json"
    assert read_profile(file).raw == {}
    file.write_text('{"schema": 2, "settings": {}, "models": {}}')
    assert read_profile(file).raw == {}


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 5}', '{"schema": 5, "models": {}}'])
def test_a_file_that_holds_no_profile(tmp_path, text):
    (tmp_path / "timings.json").write_text(text)
    with pytest.raises(ConfigError, match=r"batch profile .*timings.json"):
        read_profile(tmp_path / "timings.json")
