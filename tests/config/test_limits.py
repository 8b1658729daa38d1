"""What one request may cost, and the memory, time-outs, libraries and variables of an instance."""

from __future__ import annotations

import dataclasses
import json

import pytest

from config.errors import ConfigError
from config.installed import Installed
from config.planning import models as planned
from config.planning.proxy import MAX_REQUEST_BYTES
from config.planning.resources import plan_java
from handlers.image_classifier import ImageClassifier
from handlers.shared import texts
from handlers.text_classifier import TextClassifier
from tests.config.planning import TEXTS, find_machine, make_model, plan_machine, plan_one

BERT = make_model("bert", **TEXTS)


def test_the_plan_and_the_handler_say_the_same():
    assert planned.plan_limits(make_model("resnet50"), "fp32", 8, 2, {}) == ImageClassifier.LIMITS
    assert {*planned.plan_limits(BERT, "fp32", 8, 2, {})} == {*TextClassifier.LIMITS}
    assert planned.CHARACTERS_PER_TOKEN == texts.CHARACTERS_PER_TOKEN


def test_only_limits_that_the_handler_knows_are_planned():
    some = make_model("own", limits=("decode_mib", "pixels"))
    assert planned.plan_limits(some, "fp32", 8, 2, {}).keys() == {"decode_mib", "pixels"}
    assert planned.plan_limits(make_model("own", limits=("boxes",)), "fp32", 8, 2, {}) == {}


@pytest.mark.parametrize(
    ("precision", "batch", "models", "batch_s", "tokens"),
    [
        # 28 s ÷ 1.7 ms; two models share a core, 2 s go to the tokenizer
        ("fp32", 8, 2, 28, 16_470),
        ("int8", 16, 2, 27, 56_250),
        # alone on its cores all that 16 requests of 8 texts of 512 tokens can have is computed in time
        ("int8", 16, 1, 57, 65_536),
        ("fp32", 1, 2, 29, 4_096),
    ],
)
def test_a_batch_of_texts_is_cut_by_tokens(precision, batch, models, batch_s, tokens):
    limits = planned.plan_limits(BERT, precision, batch, models, {})
    assert (limits["batch_s"], limits["tokens_per_batch"]) == (batch_s, tokens)
    assert tokens >= 8 * 512, "a whole request always fits"
    assert planned.plan_response_timeout(BERT, batch, models, {}) == 180 >= 3 * models * batch_s


@pytest.mark.parametrize(
    ("batch", "models", "seconds"), [(8, 2, 101), (16, 2, 202), (16, 1, 101), (1, 2, 60)]
)
def test_images_get_three_times_their_worst_batch(batch, models, seconds):
    timeout = planned.plan_response_timeout(make_model("resnet50"), batch, models, {})
    assert timeout == seconds >= 3 * models * batch * planned.IMAGE_S


def test_models_that_load_together_get_more_time_and_one_that_compiles_a_quarter_of_an_hour():
    one = (make_model("m"),)
    assert plan_one("two-cores", one).models["m"].startup_timeout_s == 180
    assert plan_one("two-cores").models["bert"].startup_timeout_s == 360
    for off, seconds in (((), 180), (("freeze",), 900)):
        plan = plan_one("two-cores", one, backend={"*": "inductor"}, off=off)
        assert plan.models["m"].startup_timeout_s == seconds


@pytest.mark.parametrize("request_mib", [200, 700])
def test_a_worker_needs_its_worst_batch_and_all_workers_the_bodies_once(request_mib):
    """Of 6,400 MiB the proxy has 400."""
    machine, models = find_machine("two-cores"), (make_model("big", {"fp32": 9000}, request_mib),)
    java = plan_java(dataclasses.replace(machine, memory_limit_mib=6000), {})
    shared = java.heap_mib + java.direct_mib + 192 + int(1.25 * java.bodies_mib) + 300
    each = 260 + 9000 + request_mib
    with pytest.raises(ConfigError, match=rf"needed {each + shared} MiB \(workers {each}, "):
        plan_one(dataclasses.replace(machine, memory_limit_mib=6400), models)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_a_container_of_3_and_a_quarter_gib_serves_resnet50(precision):
    small = dataclasses.replace(find_machine("two-cores"), memory_limit_mib=3328)
    model = make_model("resnet50", {"fp32": 1500, "bf16": 1400, "int8": 1400}, request_mib=260)
    assert len(plan_one(small, (model,), precision=precision).worker_cpus) == 1


