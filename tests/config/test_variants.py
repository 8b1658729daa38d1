"""Auto: what shall be timed, which timings count, what is chosen, and what follows from it."""

from __future__ import annotations

import dataclasses
import json

import pytest

from config.errors import ConfigError, TimingsError
from config.render import render_properties
from config.rules import make_plan
from config.rules.site import Site, make_site, make_timing_job
from config.rules.variants import choose_by_timings
from config.timings import Timings, read_timings
from config.topology import read_topology
from config.tuned import Tuned
from config.write import summarize
from handlers.engines import ENGINES
from tests.config.planning import INSTALLED, MACHINES, make_inputs, make_model, plan_machine

ALL = {"fp32": 1500, "bf16": 1200, "int8": 1000}
MODELS = tuple(
    make_model(name, worker_memory_mib=ALL, precisions=("bf16", "fp32", "int8"))
    for name in ("bert", "resnet50")
)
WITHOUT_OPENVINO = dataclasses.replace(INSTALLED, missing_engines=frozenset({"openvino"}))
GATE = "99.8% top-1 agreement with FP32 on 64 synthetic inputs"


@pytest.fixture(autouse=True)
def three_engines():
    """Those that figures are given of here."""
    whole = dict(ENGINES)
    for name in {*ENGINES} - {"ipex", "openvino", "eager"}:
        del ENGINES[name]
    yield
    ENGINES.clear()
    ENGINES.update(whole)


def make_job(machine="two-cores", models=MODELS, *, installed=INSTALLED, grid=False, **changes):
    topology = read_topology(MACHINES / machine) if isinstance(machine, str) else machine
    names = tuple(model.name for model in models)
    inputs = make_inputs(**{"models": names, "precision": "auto", "topology": "live", **changes})
    return make_timing_job(topology, models, inputs, installed, grid=grid)


def time_job(job, *, tail_s=0.0, **speeds) -> Timings:
    """As `python -m models time` would write it, by variant or by precision of IPEX; instead of a speed a
    text is a problem, a dict has the seconds by size of batch. The longest of a hundred takes `tail_s`
    more."""

    def entry(model, variant, speed):
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
        gate = {} if variant == "ipex fp32" else {"gate": GATE}
        return {"samples_per_second": speed, "batch_size": max(service, key=int), "service": service, **gate}

    models = {
        model: {
            "archive_id": f"id of {model}",
            "variants": {name: entry(model, name, speed) for name, speed in name_variants(given).items()},
        }
        for model, given in speeds.items()
    }
    raw = {"schema": 4, "settings": job.settings, "versions": {"torch": "2.8.0"}, "models": models}
    return Timings(source="run/timings.json", raw=json.loads(json.dumps(raw)))


def name_variants(speeds):
    return {name if " " in name else f"ipex {name}": speed for name, speed in speeds.items()}


FAST = {"fp32": 12.3, "bf16": 24.9, "int8": 45.2}
SLOW = {"fp32": 8.1, "bf16": 8.2, "int8": "cannot be loaded here: no IPEX"}


def plan_auto(timings, **changes):
    return plan_machine("two-cores", MODELS, timings, **{"precision": "auto", "topology": "live", **changes})


def test_the_job_says_where_the_workers_are_and_how_they_run():
    job = make_job()
    assert job.models["bert"].variants == ("ipex fp32", "ipex bf16", "ipex int8")
    assert (job.seconds, job.samples) == (2.5, False)
    assert job.settings["cpu_model"] == read_topology(MACHINES / "two-cores").model_name
    plan = plan_machine("two-cores", MODELS)
    assert (job.settings["slots"], job.settings["threads"]) == ([[0], [1]], 1)
    seen = {**plan.environment, **plan.worker_environment}
    environment = job.settings["environment"]
    assert environment["LD_PRELOAD"] == "/kit/.venv/lib/libiomp5.so:/usr/lib/libjemalloc.so.2"
    by_engine = dict.fromkeys(("LD_PRELOAD", "CPU_KIT_OPTIONS", "TS_IPEX_ENABLE"), "")
    assert environment | by_engine == {name: str(setting.value) for name, setting in seen.items()} | by_engine
    assert not {"CPU_KIT_OPTIONS", "TS_IPEX_ENABLE"} & {*environment}


