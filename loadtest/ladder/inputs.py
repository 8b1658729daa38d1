"""Everything a ladder's figures depend on, read before it starts: host, versions, archive, plan, payloads."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from config.definitions import ModelDefinition, read_definition
from config.plan import Plan, Settings
from loadtest.host import read_host
from loadtest.ladder.rungs import Rung
from loadtest.ladder.settings import ONE_WORKER, Layout, make_arguments
from loadtest.ladder.side import count_users
from loadtest.payloads import LIST_FILE
from loadtest.servers import ROOT
from loadtest.turns import Timing
from server.archives import read_archive

SERVER_MIB = 700
"""Of TorchServe's Java and the launchers, beside the workers."""
OWN_SHARE = 0.8
"""Of a worker's resident set; the rest are libraries that all workers share (seen)."""
VERSIONS = ("torch", "intel_extension_for_pytorch", "torchserve", "transformers", "locust")


def read_inputs(
    plan: Plan, archive: Path, payloads: Path, rungs: Sequence[Rung], timing: Timing
) -> dict[str, Any]:
    """Plain values, without paths: they are compared on resuming."""
    (model,) = plan.models.values()
    versions = read_host()["versions"]
    return {
        "host": read_machine(plan),
        "versions": {name: versions.get(name) for name in VERSIONS},
        "archive": read_archive(archive).archive_id,
        "payloads": digest_folder(payloads),
        "plan": {
            "workers": model.workers.value,
            "batch_size": model.batch_size.value,
            "max_batch_delay_ms": model.max_batch_delay_ms.value,
            "worker_cpus": plan.layout.worker_cpus.value,
            **_take_values(plan.environment, skip="LD_PRELOAD"),
            **_take_values(plan.worker_environment, skip="LD_PRELOAD"),
        },
        "arguments": {rung.name: describe_how(rung, read_layout(plan)) for rung in rungs if not rung.reason},
        "timing": {"seconds": timing.seconds, "warm_up": timing.warm_up_seconds, "repeats": timing.repeats},
    }


def read_layout(plan: Plan) -> Layout:
    """What the top is served with."""
    layout = plan.layout
    return Layout(workers=layout.workers_per_model.value, cores_per_worker=layout.cores_per_worker.value)


def describe_how(rung: Rung, layout: Layout) -> str:
    """Arguments, and the users that load it."""
    how = rung.label if rung.is_stock else " ".join(make_arguments(rung.settings, layout))
    return f"{how}; {count_users(rung)} users"


def read_machine(plan: Plan) -> dict[str, Any]:
    """What the host is named by; no name of the machine itself."""
    machine = plan.machine
    known = {name: machine[name] for name in ("usable_cores", "vendor", "model_name", "flags", "cpu_total")}
    return {
        **known,
        "memory_gib": round(machine["memory_limit_mib"] / 1024),
        "virtual": "hypervisor" in _read_cpu_flags(),
    }


def _read_cpu_flags(file: Path = Path("/proc/cpuinfo")) -> Sequence[str]:
    lines = file.read_text(errors="replace").splitlines()
    return next((line.split(":", 1)[1].split() for line in lines if line.startswith("flags")), [])


def _take_values(settings: Settings, *, skip: str) -> dict[str, Any]:
    return {name: setting.value for name, setting in settings.items() if name != skip}


def digest_folder(payloads: Path) -> str:
    """Of the list and all bodies."""
    digest = hashlib.sha256((payloads / LIST_FILE).read_bytes())
    for file in sorted(payloads.iterdir()):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def read_available_mib(meminfo: Path = Path("/proc/meminfo")) -> float:
    """What can be used without swapping."""
    lines = meminfo.read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("MemAvailable:"))


def estimate_memory(rung: Rung, memory_mib: Mapping[str, int], layout: Layout) -> int:
    """Of its server, by what the definition says of a worker."""
    workers = 1 if rung.settings.workers == ONE_WORKER else layout.workers
    return SERVER_MIB + round(workers * OWN_SHARE * memory_mib[rung.settings.precision])


def read_model(model: str) -> ModelDefinition:
    """Its definition."""
    return read_definition(ROOT / "models" / model / "model.yaml")
