"""Precision auto: what shall be timed, which timings count, what is chosen, and what follows from it."""

from __future__ import annotations

import dataclasses
import json

import pytest

from config.errors import ConfigError, TimingsError
from config.render import render_properties
from config.rules import make_plan, make_timing_job
from config.rules.precision import choose_by_timings
from config.timings import Timings, read_timings
from config.topology import read_topology
from tests.config.planning import INSTALLED, MACHINES, make_inputs, make_model, plan_machine

ALL = {"fp32": 1500, "bf16": 1200, "int8": 1000}
MODELS = tuple(
    make_model(name, worker_memory_mib=ALL, precisions=("bf16", "fp32", "int8"))
    for name in ("bert", "resnet50")
)
GATE = "99.8% top-1 agreement with FP32 on 64 synthetic inputs"


def make_job(machine="two-cores", models=MODELS, **changes):
    topology = read_topology(MACHINES / machine) if isinstance(machine, str) else machine
    inputs = make_inputs(**{"precision": "auto", "topology": "live", **changes})
    return make_timing_job(topology, models, inputs, INSTALLED)


def time_job(job, **speeds) -> Timings:
    """As `python -m models time` would write it; a text instead of a speed is a problem."""

    def entry(model, precision, speed):
        if isinstance(speed, str):
            return {"problem": speed}
        size = job.models[model].batch_sizes[precision]
        gate = {} if precision == "fp32" else {"gate": GATE}
        return {"samples_per_second": speed, "batch_size": size, **gate}

    models = {
        model: {
            "archive_id": f"id of {model}",
            "precisions": {name: entry(model, name, speed) for name, speed in given.items()},
        }
        for model, given in speeds.items()
    }
    raw = {"schema": 1, "settings": job.settings, "versions": {"torch": "2.8.0"}, "models": models}
    return Timings(source="run/timings.json", raw=json.loads(json.dumps(raw)))


FAST = {"fp32": 12.3, "bf16": 24.9, "int8": 45.2}
SLOW = {"fp32": 8.1, "bf16": 8.2, "int8": "cannot be loaded here: no IPEX"}


def plan_auto(timings, **changes):
    return plan_machine("two-cores", MODELS, timings, **{"precision": "auto", "topology": "live", **changes})


def test_the_job_says_how_a_worker_of_one_core_runs():
    job = make_job()
    assert job.cpu == 0
    assert job.models["bert"].batch_sizes == {"fp32": 8, "bf16": 16, "int8": 16}
    assert list(job.models["bert"].batch_sizes) == ["fp32", "bf16", "int8"]
    assert job.settings["cpu_model"] == read_topology(MACHINES / "two-cores").model_name
    environment = job.settings["environment"]
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment["LD_PRELOAD"] == "/kit/.venv/lib/libiomp5.so:/usr/lib/libjemalloc.so.2"
    plan = plan_machine("two-cores", MODELS, workers=2)
    seen = {**plan.environment, **plan.worker_environment}
    assert environment | {"LD_PRELOAD": "", "CPU_KIT_OPTIONS": ""} == {
        name: str(setting.value) for name, setting in seen.items()
    } | {"LD_PRELOAD": "", "CPU_KIT_OPTIONS": ""}


def test_the_job_follows_what_is_asked_for():
    job = make_job(profile="latency", allocator="system", openmp="gnu", off=("trace",))
    assert set(job.models["bert"].batch_sizes.values()) == {1}
    assert job.settings["environment"]["LD_PRELOAD"] == ""
    assert "MALLOC_CONF" not in job.settings["environment"]
    assert job.settings["off"] == ["trace"]