@pytest.mark.parametrize("backend", ["ipex", "eager", "openvino", "auto", "bert=auto,resnet50=eager"])
def test_settings_of_timings_are_the_same_whatever_computes(backend):
    assert make_job(backend=backend).settings == make_job().settings


def test_the_job_follows_what_is_asked_for():
    job = make_job(profile="latency", allocator="system", openmp="gnu", off=("trace",))
    assert job.models["bert"].batches == (1,)
    assert (job.settings["slots"], job.settings["threads"]) == ([[0, 1]], 2)
    assert job.settings["environment"]["OMP_NUM_THREADS"] == "2"
    assert job.settings["environment"]["LD_PRELOAD"] == ""
    assert "MALLOC_CONF" not in job.settings["environment"]
    assert job.settings["off"] == ["trace"]


def test_a_precision_that_is_named_is_timed_alone():
    assert make_job(precision="bf16").models["bert"].variants == ("ipex bf16",)


INT8, BF16 = ("ipex int8", "openvino int8"), ("ipex bf16", "openvino bf16", "eager bf16")
WHOLE = (
    *("ipex fp32", "ipex bf16", "ipex int8", "openvino fp32", "openvino bf16", "openvino int8"),
    *("eager fp32", "eager bf16"),
)


@pytest.mark.parametrize(
    ("changes", "bert", "resnet50"),
    [
        ({"backend": "auto"}, WHOLE, WHOLE),
        ({"backend": "auto", "precision": "int8"}, INT8, INT8),
        ({"backend": "bert=auto", "precision": "bf16"}, BF16, BF16[:1]),
        ({"backend": "auto", "precision": "int8", "installed": WITHOUT_OPENVINO}, INT8[:1], INT8[:1]),
    ],
)
def test_auto_times_each_installed_engine_that_has_the_precision(changes, bert, resnet50):
    job = make_job(**changes)
    assert job.models["bert"].variants == bert
    assert job.models["resnet50"].variants == resnet50
    assert job.models["bert"].impossible == {}


def test_all_workers_behind_a_door_are_timed_together():
    for changes in ({}, {"cores": "bert=0,resnet50=1"}):
        job = make_job(front="haproxy", inner_token_file="/run/inner-token", **changes)
        assert job.settings["slots"] == [[0], [1]]


@pytest.mark.parametrize(
    ("model", "few", "grid"),
    [
        ({}, (1, 4, 16), (1, 2, 3, 4, 6, 8, 12, 16)),
        ({"batch_sizes": (1, 2)}, (1, 2), (1, 2)),
        ({"batch_sizes": (32, 64)}, (32, 64), (32,)),
        ({"token_lengths": (16, 512)}, (1, 8, 24), (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)),
    ],
)
def test_sizes_within_what_is_warmed(model, few, grid):
    models = (make_model("m", **model),)
    assert make_job(models=models).models["m"].batches == few
    job = make_job(models=models, grid=True)
    assert (job.models["m"].batches, job.samples) == (grid, True)


def test_what_cannot_be_is_not_timed():
    topology = read_topology(MACHINES / "two-cores")
    plain = dataclasses.replace(topology, flags=("avx2",))
    model = make_job(plain).models["bert"]
    assert model.variants == ("ipex fp32", "ipex int8")
    assert model.impossible["ipex bf16"] == (
        f"needs a CPU with one of avx512_bf16, amx_bf16: {topology.model_name} has avx2"
    )
    assert make_job(backend="eager").models["bert"].impossible == {
        "eager int8": "needs BACKEND=ipex or openvino: eager has no int8"
    }
    assert make_job(plain, backend="auto").models["bert"].variants == (
        "ipex fp32", "ipex int8", "openvino fp32", "openvino int8", "eager fp32",
    )  # fmt: skip
    without_avx2 = dataclasses.replace(topology, flags=())
    assert make_job(without_avx2, backend="auto").models["bert"].variants == ("openvino fp32", "eager fp32")
    assert make_job(models=(make_model("m"),)).models["m"].variants == ("ipex fp32", "ipex bf16")


