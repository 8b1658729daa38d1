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
    ("changes", "message"),
    [
        (
            {},
            "ALLOCATOR=jemalloc: its library is not on this machine: install it (apt install libjemalloc2) "
            "or use ALLOCATOR=system",
        ),
        (
            {"allocator": "system"},
            "OPENMP=intel: /kit/.venv/lib/libiomp5.so is missing: run `make setup` "
            "(pip install intel-openmp) or use OPENMP=gnu",
        ),
    ],
)
def test_library_missing_on_the_live_machine(changes, message):
    topology = read_topology(MACHINES / "two-cores")
    with pytest.raises(ConfigError) as error:
        make_site(
            topology, MODELS, make_inputs(topology="live", **changes), Installed(allocators={}, openmp=None)
        )
    assert str(error.value) == message


def test_jemalloc_keeps_its_pages_and_uses_them_again():
    value = plan_machine("two-cores").environment["MALLOC_CONF"].value
    assert value == (
        "oversize_threshold:1,background_thread:false,metadata_thp:auto,dirty_decay_ms:-1,muzzy_decay_ms:-1,"
        "lg_extent_max_active_fit:16"
    )


def test_options_for_the_handler():
    plan = plan_machine("two-cores", precision="bf16", workers=1)
    options = json.loads(plan.environment["CPU_KIT_OPTIONS"].value)
    for name, model in plan.models.items():
        limits = {limit: setting.value for limit, setting in model.limits.items()}
        asked = {"engine": "ipex", "precision": "bf16", "threads": 2, "batch": model.batch_size.value}
        asked["limits"] = limits
        assert options[name] == asked


def test_what_is_off_reaches_the_handler_of_each_model():
    setting = plan_machine("two-cores", off=("buckets", "trace")).environment["CPU_KIT_OPTIONS"]
    options = json.loads(setting.value)
    assert [options[model]["off"] for model in ("bert", "resnet50")] == [["buckets", "trace"]] * 2
    assert "switched off with --off: buckets, trace, a baseline" in setting.reason


@pytest.mark.parametrize(
    ("model", "shapes", "capacity"),
    [
        ({"batch_sizes": (1,)}, "1 batch sizes that m may warm", "256"),
        ({}, "5 batch sizes that m may warm", "2048"),
        ({"token_lengths": (16, 512)}, "10 shapes (batch size × text length) that m may warm", "4096"),
        # 512: only one text; 32: 16 × 32 is just within
        (
            {"token_lengths": (32, 512), "tokens_per_run": 512},
            "6 shapes (batch size × text length) that m may warm",
            "2048",
        ),
        ({"token_lengths": (1024,), "tokens_per_run": 512}, "1 shapes", "256"),
    ],
)
def test_kernel_cache_holds_every_shape(model, shapes, capacity):
    models = (make_model("m", **model), make_model("small", batch_sizes=(1,)))
    environment = plan_machine("two-cores", models=models).environment
    assert environment["ONEDNN_PRIMITIVE_CACHE_CAPACITY"].value == capacity
    assert environment["LRU_CACHE_CAPACITY"].value == capacity
    assert f"the {shapes}" in environment["ONEDNN_PRIMITIVE_CACHE_CAPACITY"].reason


def test_models_that_load_together_get_more_time():
    one = plan_machine("two-cores", models=(make_model("m"),)).models["m"].startup_timeout_s.value
    two = plan_machine("two-cores").models["bert"].startup_timeout_s.value
    assert (one, two) == (180, 360)


def test_a_worker_that_compiles_at_its_start_gets_a_quarter_of_an_hour():
    for off, seconds in (((), 180), (("freeze",), 900)):
        plan = plan_machine("two-cores", models=(make_model("m"),), backend="inductor", off=off)
        assert plan.models["m"].startup_timeout_s.value == seconds
    assert plan.models["m"].startup_timeout_s.reason.endswith("at the same time, and compile there")


@pytest.mark.parametrize(
    ("machine", "flags"),
    [
        (
            "two-cores",
            "-Xms1152m -Xmx1152m -XX:MaxDirectMemorySize=384m -XX:+UseSerialGC -XX:ActiveProcessorCount=2 "
            "-XX:+ExitOnOutOfMemoryError -XX:TieredStopAtLevel=1",
        ),
        (
            "two-sockets-smt",
            "-Xms4224m -Xmx4224m -XX:MaxDirectMemorySize=1152m -XX:+UseG1GC -XX:ActiveProcessorCount=4 "
            "-XX:+ExitOnOutOfMemoryError",
        ),
    ],
)
def test_java(machine, flags):
    plan = plan_machine(machine)
    assert plan.java.vmargs.value == flags
    assert ("(C2)" in plan.java.vmargs.reason) == ("TieredStopAtLevel" in flags)
    assert plan.properties["vmargs"] == plan.java.vmargs


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
    assert f"128 + 4 × {bodies_mib} MiB" in java.heap_mib.reason
    assert bodies_mib << 20 >= 4 * MAX_REQUEST_BYTES