def test_what_cannot_be_is_not_timed():
    topology = read_topology(MACHINES / "two-cores")
    plain = dataclasses.replace(topology, flags=("avx2",))
    model = make_job(plain).models["bert"]
    assert list(model.batch_sizes) == ["fp32"]
    assert model.impossible["int8"] == (
        f"needs a CPU with one of avx512_vnni, amx_int8: {topology.model_name} has avx2"
    )
    assert make_job(ipex=False).models["bert"].impossible == {"int8": "needs IPEX: got --no-ipex"}
    assert make_job(models=(make_model("m"),)).models["m"].batch_sizes == {"fp32": 8, "bf16": 16}


@pytest.mark.parametrize(
    ("speeds", "chosen", "reason"),
    [
        (
            {"fp32": 12.3, "bf16": 24.9, "int8": 45.2},
            "int8",
            "int8: 45.2 samples/s on one core, bf16 24.9, fp32 12.3, timed on this host; "
            f"passed the accuracy gate: {GATE}",
        ),
        (
            {"fp32": 100.0, "bf16": 104.9},
            "fp32",
            "fp32: 100 samples/s on one core, bf16 104.9, timed on this host; "
            "a less exact precision must be 5% faster",
        ),
        (
            {"fp32": 100.0, "bf16": 105.0},
            "bf16",
            "bf16: 105 samples/s on one core, fp32 100, timed on this host; "
            f"passed the accuracy gate: {GATE}",
        ),
        # int8 is within 5 % of bf16, which is the more exact
        (
            {"fp32": 10.0, "bf16": 20.0, "int8": 20.9},
            "bf16",
            "bf16: 20 samples/s on one core, int8 20.9, fp32 10, timed on this host; "
            f"a less exact precision must be 5% faster; passed the accuracy gate: {GATE}",
        ),
        # bf16 is slower than fp32, and does not stand in int8's way
        ({"fp32": 10.0, "bf16": 5.0, "int8": 11.0}, "int8", None),
        (
            {"fp32": 10.0, "bf16": 20.0, "int8": "refused at build: agreement is 90%"},
            "bf16",
            "bf16: 20 samples/s on one core, fp32 10, timed on this host; "
            f"passed the accuracy gate: {GATE}; not int8: refused at build: agreement is 90%",
        ),
        ({"fp32": 10.0}, "fp32", "fp32: 10 samples/s on one core, timed on this host"),
    ],
)
def test_the_fastest_wins_by_a_margin(speeds, chosen, reason):
    timed = time_job(make_job(), bert=speeds).raw["models"]["bert"]["precisions"]
    setting = choose_by_timings(timed)
    assert setting.value == chosen
    assert reason in (None, setting.reason)


def test_each_model_goes_by_its_own_precision():
    plan = plan_auto(time_job(make_job(), bert=SLOW, resnet50=FAST))
    assert plan.inputs.precision == "auto"
    assert {name: model.precision.value for name, model in plan.models.items()} == {
        "bert": "fp32",
        "resnet50": "int8",
    }
    assert {name: model.batch_size.value for name, model in plan.models.items()} == {
        "bert": 8,
        "resnet50": 16,
    }
    options = json.loads(plan.environment["CPU_KIT_OPTIONS"].value)
    assert {name: asked["precision"] for name, asked in options.items()} == {
        "bert": "fp32",
        "resnet50": "int8",
    }


def test_memory_is_counted_in_the_chosen_precisions():
    topology = dataclasses.replace(read_topology(MACHINES / "two-cores"), memory_limit_mib=5600)
    timings = {name: time_job(make_job(topology), bert=FAST, resnet50=given) for name, given in
               (("narrow", FAST), ("mixed", {"fp32": 12.3, "bf16": 12.3}))}  # fmt: skip

    def plan(timed):
        return plan_machine(topology, MODELS, timed, precision="auto", topology="live", workers=1)

    assert plan(timings["narrow"]).layout.workers_per_model.value == 1
    tight = dataclasses.replace(topology, memory_limit_mib=4150)
    with pytest.raises(ConfigError, match=r"each model \(bert int8, resnet50 fp32\): needed \d+ MiB"):
        plan_machine(tight, MODELS, timings["mixed"], precision="auto", topology="live")
    assert plan_machine(tight, MODELS, timings["narrow"], precision="auto", topology="live").models