@pytest.mark.parametrize(
    ("speeds", "chosen", "reason"),
    [
        (
            {"fp32": 12.3, "bf16": 24.9, "int8": 45.2},
            "ipex int8",
            "ipex int8: 45.2 samples/s of a worker, ipex bf16 24.9, ipex fp32 12.3, timed on this host; "
            f"passed the accuracy gate: {GATE}",
        ),
        (
            {"fp32": 100.0, "bf16": 104.9},
            "ipex fp32",
            "ipex fp32: 100 samples/s of a worker, ipex bf16 104.9, timed on this host; "
            "a less exact precision must be 5% faster",
        ),
        (
            {"fp32": 100.0, "bf16": 105.0},
            "ipex bf16",
            "ipex bf16: 105 samples/s of a worker, ipex fp32 100, timed on this host; "
            f"passed the accuracy gate: {GATE}",
        ),
        # int8 is within 5 % of bf16, which is the more exact
        (
            {"fp32": 10.0, "bf16": 20.0, "int8": 20.9},
            "ipex bf16",
            "ipex bf16: 20 samples/s of a worker, ipex int8 20.9, ipex fp32 10, timed on this host; "
            f"a less exact precision must be 5% faster; passed the accuracy gate: {GATE}",
        ),
        # bf16 is slower than fp32, and does not stand in int8's way
        ({"fp32": 10.0, "bf16": 5.0, "int8": 11.0}, "ipex int8", None),
        (
            {"fp32": 10.0, "bf16": 20.0, "int8": "refused at build: agreement is 90%"},
            "ipex bf16",
            "ipex bf16: 20 samples/s of a worker, ipex fp32 10, timed on this host; "
            f"passed the accuracy gate: {GATE}; not ipex int8: refused at build: agreement is 90%",
        ),
        ({"fp32": 10.0}, "ipex fp32", "ipex fp32: 10 samples/s of a worker, timed on this host"),
        # between engines the fastest
        (
            {"ipex int8": 80.0, "openvino int8": 82.0},
            "openvino int8",
            "openvino int8: 82 samples/s of a worker, ipex int8 80, timed on this host; "
            f"passed the accuracy gate: {GATE}",
        ),
        # but the first of them where it is within 2 %
        (
            {"openvino int8": 81.6, "ipex int8": 80.0},
            "ipex int8",
            "ipex int8: 80 samples/s of a worker, openvino int8 81.6, timed on this host; of engines within "
            f"2% the first of ipex, openvino, eager; passed the accuracy gate: {GATE}",
        ),
        # the fastest of the more exact precision is what the less exact has to beat
        ({"ipex fp32": 50.0, "eager fp32": 100.0, "ipex bf16": 104.0}, "eager fp32", None),
        ({"ipex fp32": 50.0, "eager fp32": 100.0, "openvino bf16": 106.0}, "openvino bf16", None),
        # the most exact need not be there
        ({"ipex fp32": "no IPEX", "ipex bf16": "no IPEX", "openvino int8": 3.0}, "openvino int8", None),
    ],
)  # fmt: skip
def test_the_fastest_wins_by_a_margin(speeds, chosen, reason):
    job = make_job(backend="auto")
    setting = choose_by_timings(time_job(job, bert=speeds).raw["models"]["bert"]["variants"])
    assert setting.value == chosen
    assert reason in (None, setting.reason)


