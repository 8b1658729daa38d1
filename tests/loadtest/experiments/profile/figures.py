"""The evidence of a healthy system and of its twin, as figures; tests plant one fault in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from loadtest.experiments.profile.evidence import Evidence, Operator
from loadtest.experiments.profile.onednn import Call
from loadtest.experiments.profile.roofline import break_down
from loadtest.experiments.profile.threads import ThreadUse, WorkerUse
from tests.loadtest.making import make_scenario, make_series

ACDB, BLOCKED = "src:u8::blocked:acdb::f0 dst:u8::blocked:acdb::f0", "dst:f32::blocked:aBcd16b::f0"
SHAPE = "mb16_ic64oc64_ih56oh56kh3sh1dh0ph1_iw56ow56kw3sw1dw0pw1"
TYPES = {"src": "u8", "wei": "s8", "dst": "u8"}


def make_use(cpu: int, **changes: Any) -> ThreadUse:
    """A thread that computes on one CPU and is left alone there."""
    plain: dict[str, Any] = {
        "tid": 100 + cpu, "name": "python", "cores": 0.95, "waiting": 0.03, "migrations": 0.0,
        "involuntary": 12.0, "voluntary": 3.0, "strip": (cpu,) * 20,
    }  # fmt: skip
    return ThreadUse(**{**plain, **changes})


def make_worker(number: int, *busy: ThreadUse, **changes: Any) -> WorkerUse:
    plain: dict[str, Any] = {
        "pid": number, "threads": 30, "minor_faults": 40.0, "resident_mib": 700, "remote": 0.01,
        "throttled_ms": 0.0,
    }  # fmt: skip
    return WorkerUse(busy=busy or (make_use(number),), **{**plain, **changes})


def make_calls(*, reorders: int = 1, kind: str = "convolution") -> list[Call]:
    """Two convolutions with a fused ReLU, and so many reorders of activations."""
    shape: dict[str, Any] = {"types": TYPES, "problem": SHAPE, "ms": 2.0, "descriptors": ACDB}
    fused = Call(kind=kind, implementation="brg_conv_fwd:avx512_core_vnni",
                 attributes="attr-scratchpad:user attr-post-ops:eltwise_relu", **shape)  # fmt: skip
    moved = Call(kind="reorder", implementation="jit:uni", types={"src": "f32", "dst": "f32"}, attributes="",
                 problem="16x64x56x56", ms=0.5, descriptors=BLOCKED)  # fmt: skip
    return [fused, fused, *[moved] * (reorders - 1)]


def make_evidence(name: str = "kit int8", **changes: Any) -> Evidence:
    """Two workers, each with one thread on a CPU of its own."""
    operators = (Operator(name="LlgaFusionGroup", calls=424, own_ms=76.0, whole_ms=76.0),)
    plain: dict[str, Any] = {
        "series": {
            one: make_series(name, (100.0, 101.0), scenario=make_scenario(name=f"bert-{one}"))
            for one in ("plain", "threads", "operators")
        },
        "workers": (make_worker(0), make_worker(1)), "operators": operators, "runs": 8, "run_ms": 9.6,
        "lines": tuple(break_down(make_calls())), "libraries": ("libiomp5.so", "libjemalloc.so.2"),
        "described": ({"openmp": {"name": "intel"}, "allocator": {"name": "jemalloc"}},),
        "cost_cores": 0.02, "client_ms": 640.0, "server_ms": 630.0,
    }  # fmt: skip
    return Evidence(name=name, **{**plain, **changes})


def plant(evidence: Evidence, **changes: Any) -> Evidence:
    """The same with other values in each worker."""
    return replace(evidence, workers=tuple(replace(one, **changes) for one in evidence.workers))
