"""What the tests of planning share: small definitions, fixed library paths, and a plan in one call.

`python -m tests.config.planning` writes golden/*.json again.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from config.archives import ForeignArchive, ModelDefinition
from config.installed import Installed
from config.plan import InstancePlan, Plan
from config.planning import NO_PROFILE, BatchProfile, Facts, make_plan
from config.settings import Settings
from config.topology import Topology, count_usable_cores, read_topology
from config.tuned import NOT_TUNED, Tuned
from handlers.backends.catalogue import BACKENDS
from handlers.definition import Memory

HERE = Path(__file__).parent
MACHINES = HERE / "machines"
GOLDEN = HERE / "golden"
ALL_MACHINES = sorted(folder.name for folder in MACHINES.iterdir())

INSTALLED = Installed(
    allocators={"jemalloc": "/usr/lib/libjemalloc.so.2", "tcmalloc": "/usr/lib/libtcmalloc.so.4"},
    openmp="/kit/.venv/lib/libiomp5.so",
    haproxy="/usr/sbin/haproxy",
)
MIB = {"fp32": 1500, "bf16": 1200, "int8": 1000}
LIMITS = {
    "bert": ("batch_s", "tokens_per_batch", "json_values"),
    "resnet50": ("pixels", "jpeg_pixels", "jpeg_samples", "jpeg_scans", "side_pixels", "decode_mib", "parts"),
}
"""Of what the handlers know."""


def make_model(
    name: str, worker_mib: Mapping[str, int] = MIB, request_mib: int = 200, **changes: Any
) -> ModelDefinition:
    """Like those of the archives; a worker takes as much with each backend."""
    fields: dict[str, Any] = {
        "name": name,
        "batch_sizes": (1, 2, 4, 8, 16),
        "precisions": tuple(worker_mib),
        "memory": {
            f"{backend} {precision}": Memory(worker_mib=mib, request_mib=request_mib)
            for backend in BACKENDS
            for precision, mib in worker_mib.items()
        },
        "limits": LIMITS.get(name, ()),
    }
    return ModelDefinition(**{**fields, **changes})


TEXTS: dict[str, Any] = {"token_lengths": (128, 512), "tokens_per_run": 256, "max_texts_per_request": 8}
MODELS = (make_model("bert", **TEXTS), make_model("resnet50"))


def make_foreign(name: str = "old", version: str = "1.0", **changes: Any) -> ForeignArchive:
    """An archive that others made."""
    fields: dict[str, Any] = {
        "path": Path(f"/archives/{name}-{version}.mar"), "name": name, "version": version,
        "handler": "handler.py", "config": None, "requirements": (), "sources": {"handler": ""},
        "first": ("handler",), "size_mib": 100,
    }  # fmt: skip
    return ForeignArchive(**{**fields, **changes})


def find_machine(machine: str | Topology) -> Topology:
    """A recorded machine, by name."""
    return read_topology(MACHINES / machine) if isinstance(machine, str) else machine


def limit_cpus(machine: str, quota: float | None) -> Topology:
    """A recorded machine with another quota, and no control group's word for it."""
    topology = find_machine(machine)
    usable = count_usable_cores(len(topology.cores), quota)
    return dataclasses.replace(topology, quota_cpus=quota, usable_cores=usable)


def make_facts(
    machine: str | Topology = "two-cores",
    models: tuple[ModelDefinition, ...] = MODELS,
    foreign: tuple[ForeignArchive, ...] = (),
    **changes: Any,
) -> Facts:
    """As if read; fields of Facts, and settings."""
    archives: dict[str, Any] = {model.name: model for model in models}
    for archive in foreign:
        archives[archive.name] = (*archives.get(archive.name, ()), archive)
    facts = {name: changes.pop(name) for name in ("installed", "package_set") if name in changes}
    names = (*(model.name for model in models), *(str(archive.path) for archive in foreign))
    return Facts(
        settings=Settings(**{"models": names, "topology": "recorded", "run_dir": "/kit/run", **changes}),
        machine=find_machine(machine), archives=archives, prefix="/kit/.venv",
        model_store="/kit/model-store", run_dir="/kit/run", **{"installed": INSTALLED, **facts},
    )  # fmt: skip


def plan_machine(
    machine: str | Topology = "two-cores",
    models: tuple[ModelDefinition, ...] = MODELS,
    *,
    profile: BatchProfile = NO_PROFILE,
    tuned: Tuned = NOT_TUNED,
    generation: str = "a",
    **changes: Any,
) -> Plan:
    """Of a recorded machine, or of a topology."""
    facts = make_facts(machine, models, **changes)
    return make_plan(facts, profile=profile, tuned=tuned, generation=generation)


def plan_one(
    machine: str | Topology = "two-cores", models: tuple[ModelDefinition, ...] = MODELS, **changes: Any
) -> InstancePlan:
    """The only instance of a plan: it has all of the machine."""
    (instance,) = plan_machine(machine, models, **{"instances": 1, **changes}).instances.values()
    return instance


def time_sizes(taken_s: Mapping[int, float], tail_s: float = 0.0) -> dict[str, dict[str, float]]:
    """As a batch profile has it; of a hundred batches the longest takes `tail_s` more."""
    return {
        str(size): {
            "batches": 9, "busy": 1.0, "lowest_s": 0.9 * s, "median_s": s, "p99_s": s + tail_s,
            "highest_s": 1.2 * s,
        }
        for size, s in taken_s.items()
    }  # fmt: skip


def read_golden(machine: str) -> tuple[Path, str]:
    """File, and what it must hold: the plan's values, a group a line, without machine and reasons."""
    plan = json.loads(plan_machine(machine).to_json())
    for name in ("schema", "settings", "machine", "reasons", "profile"):
        del plan[name]
    lines = [f'"{name}": {json.dumps(value)}' for name, value in plan.items() if name != "instances"]
    lines += [
        f'"{name}.{group}": {json.dumps(value)}'
        for name, instance in plan["instances"].items()
        for group, value in instance.items()
    ]
    return GOLDEN / f"{machine}.json", "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    for name in ALL_MACHINES:
        file, text = read_golden(name)
        file.write_text(text, encoding="utf-8")