ALL_ENGINES = dict(zip(WHOLE, (10.0, 20.0, 40.0, 10.1, 22.0, 39.0, 5.0, 9.0), strict=True))
BEST_IPEX = {**ALL_ENGINES, "openvino bf16": 17.0, "openvino int8": "refused at build: agreement is 90%"}


@pytest.mark.parametrize(
    ("changes", "bert", "resnet50"),
    [
        ({"precision": "fp32"}, "ipex fp32", "ipex fp32"),
        ({"precision": "bf16"}, "openvino bf16", "ipex bf16"),
        ({"precision": "int8"}, "ipex int8", "ipex int8"),
        ({"precision": "auto"}, "ipex int8", "ipex int8"),
        ({"precision": "bf16", "backend": "bert=auto,resnet50=eager"}, "openvino bf16", "eager bf16"),
        ({"precision": "auto", "backend": "bert=openvino"}, "openvino int8", "ipex int8"),
    ],
)
def test_auto_chooses_the_engine_the_precision_or_both(changes, bert, resnet50):
    asked = {"backend": "auto", **changes}
    planned = plan_auto(time_job(make_job(**asked), bert=ALL_ENGINES, resnet50=BEST_IPEX), **asked)
    found = {name: f"{one.engine.value} {one.precision.value}" for name, one in planned.models.items()}
    assert found == {"bert": bert, "resnet50": resnet50}
    options = json.loads(planned.environment["CPU_KIT_OPTIONS"].value)
    assert {name: f"{one['engine']} {one['precision']}" for name, one in options.items()} == found
    assert "timed on this machine" in planned.models["bert"].batch_size.reason
    assert f" · auto: bert {bert}, resnet50 {resnet50} · " in summarize(Site(plan=planned))


def test_both_reasons_name_the_figures_of_all_pairs():
    timings = time_job(make_job(backend="auto"), bert=ALL_ENGINES, resnet50=BEST_IPEX)
    planned = plan_auto(timings, backend="auto").models["resnet50"]
    engine, precision = planned.engine, planned.precision
    assert engine.reason == precision.reason
    assert precision.reason == (
        "ipex int8: 40 samples/s of a worker, ipex bf16 20, openvino bf16 17, openvino fp32 10.1, "
        f"ipex fp32 10, eager bf16 9, eager fp32 5, timed on this host; passed the accuracy gate: {GATE}; "
        "not openvino int8: refused at build: agreement is 90%"
    )


def test_a_choice_among_engines_says_which_is_not_installed():
    asked = {"backend": "auto", "precision": "int8", "topology": "live"}
    job = make_job(installed=WITHOUT_OPENVINO, **asked)
    topology = read_topology(MACHINES / "two-cores")
    site = make_site(
        topology, MODELS, make_inputs(**asked), WITHOUT_OPENVINO, time_job(job, bert=FAST, resnet50=FAST)
    )
    planned = site.plan.models["bert"]
    assert planned.engine.value == "ipex"
    assert planned.engine.reason.endswith("; openvino is not installed: make setup BACKEND=openvino")
    assert planned.precision.reason.startswith("a quarter of the bytes")


def test_auto_of_which_nothing_can_be_served_says_why_of_each():
    asked = {"backend": "auto", "precision": "int8"}
    refused = {"ipex int8": "refused at build: 90%", "openvino int8": "not built: no NNCF"}
    with pytest.raises(ConfigError) as error:
        plan_auto(time_job(make_job(**asked), bert=refused, resnet50=ALL_ENGINES), **asked)
    assert str(error.value) == (
        "BACKEND=auto: bert can be served in nothing that is asked for: "
        "not ipex int8: refused at build: 90%; not openvino int8: not built: no NNCF"
    )


def test_what_other_engines_took_changes_no_plan():
    """They stand beside: a server that runs must not look like another one once these are timed."""
    alone = time_job(make_job(), bert=SLOW, resnet50=FAST)
    beside = time_job(make_job(), bert={**name_variants(SLOW), "eager fp32": 99.0}, resnet50=FAST)
    assert "eager fp32" in beside.raw["models"]["bert"]["variants"]
    assert plan_auto(beside).to_json() == plan_auto(alone).to_json()


