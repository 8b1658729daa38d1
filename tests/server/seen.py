"""What verify sees of a server as planned; what its workers say was recorded from a live one."""

from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from config.plan import InstancePlan, ModelPlan, Plan
from server.throttling import Loss
from server.verify.collect import SOCKETS, SeenInstance, SeenModel, SeenProxy, SeenWorker
from server.verify.probes import GRPC, PROXY_PROBES
from tests.plans import make_instance, make_model, make_plan

DESCRIBED = json.loads((Path(__file__).parent / "recorded" / "describe.json").read_text(encoding="utf-8"))
MALLOC_CONF = (
    "oversize_threshold:1,background_thread:true,metadata_thp:auto,dirty_decay_ms:-1,muzzy_decay_ms:-1,"
    "lg_extent_max_active_fit:16"
)
JEMALLOC, OPENMP, GOMP = (
    "/usr/lib/libjemalloc.so.2",
    "/kit/.venv/lib/libiomp5.so",
    "/kit/torch/lib/libgomp.so.1",
)
REQUEST_SIZE = "16777216 bytes: 100; one more: 413"
LIMITS = {"bert": {"tokens_per_batch": 2048}, "resnet50": {"pixels": 24_000_000}}


def render_properties(plan: Plan, name: str) -> str:
    """In place of config.render's, whose templates want more keys than tests/plans.py has."""
    return json.dumps(dict(plan.instances[name].properties))


def plan_server(**changes: Any) -> Plan:
    """One instance of bert and resnet50, a worker on each of two CPUs."""
    fields = {
        "models": {name: make_model(name, workers=2) for name in ("bert", "resnet50")},
        "cpus": (0, 1),
        "worker_cpus": ((0,), (1,)),
        "memory_nodes": ((0,), (0,)),
        "server_cpus": None,
        "environment": {"MALLOC_CONF": MALLOC_CONF, "CPU_KIT_OPTIONS": "{}"},
    }
    return replace(make_plan(), instances={"a1": make_instance(1, **{**fields, **changes})})


def plan_foreign(versions: tuple[str, ...] = ("1.0",), **changes: Any) -> Plan:
    """The same of an archive that others made."""
    archives = {version: f"/others/old-{version}.mar" for version in versions}
    model = make_model("old", kit=False, workers=2, archives=archives, backend="", precision="", limits={})
    return plan_server(kit=False, models={"old": model}, **changes)


def see_proxy(plan: Plan) -> SeenProxy:
    proxy = plan.proxy
    return SeenProxy(
        phase="ready",
        plan="", configuration="",
        listening={f"{proxy.host}:{proxy.port}": "HAProxy", f"127.0.0.1:{proxy.metrics_port}": "HAProxy"},
        answers={name: status for name, (status, _) in PROXY_PROBES.items()},
        limits={
            f"{model}{kind}/{name}": limit
            for name, instance in plan.instances.items()
            for model, one in instance.models.items()
            for kind, limit in (("", one.maxconn), (".large", one.large_maxconn))
        },
        token="mode 600",
    )  # fmt: skip


def see_instance(plan: Plan, name: str = "a1") -> SeenInstance:
    instance = plan.instances[name]
    properties = hashlib.sha256(render_properties(plan, name).encode()).hexdigest()
    ports = [instance.properties[key] for key, _ in GRPC.values()]
    return SeenInstance(
        running=True,
        orphans=(),
        cpus=tuple(instance.server_cpus or plan.machine["cpus_allowed"]),
        listening={f"127.0.0.1:{port}": "TorchServe" for port in ports},
        answers={"gRPC": "rejected", "model API": "off", "request size": REQUEST_SIZE},
        sockets=f"{', '.join(SOCKETS)}; folder of mode 700",
        flags=sorted(instance.java.flags),
        configuration={
            "Allowed Urls": instance.properties["allowed_urls"],
            "Custom python dependency for model allowed": "false",
            "Maximum Response Size": "6553500",
        },
        properties="",
        properties_at_start=properties,
        models=tuple(
            see_model(instance, model, one, version)
            for model, one in instance.models.items()
            for version in one.archives
        ),
    )


def see_model(instance: InstancePlan, name: str, model: ModelPlan, version: str) -> SeenModel:
    return SeenModel(
        name=name,
        version=version,
        listed=model.workers,
        ready=model.workers,
        described={
            "batchSize": model.batch_size,
            "maxBatchDelay": model.max_batch_delay_ms,
            "responseTimeout": model.response_timeout_s,
            "startupTimeout": model.startup_timeout_s,
        },
        queue_size=instance.queue_size,
        files="",
        workers=tuple(see_worker(instance, name, rank) for rank in range(model.workers)),
    )


def see_worker(instance: InstancePlan, model: str, rank: int) -> SeenWorker:
    environment = {**instance.environment, **instance.worker_environment}
    described = copy.deepcopy(DESCRIBED.get(model, ""))
    if described:
        described["limits"] = {**LIMITS[model], "of its own": 1}
    script = "/kit/ts/model_service_worker.py"
    return SeenWorker(
        pid=100 + rank,
        launcher=("python", "-m", "torch.backends.xeon.run_cpu", "--rank", str(rank), script),
        thread_cpus={"7": instance.worker_cpus[rank], "8": instance.worker_cpus[rank]},
        memory_policies={"bind:0": 851, "local": 1},
        libraries=(JEMALLOC, OPENMP, GOMP, "/kit/torch/lib/libtorch_cpu.so"),
        environment={
            name: value if isinstance(value, str) else ":".join(value) for name, value in environment.items()
        },
        stopped=False,
        throttling=Loss(),
        throttled_loading=0,
        archive_id=described["archive_id"] if described else "",
        describe=described,
    )