@pytest.mark.parametrize(("cores", "few"), [(8, True), (9, False)])
def test_the_optimising_compiler_is_switched_off_on_few_cores(cores, few):
    topology = dataclasses.replace(find_machine("two-sockets-smt"), usable_cores=cores)
    flags = plan_java(topology, {}).flags
    assert ("-XX:TieredStopAtLevel=1" in flags, "-XX:+UseSerialGC" in flags) == (few, few)


@pytest.mark.parametrize(
    ("memory_mib", "bodies_mib"),
    # a 48th, but never less than four of the largest requests
    [(1024, 64), (3072, 64), (9600, 200), (24000, 256), (1_000_000, 256)],
)
def test_what_requests_may_take_is_planned_together(memory_mib, bodies_mib):
    java = plan_java(dataclasses.replace(find_machine("two-cores"), memory_limit_mib=memory_mib), {})
    heap_mib, direct_mib = 128 + 4 * bodies_mib, 128 + bodies_mib
    assert (java.bodies_mib, java.heap_mib, java.direct_mib) == (bodies_mib, heap_mib, direct_mib)
    assert bodies_mib << 20 >= 4 * MAX_REQUEST_BYTES
    assert {f"-Xms{java.heap_mib}m", f"-Xmx{java.heap_mib}m"} <= {*java.flags}


@pytest.mark.parametrize(
    ("changes", "flags", "preloads"),
    [
        ({}, "--enable_jemalloc", ("libiomp5.so", "libjemalloc.so")),
        ({"allocator": "tcmalloc"}, "--enable_tcmalloc", ("libiomp5.so", "libtcmalloc.so")),
        ({"allocator": "system"}, "--use_default_allocator", ("libiomp5.so",)),
        ({"openmp": "gnu"}, "--enable_jemalloc --disable_iomp", ("libjemalloc.so",)),
        ({"allocator": "system", "openmp": "gnu"}, "--use_default_allocator --disable_iomp", ()),
    ],
)
def test_libraries(changes, flags, preloads):
    plan = plan_one("two-cores", **changes)
    assert plan.properties["cpu_launcher_args"] == f"--node_id 0 {flags}"
    assert plan.worker_environment["LD_PRELOAD"] == tuple(f"/kit/.venv/lib/{name}" for name in preloads)
    assert ("MALLOC_CONF" in plan.environment) == ("libjemalloc.so" in preloads)
    assert ("KMP_BLOCKTIME" in plan.worker_environment) == ("libiomp5.so" in preloads)


@pytest.mark.parametrize(
    ("changes", "lacking"), [({}, "ALLOCATOR=jemalloc"), ({"allocator": "system"}, "OPENMP=intel")]
)
def test_library_missing_on_the_live_machine(changes, lacking):
    nothing = Installed(allocators={}, openmp=None, haproxy="/haproxy")
    with pytest.raises(ConfigError, match=lacking):
        plan_machine(topology="", installed=nothing, **changes)
    assert plan_machine(installed=nothing, **changes).libraries.allocator_path is None


@pytest.mark.parametrize(
    ("model", "capacity"),
    [
        ({"batch_sizes": (1,)}, "256"),
        ({}, "2048"),
        ({"token_lengths": (16, 512)}, "4096"),
        # 512: only one text; 32: 16 × 32 is just within
        ({"token_lengths": (32, 512), "tokens_per_run": 512}, "2048"),
        ({"token_lengths": (1024,), "tokens_per_run": 512}, "256"),
    ],
)
def test_kernel_cache_holds_every_shape(model, capacity):
    models = (make_model("m", **model), make_model("small", batch_sizes=(1,)))
    environment = plan_one(models=models).environment
    assert environment["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == environment["LRU_CACHE_CAPACITY"] == capacity


def test_requests_arrive_unparsed_and_the_workers_are_seen_with_it():
    plan = plan_one(pinning=False)
    assert plan.properties["decode_input_request"] == "false"
    assert plan.worker_environment["TS_DECODE_INPUT_REQUEST"] == "false"


def test_workers_know_their_limits():
    plan = plan_one()
    options = json.loads(plan.environment["CPU_KIT_OPTIONS"])
    assert options.keys() == plan.models.keys()
    assert all(options[name]["limits"] == model.limits for name, model in plan.models.items())