def test_a_tuned_plan_keeps_what_auto_had_become():
    """Its numbers are of that; and nothing else need be timed in the layout that was tuned."""
    tuned = Tuned(chosen={"variant": {"bert": "openvino bf16"}}, evidence={"bert": "faster"})
    topology, inputs = read_topology(MACHINES / "two-cores"), make_inputs(
        models=("bert", "resnet50"), precision="auto", backend="auto", topology="live"
    )  # fmt: skip
    job = make_timing_job(topology, MODELS, inputs, INSTALLED, tuned)
    assert job.models["bert"].variants == ("openvino bf16",)
    assert len(job.models["resnet50"].variants) == 8
    timings = time_job(job, bert=ALL_ENGINES, resnet50=ALL_ENGINES)
    planned = make_site(topology, MODELS, inputs, INSTALLED, timings, tuned).plan.models
    assert (planned["bert"].engine.value, planned["bert"].precision.value) == ("openvino", "bf16")
    assert planned["bert"].precision.reason == "tuned on this machine (tuned.json); bert: faster"
    assert (planned["resnet50"].engine.value, planned["resnet50"].precision.value) == ("ipex", "int8")


def test_each_model_goes_by_its_own_precision():
    plan = plan_auto(time_job(make_job(), bert=SLOW, resnet50=FAST))
    assert plan.inputs.precision == "auto"
    assert {name: model.precision.value for name, model in plan.models.items()} == {
        "bert": "fp32",
        "resnet50": "int8",
    }
    options = json.loads(plan.environment["CPU_KIT_OPTIONS"].value)
    assert {name: asked["precision"] for name, asked in options.items()} == {
        "bert": "fp32",
        "resnet50": "int8",
    }


def test_memory_is_counted_in_the_chosen_precisions():
    topology = dataclasses.replace(read_topology(MACHINES / "two-cores"), memory_limit_mib=5600)
    timings = {name: time_job(make_job(topology), bert=FAST, resnet50=given) for name, given in
               (("narrow", FAST), ("mixed", {"fp32": 12.3, "bf16": 12.3, "int8": "no IPEX"}))}  # fmt: skip

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
    assert plan.timings["models"]["resnet50"]["variants"]["ipex int8"]["samples_per_second"] == 45.2
    assert plan.timings["versions"] == {"torch": "2.8.0"}
    assert type(plan).from_json(plan.to_json()) == plan


def test_the_comment_on_batches_names_the_models_where_they_differ():
    text = render_properties(plan_auto(time_job(make_job(), bert=SLOW, resnet50=FAST))).replace("\n#  ", "")
    assert "batch: bert: the smallest within 10% of the capacity, " in text
    assert "resnet50: the smallest within 3% of the best rate, " in text


CURE = "run `make config` with the same values, which takes them"


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
            f"slots, threads (run/timings.json); {CURE}",
        ),
    ],
)
def test_timings_of_something_else_are_refused(change, message):
    timings = time_job(make_job(), bert=SLOW, resnet50=FAST)
    with pytest.raises(TimingsError) as error:
        plan_auto(dataclasses.replace(timings, raw={**timings.raw, **change}))
    assert str(error.value) == message


def test_timings_of_another_engine_are_refused():
    timings = time_job(make_job(), bert=FAST, resnet50=FAST)
    lack = (
        r"another engine or precision than bert eager fp32, engine or precision than bert eager bf16 \(run/"
    )
    with pytest.raises(TimingsError, match=lack):
        plan_auto(timings, backend="bert=eager,resnet50=ipex")