def test_the_plan_keeps_the_timings_it_went_by():
    wider = make_job(models=(*MODELS, dataclasses.replace(MODELS[0], name="densenet121")))
    plan = plan_auto(time_job(wider, bert=SLOW, resnet50=FAST, densenet121=FAST))
    assert sorted(plan.timings["models"]) == ["bert", "resnet50"]
    assert plan.timings["models"]["resnet50"]["precisions"]["int8"]["samples_per_second"] == 45.2
    assert plan.timings["versions"] == {"torch": "2.8.0"}
    assert type(plan).from_json(plan.to_json()) == plan


def test_the_comment_on_batches_names_the_models_where_they_differ():
    text = render_properties(plan_auto(time_job(make_job(), bert=SLOW, resnet50=FAST))).replace("\n#  ", "")
    assert "batch: bert: throughput: the largest warmed size up to 8" in text
    assert "resnet50: throughput: the largest warmed size up to 16" in text


CURE = "run `make config PRECISION=auto`, which takes them"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"models": {}},
            "PRECISION=auto needs timings of bert, resnet50: got those of none (run/timings.json); " + CURE,
        ),
        (
            {"models": {"bert": {}}},
            "PRECISION=auto needs timings of resnet50: got those of bert (run/timings.json); " + CURE,
        ),
        (
            {"settings": {"cpu_model": "another", "off": []}},
            "PRECISION=auto needs timings of what is planned: got those of another cpu model, environment, "
            f"ipex (run/timings.json); {CURE}",
        ),
    ],
)
def test_timings_of_something_else_are_refused(change, message):
    timings = time_job(make_job(), bert=SLOW, resnet50=FAST)
    with pytest.raises(TimingsError) as error:
        plan_auto(dataclasses.replace(timings, raw={**timings.raw, **change}))
    assert str(error.value) == message


def test_timings_of_another_batch_size_are_refused():
    timings = time_job(make_job(), bert=FAST, resnet50=FAST)
    with pytest.raises(TimingsError, match="another batch size for bert fp32, batch size for bert bf16"):
        plan_auto(timings, profile="latency")


def test_auto_without_timings_says_how_to_take_them(tmp_path):
    with pytest.raises(TimingsError) as error:
        plan_auto(read_timings(tmp_path / "timings.json"))
    assert str(error.value) == (
        f"PRECISION=auto needs timings of this host: got none ({tmp_path / 'timings.json'}); {CURE}"
    )
    with pytest.raises(TimingsError, match=r"got none \(--timings was not given\)"):
        make_plan(
            read_topology(MACHINES / "two-cores"),
            MODELS,
            make_inputs(precision="auto", topology="live"),
            INSTALLED,
        )


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 2}', '{"schema": 1, "models": {}}'])
def test_a_file_that_holds_no_timings(tmp_path, text):
    (tmp_path / "timings.json").write_text(text)
    with pytest.raises(TimingsError, match=r"timings .*timings.json.*; run `make config PRECISION=auto`"):
        read_timings(tmp_path / "timings.json")


def test_a_recorded_machine_has_no_timings():
    with pytest.raises(ConfigError) as error:
        plan_machine("two-cores", MODELS, precision="auto", topology="machines/two-cores")
    assert str(error.value) == (
        "PRECISION=auto goes by timings of this host, and TOPOLOGY=machines/two-cores is another one: "
        "name one of fp32, bf16, int8"
    )


def test_auto_needs_each_models_memory_and_fp32():
    with pytest.raises(ConfigError, match=r"field worker_memory_mib.int8 is missing: add it"):
        make_job(models=(make_model("m", precisions=("fp32", "int8")),))
    with pytest.raises(ConfigError, match="PRECISION must be one of bf16 for m: got auto"):
        make_job(models=(make_model("m", precisions=("bf16",)),))
