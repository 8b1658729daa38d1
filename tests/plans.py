"""A small whole plan, written out: two instances of two models, for tests of what reads plans."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from config.plan import InstancePlan, JavaPlan, Libraries, ModelPlan, Plan, ProxyPlan

MACHINE = {
    "cpus_allowed": [0, 1],
    "cores": [{"cpu": cpu, "siblings": [cpu], "socket": 0, "node": 0, "l3": 0} for cpu in (0, 1)],
    "nodes": [0],
    "sockets": 1,
    "numa": True,
    "quota_cpus": None,
    "usable_cores": 2,
    "memory_limit_mib": 24000,
    "memory_source": "/proc/meminfo MemTotal",
    "flags": ["avx2", "avx512_vnni"],
    "vendor": "AuthenticAMD",
    "model_name": "AMD EPYC",
    "cpu_total": 2,
    "efficient_cpus": [],
    "mems_allowed": [0],
    "numactl": True,
    "can_bind_memory": True,
    "launcher_numactl": True,
    "lscpu_view": ["0,0,0,0", "1,1,0,0"],
}


def make_model(name: str, **changes: Any) -> ModelPlan:
    fields: dict[str, Any] = {
        "archives": {"1.0": f"{name}.mar"},
        "backend": "ipex",
        "precision": "fp32",
        "workers": 1,
        "batch_size": 4,
        "max_batch_delay_ms": 1,
        "response_timeout_s": 60,
        "startup_timeout_s": 360,
        "maxconn": 8,
        "large_maxconn": 3,
        "limits": {"pixels": 24_000_000} if name == "resnet50" else {"tokens_per_batch": 2048},
    }
    return ModelPlan(**{**fields, **changes})


def make_instance(number: int, models: dict[str, ModelPlan] | None = None, **changes: Any) -> InstancePlan:
    models = models or {name: make_model(name) for name in ("bert", "resnet50")}
    cpu, port = number - 1, 8080 + 10 * number
    fields: dict[str, Any] = {
        "port": port,
        "models": models,
        "cpus": (cpu,),
        "memory_mib": 11000,
        "cores_per_worker": 1,
        "worker_cpus": ((cpu,),),
        "memory_nodes": ((0,),),
        "server_cpus": (cpu,),
        "launched": True,
        "pinned": True,
        "queue_size": 20,
        "java": JavaPlan(
            bodies_mib=128, heap_mib=640, direct_mib=256, flags=("-Xms640m", "-Xmx640m", "-XX:+UseSerialGC")
        ),
        "environment": {"MALLOC_CONF": "dirty_decay_ms:-1", "TORCH_WARM_POOL": "0"},
        "worker_environment": {
            "OMP_NUM_THREADS": "1",
            "LD_PRELOAD": ("/kit/.venv/lib/libiomp5.so", "/kit/.venv/lib/libjemalloc.so"),
        },
        "properties": {
            "ipex_enable": "true",
            "cpu_launcher_enable": "true",
            "cpu_launcher_args": f"--core_list {cpu} --ncores_per_instance 1 --enable_jemalloc",
            "model_store": "/kit/model-store",
            "workflow_store": "/kit/model-store",
            "load_models": ",".join(f"{name}={name}.mar" for name in models),
            "default_workers_per_model": "1",
            "job_queue_size": "20",
            "default_response_timeout": "60",
            "number_of_gpu": "0",
            "inference_address": f"unix:/kit/run/instances/a{number}/tmp/inference.sock",
            "management_address": f"unix:/kit/run/instances/a{number}/tmp/management.sock",
            "metrics_address": f"unix:/kit/run/instances/a{number}/tmp/metrics.sock",
            "grpc_inference_address": "127.0.0.1",
            "grpc_inference_port": str(port + 3),
            "grpc_management_address": "127.0.0.1",
            "grpc_management_port": str(port + 4),
            "initial_worker_port": str(port + 920),
            "max_request_size": "16777216",
            "disable_token_authorization": "true",
            "enable_model_api": "false",
            "allowed_urls": "(?-i)file:///kit/model-store/[^/]*\\.mar",
            "enable_envvars_config": "false",
            "install_py_dep_per_model": "false",
            "number_of_netty_threads": "2",
            "netty_client_threads": "2",
            "decode_input_request": "false",
            "metrics_mode": "prometheus",
            "model_metrics_auto_detect": "true",
            "disable_system_metrics": "true",
        },
    }
    return InstancePlan(**{**fields, **changes})


def make_proxy(**changes: Any) -> ProxyPlan:
    fields: dict[str, Any] = {
        "host": "127.0.0.1", "port": 8080, "metrics_host": "127.0.0.1", "metrics_port": 8082, "threads": 1,
        "connections": 2000,
        "memory_mib": 1500, "buffer_bytes": 384 << 10, "rewrite_bytes": 8 << 10, "header_bytes": 16 << 10,
        "small_bytes": 360 << 10, "max_request_bytes": 16 << 20, "places": 800, "large_places": 240,
        "deadline_ms": 60_000, "largest_deadline_ms": 300_000, "headers_s": 10, "body_s": 60, "idle_s": 60,
        "check_ms": 1000, "retries": 3,
    }  # fmt: skip
    return ProxyPlan(**{**fields, **changes})


LIBRARIES = Libraries(
    allocator="jemalloc",
    allocator_path="/usr/lib/libjemalloc.so.2",
    allocator_link="/kit/.venv/lib/libjemalloc.so",
    openmp="intel",
    openmp_path="/kit/.venv/lib/libiomp5.so",
)


def make_plan(instances: int = 2, run_dir: Path | str = "/kit/run", **changes: Any) -> Plan:
    fields: dict[str, Any] = {
        "settings": {"models": ["bert", "resnet50"]},
        "machine": MACHINE,
        "package_set": "ipex",
        "prefix": "/kit/.venv",
        "model_store": "/kit/model-store",
        "run_dir": str(run_dir),
        "slo_p99_ms": 200,
        "libraries": LIBRARIES,
        "proxy": make_proxy(),
        "instances": {f"a{number}": make_instance(number) for number in range(1, instances + 1)},
        "reasons": {"a1.cores_per_worker": "one core per worker: no barriers between threads"},
    }
    return replace(Plan(**fields), **changes)