def test_timings_of_other_batches_are_refused():
    timings = time_job(make_job(profile="latency"), bert=FAST, resnet50=FAST)
    settings = make_job().settings
    taken = dataclasses.replace(timings, raw={**timings.raw, "settings": json.loads(json.dumps(settings))})
    with pytest.raises(TimingsError, match="of another batch of bert ipex fp32, batch of bert ipex bf16"):
        plan_auto(taken)


def test_a_precision_that_is_named_needs_no_timings_but_says_what_there_are():
    other = time_job(make_job(), bert=FAST, resnet50=FAST)
    planned = plan_machine("two-cores", MODELS, other, topology="live", precision="int8", allocator="system")
    assert planned.models["bert"].batch_size.reason.endswith(
        "as seen on other machines; no timings of what is planned: got those of another environment "
        "(run/timings.json)"
    )
    assert planned.timings == {}


def test_a_precision_that_could_not_be_timed_is_said_with_the_reason():
    timings = time_job(make_job(precision="int8"), bert=SLOW, resnet50=FAST)
    planned = plan_machine("two-cores", MODELS, timings, topology="live", precision="int8")
    reasons = [planned.models[name].batch_size.reason for name in ("bert", "resnet50")]
    assert reasons[0].endswith("as seen on other machines; no timing: cannot be loaded here: no IPEX")
    assert "timed on this machine with all workers busy, 1 in 22.1 ms (19.9-26.5)" in reasons[1]


def test_auto_without_timings_says_how_to_take_them(tmp_path):
    with pytest.raises(TimingsError) as error:
        plan_auto(read_timings(tmp_path / "timings.json"))
    assert str(error.value) == (
        f"PRECISION=auto needs timings of this machine: got none ({tmp_path / 'timings.json'}); {CURE}"
    )
    for asked in ({"precision": "auto"}, {"backend": "auto"}, {"precision": "auto", "backend": "bert=auto"}):
        knobs = " ".join(f"{name.upper()}={value}" for name, value in asked.items())
        with pytest.raises(TimingsError, match=rf"^{knobs} needs .* got none \(--timings was not given\)"):
            make_plan(
                read_topology(MACHINES / "two-cores"),
                MODELS,
                make_inputs(topology="live", **asked),
                INSTALLED,
            )


def test_timings_of_an_earlier_version_are_none(tmp_path):
    file = tmp_path / "timings.json"
    file.write_text('{"schema": 2, "settings": {}, "models": {}}')
    with pytest.raises(TimingsError, match=r"needs timings of this machine: got none \(.*, schema 2\)"):
        plan_auto(read_timings(file))


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 4}', '{"schema": 4, "models": {}}'])
def test_a_file_that_holds_no_timings(tmp_path, text):
    (tmp_path / "timings.json").write_text(text)
    with pytest.raises(TimingsError, match=r"timings .*timings.json.*; run `make config`"):
        read_timings(tmp_path / "timings.json")


@pytest.mark.parametrize(
    ("asked", "knob", "named"),
    [
        ({"precision": "auto"}, "PRECISION=auto", "fp32, bf16, int8"),
        ({"backend": "auto"}, "BACKEND=auto", "ipex, openvino, eager"),
        ({"backend": "bert=auto"}, "BACKEND=bert=auto", "ipex, openvino, eager"),
    ],
)
def test_a_recorded_machine_has_no_timings(asked, knob, named):
    with pytest.raises(ConfigError) as error:
        plan_machine("two-cores", MODELS, topology="machines/two-cores", **asked)
    assert str(error.value) == (
        f"{knob} goes by timings of this host, and TOPOLOGY=machines/two-cores is another one: "
        f"name one of {named}"
    )


def test_auto_needs_each_models_memory_and_fp32():
    with pytest.raises(ConfigError, match=r"field worker_memory_mib.int8 is missing: add it"):
        make_job(models=(make_model("m", precisions=("fp32", "int8")),))
    with pytest.raises(ConfigError, match="PRECISION must be one of bf16 for m: got auto"):
        make_job(models=(make_model("m", precisions=("bf16",)),))
