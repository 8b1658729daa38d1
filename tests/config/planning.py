"""What the tests of planning share: small definitions, fixed library paths, and a plan in one call.

`python -m tests.config.planning` writes golden/ again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from config.definitions import ModelDefinition
from config.installed import Installed
from config.plan import Inputs, Plan
from config.render import render_properties
from config.rules.site import make_site
from config.timings import NO_TIMINGS, Timings
from config.topology import Topology, read_topology
from handlers.backends.catalogue import BACKENDS
from handlers.definition import Memory

HERE = Path(__file__).parent
MACHINES = HERE / "machines"
GOLDEN = HERE / "golden"
GOLDEN_MACHINES = ("two-cores", "two-sockets-smt", "container-cpuset", "container-quota-v2")

INSTALLED = Installed(
    allocators={"jemalloc": "/usr/lib/libjemalloc.so.2", "tcmalloc": "/usr/lib/libtcmalloc.so.4"},
    openmp="/kit/.venv/lib/libiomp5.so",
    haproxy="/usr/sbin/haproxy",
)


MIB = {"fp32": 1500, "bf16": 1200}
LIMITS = {
    "bert": ("batch_s", "tokens_per_batch", "json_values"),
    "resnet50": (
        *("pixels", "jpeg_pixels", "jpeg_samples", "jpeg_scans", "side_pixels", "decode_mib", "parts"),
    ),
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


TEXTS = {"token_lengths": (128, 512), "tokens_per_run": 256, "max_texts_per_request": 8}
MODELS = (make_model("bert", **TEXTS), make_model("resnet50"))


def make_inputs(**changes: Any) -> Inputs:
    """What the command line would have made."""
    fields: dict[str, Any] = {
        "models": tuple(model.name for model in MODELS),
        "topology": "recorded",
        "prefix": "/kit/.venv",
        "model_store": "/kit/model-store",
    }
    return Inputs(**{**fields, **changes})


def plan_machine(
    machine: str | Topology,
    models: tuple[ModelDefinition, ...] = MODELS,
    timings: Timings = NO_TIMINGS,
    **changes: Any,
) -> Plan:
    """Of one instance, which has all of a recorded machine, or of a topology."""
    topology = read_topology(MACHINES / machine) if isinstance(machine, str) else machine
    inputs = make_inputs(**{"models": tuple(model.name for model in models), "instances": 1, **changes})
    (plan,) = make_site(topology, models, inputs, INSTALLED, timings).instances.values()
    return plan


def golden_files(machine: str) -> dict[Path, str]:
    """File → what it must hold: values alone, without the reasons for them."""
    plan = plan_machine(machine)
    return {
        GOLDEN / f"{machine}.properties": drop_comments(render_properties(plan)),
        GOLDEN / f"{machine}.plan": "".join(list_values(plan)),
    }


def drop_comments(text: str) -> str:
    """Of config.properties or haproxy.cfg: the lines that are read."""
    return "".join(f"{line}\n" for line in text.splitlines() if line and not line.lstrip().startswith("#"))


def list_values(plan: Plan) -> Iterator[str]:
    """All that is decided, a value a line, but for what config.properties has."""
    decided = json.loads(plan.to_json())
    for name in ("schema", "inputs", "machine", "properties", "timings"):
        del decided[name]
    for place, one in sorted(_flatten("", decided)):
        yield f"{place} = {json.dumps(one, ensure_ascii=False)}\n"


def _flatten(place: str, one: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(one, dict) and {*one} == {"value", "reason"}:
        yield place, one["value"]
    elif isinstance(one, dict):
        for name, part in one.items():
            yield from _flatten(f"{place}.{name}".lstrip("."), part)
    else:
        yield place, one


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name in GOLDEN_MACHINES:
        for file, text in golden_files(name).items():
            file.write_text(text, encoding="utf-8")