def test_rest_is_on_unix_sockets_and_grpc_on_loopback_ports_counted_from_the_instances_own():
    properties = plan_machine("two-cores", port=9100, bind="0.0.0.0", run_dir="/kit/run").properties
    for name in ("inference", "management", "metrics"):
        assert properties[f"{name}_address"].value == f"unix:/kit/run/instances/a1/tmp/{name}.sock"
    grpc = (
        "grpc_inference_address",
        "grpc_inference_port",
        "grpc_management_address",
        "grpc_management_port",
    )
    assert [properties[key].value for key in grpc] == ["127.0.0.1", "9113", "127.0.0.1", "9114"]
    assert properties["initial_worker_port"].value == "10030"


@pytest.mark.parametrize("bind", ["everywhere", "::", "1.2.3", "0.0.0.0:80"])
def test_an_address_that_is_none_is_refused(bind):
    with pytest.raises(ConfigError, match=f"--bind must be an IPv4 address .*: got {bind}"):
        plan_machine("two-cores", bind=bind)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precision": "int4"}, "PRECISION must be one of fp32, bf16, int8: got int4"),
        ({"off": ("fuse",)}, "--off must be among channels_last, trace, freeze, packing, buckets: got fuse"),
        ({"profile": "fast"}, "PROFILE must be one of throughput, latency: got fast"),
        ({"allocator": "mimalloc"}, "ALLOCATOR must be one of jemalloc, tcmalloc, system: got mimalloc"),
        ({"openmp": "llvm"}, "OPENMP must be one of intel, gnu: got llvm"),
        ({"port": 65000}, "PORT must be 1 to 64000 (PORT + 920 names the workers' sockets): got 65000"),
    ],
)
def test_wrong_value_names_the_allowed_ones(changes, message):
    with pytest.raises(ConfigError) as error:
        plan_machine("two-cores", **changes)
    assert str(error.value) == message


def with_flags(folder, flags):
    text = (MACHINES / "single-socket" / "recording.txt").read_text()
    start = text.index("proc/cpuinfo:flags")
    end = text.index("\n", start)
    (folder / "recording.txt").write_text(f"{text[:start]}proc/cpuinfo:flags: {flags}{text[end:]}")
    return read_topology(folder)


def test_cpu_without_avx2(tmp_path):
    topology = with_flags(tmp_path, "sse2")
    with pytest.raises(ConfigError, match=r"PRECISION=fp32 needs a CPU with avx2: .*; use BACKEND=eager"):
        plan_machine(topology)
    assert plan_machine(topology, backend="eager").properties["ipex_enable"].value == "false"


def test_cpu_without_bf16(tmp_path):
    with pytest.raises(ConfigError) as error:
        plan_machine(with_flags(tmp_path, "avx2 avx512f"), precision="bf16")
    assert str(error.value) == (
        "PRECISION=bf16 needs a CPU with one of avx512_bf16, amx_bf16: "
        "Intel(R) Xeon(R) Platinum 8480+ has avx2, avx512f; use PRECISION=fp32"
    )


def test_model_without_the_precision():
    models = (make_model("m", precisions=("fp32",)),)
    with pytest.raises(ConfigError) as error:
        plan_machine("two-cores", models=models, precision="bf16")
    assert str(error.value) == (
        "PRECISION must be one of fp32 for m: got bf16 (field precisions, models/m/model.yaml)"
    )


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


def test_int8_needs_an_engine_that_has_it_and_avx2():
    topology = read_topology(MACHINES / "two-cores")
    with pytest.raises(
        ConfigError, match="PRECISION=int8 needs BACKEND=ipex or openvino or inductor: eager has no int8"
    ):
        check_machine(topology, make_inputs(precision="int8", backend="eager"))
    check_machine(dataclasses.replace(topology, flags=("avx2",)), make_inputs(precision="int8"))
    with pytest.raises(ConfigError, match="PRECISION=int8 needs a CPU with avx2"):
        check_machine(dataclasses.replace(topology, flags=()), make_inputs(precision="int8"))
