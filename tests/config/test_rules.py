"""Libraries, environment, batches, time-outs, Java: one decision each."""

from __future__ import annotations

import dataclasses
import json

import pytest

from config.errors import ConfigError
from config.installed import Installed
from config.rules.java import plan_java
from config.rules.network import MAX_REQUEST_BYTES
from config.rules.requests import check_machine
from config.rules.site import make_site
from config.topology import read_topology
from tests.config.planning import MACHINES, MODELS, make_inputs, make_model, plan_machine
from tests.config.sites import make_door


@pytest.mark.parametrize(
    ("changes", "flags", "preloads"),
    [
        ({}, "--enable_jemalloc", ["libiomp5.so", "libjemalloc.so"]),
        ({"allocator": "tcmalloc"}, "--enable_tcmalloc", ["libiomp5.so", "libtcmalloc.so"]),
        ({"allocator": "system"}, "--use_default_allocator", ["libiomp5.so"]),
        ({"openmp": "gnu"}, "--enable_jemalloc --disable_iomp", ["libjemalloc.so"]),
        ({"allocator": "system", "openmp": "gnu"}, "--use_default_allocator --disable_iomp", []),
    ],
)
def test_libraries(changes, flags, preloads):
    plan = plan_machine("two-cores", **changes)
    assert plan.properties["cpu_launcher_args"].value == f"--node_id 0 {flags}"
    assert plan.worker_environment["LD_PRELOAD"].value == [f"/kit/.venv/lib/{name}" for name in preloads]
    assert ("MALLOC_CONF" in plan.environment) == ("libjemalloc.so" in preloads)
    assert ("KMP_BLOCKTIME" in plan.worker_environment) == ("libiomp5.so" in preloads)


@pytest.mark.parametrize(
    ("changes", "lacking"), [({}, "ALLOCATOR=jemalloc"), ({"allocator": "system"}, "OPENMP=intel")]
)
def test_library_missing_on_the_live_machine(changes, lacking):
    inputs = make_inputs(topology="live", **changes)
    with pytest.raises(ConfigError, match=lacking):
        make_site(
            read_topology(MACHINES / "two-cores"), MODELS, inputs, Installed(allocators={}, openmp=None)
        )


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
    environment = plan_machine("two-cores", models=models).environment
    assert environment["ONEDNN_PRIMITIVE_CACHE_CAPACITY"].value == capacity
    assert environment["LRU_CACHE_CAPACITY"].value == capacity


def test_models_that_load_together_get_more_time():
    one = plan_machine("two-cores", models=(make_model("m"),)).models["m"].startup_timeout_s.value
    two = plan_machine("two-cores").models["bert"].startup_timeout_s.value
    assert (one, two) == (180, 360)


def test_a_worker_that_compiles_at_its_start_gets_a_quarter_of_an_hour():
    for off, seconds in (((), 180), (("freeze",), 900)):
        plan = plan_machine("two-cores", models=(make_model("m"),), backend="inductor", off=off)
        assert plan.models["m"].startup_timeout_s.value == seconds


@pytest.mark.parametrize(("cores", "stops"), [(8, True), (9, False)])
def test_the_optimising_compiler_is_left_out_on_few_cores(cores, stops):
    topology = dataclasses.replace(read_topology(MACHINES / "two-sockets-smt"), usable_cores=cores)
    assert ("-XX:TieredStopAtLevel=1" in plan_java(topology, make_inputs()).vmargs.value) is stops


@pytest.mark.parametrize(
    ("memory_mib", "bodies_mib"),
    # a 48th, but never less than four of the largest requests
    [(1024, 64), (3072, 64), (9600, 200), (24000, 256), (1_000_000, 256)],
)
def test_what_requests_may_take_is_planned_together(memory_mib, bodies_mib):
    topology = dataclasses.replace(read_topology(MACHINES / "two-cores"), memory_limit_mib=memory_mib)
    java = plan_java(topology, make_inputs())
    assert java.bodies_mib.value == bodies_mib
    assert java.heap_mib.value == 128 + 4 * bodies_mib
    assert java.direct_mib.value == 128 + bodies_mib
    assert bodies_mib << 20 >= 4 * MAX_REQUEST_BYTES


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"precision": "int4"}, "PRECISION must be one of fp32, bf16, int8: got int4"),
        ({"off": ("fuse",)}, "--off must be among .*: got fuse"),
        ({"profile": "fast"}, "PROFILE must be one of throughput, latency: got fast"),
        ({"allocator": "mimalloc"}, "ALLOCATOR must be one of .*: got mimalloc"),
        ({"openmp": "llvm"}, "OPENMP must be one of intel, gnu: got llvm"),
        ({"port": 0}, "PORT must be 1 to 64000 .*: got 0"),
        ({"port": 65000}, "PORT must be 1 to 64000 .*: got 65000"),
        *(({"bind": bind}, f"--bind must be an IPv4 address .*: got {bind}")
          for bind in ("everywhere", "localhost", "::", "1.2.3", "0.0.0.0:80")),
        ({"instances": 0}, "INSTANCES must be 1 to 4: got 0"),
        ({"instances": 5}, "INSTANCES must be 1 to 4: got 5"),
        ({"instances": 3}, "INSTANCES must be 1 to 2 .*: got 3"),
        ({"deadline_ms": 999}, "DEADLINE_MS must be 1000 to 300000: got 999"),
        ({"deadline_ms": 300001}, "DEADLINE_MS must be 1000 to 300000: got 300001"),
        ({"tls_cert": "/c"}, "TLS_CERT and TLS_KEY .*: got TLS_CERT alone"),
        ({"tls_key": "/k"}, "TLS_CERT and TLS_KEY .*: got TLS_KEY alone"),
        ({"generation": "c"}, "--generation must be one of a, b: got c"),
        ({"workers": 0}, "WORKERS must be 1 to 2 .*: got 0"),
        ({"workers": 3}, "WORKERS must be 1 to 2 .*: got 3"),
        ({"workers": 1, "instances": 2}, "WORKERS must be 2 or a multiple of it.*: got 1"),
        ({"cores_per_worker": 4}, "CORES_PER_WORKER must be 1 to 2 .*: got 4"),
        ({"workers": 2, "cores_per_worker": 2}, "WORKERS × CORES_PER_WORKER must be at most 2 .*: got 2 × 2"),
        ({"batch": "vgg=2"}, "BATCH must name models that are served, bert, resnet50: got vgg"),
        ({"batch": "0"}, "BATCH must be 1 to 128: got 0"),
        ({"batch": "bert=129"}, "BATCH must be 1 to 128: got 129"),
        ({"delay_ms": "0"}, "DELAY_MS must be 1 to 10000: got 0"),
        ({"slo_p99_ms": 0}, "SLO_P99_MS must be 1 to 300000: got 0"),
        ({"backend": "tpu"}, "BACKEND must be one of ipex, openvino, inductor, eager, or by model"),
        ({"backend": "vgg=ipex"}, "BACKEND must name models that are served, bert, resnet50: got vgg"),
    ],
)  # fmt: skip
def test_wrong_value_names_the_allowed_ones(changes, named):
    with pytest.raises(ConfigError, match=named):
        make_door("two-cores", **changes)


def test_every_decision_has_a_reason():
    plan = json.loads(plan_machine("two-cores").to_json())

    def check(part, path):
        if isinstance(part, dict) and set(part) == {"value", "reason"}:
            assert len(part["reason"]) > 5, path
        elif isinstance(part, dict):
            for name, inner in part.items():
                check(inner, f"{path}.{name}")

    for part in ("layout", "libraries", "environment", "worker_environment", "properties", "java", "models"):
        check(plan[part], part)


def test_int8_needs_a_backend_that_has_it_and_avx2():
    topology = read_topology(MACHINES / "two-cores")
    with pytest.raises(
        ConfigError, match="PRECISION=int8 needs BACKEND=ipex or openvino or inductor: eager has no int8"
    ):
        check_machine(topology, make_inputs(precision="int8", backend="eager"))
    check_machine(dataclasses.replace(topology, flags=("avx2",)), make_inputs(precision="int8"))
    with pytest.raises(ConfigError, match="PRECISION=int8 needs a CPU with avx2"):
        check_machine(dataclasses.replace(topology, flags=()), make_inputs(precision="int8"))
    with pytest.raises(ConfigError, match="PRECISION=bf16 needs a CPU with one of avx512_bf16, amx_bf16"):
        check_machine(dataclasses.replace(topology, flags=("avx512f",)), make_inputs(precision="bf16"))
