"""Every check sees its fault, and only that one, in evidence recorded from a live server."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from config.plan import Plan
from server.verify.evidence import DIFFERS, NO_ANSWER, NOT_CHECKABLE, ServerEvidence, WorkerEvidence
from server.verify.placement import check_affinity, check_memory_policy
from server.verify.registry import CHECKS, FRONTEND_CHECKS, MODEL_CHECKS, SERVER_CHECKS, judge
from tests.server import fakes
from tests.server.fakes import as_settings, started_from, with_layout, with_property

MODEL = "resnet50"
SERVED = {"batchSize": 8, "maxBatchDelay": 20, "responseTimeout": 120, "startupTimeout": 360}
Change = Callable[[WorkerEvidence], WorkerEvidence]


def with_worker(evidence: ServerEvidence, change: Change, index: int = 0) -> ServerEvidence:
    """The evidence with one of MODEL's workers changed."""
    model = evidence.models[MODEL]
    workers = list(model.workers)
    workers[index] = change(workers[index])
    models = {**evidence.models, MODEL: dataclasses.replace(model, workers=tuple(workers))}
    return dataclasses.replace(evidence, models=models)


def with_model(evidence: ServerEvidence, **values: Any) -> ServerEvidence:
    models = {**evidence.models, MODEL: dataclasses.replace(evidence.models[MODEL], **values)}
    return dataclasses.replace(evidence, models=models)


def with_all(evidence: ServerEvidence, change: Change, *names: str) -> ServerEvidence:
    """The evidence with every worker changed; of these models, or of all."""
    models = {
        name: dataclasses.replace(model, workers=tuple(map(change, model.workers)))
        for name, model in evidence.models.items()
        if name in (names or evidence.models)
    }
    return dataclasses.replace(evidence, models={**evidence.models, **models})


def differing(plan: Plan, evidence: ServerEvidence) -> set[str]:
    """Items that differ."""
    return {one.finding.item for one in judge(plan, evidence).differences}


def set_field(**values: Any) -> Change:
    return lambda worker: dataclasses.replace(worker, **values)


def set_described(section: str, value: Any) -> Change:
    """Replace a section of the describe answer, or update it when it is a mapping."""

    def change(worker: WorkerEvidence) -> WorkerEvidence:
        old = worker.describe[section]
        new = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
        return dataclasses.replace(worker, describe={**worker.describe, section: new})

    return change


def set_environment(**values: str | None) -> Change:
    def change(worker: WorkerEvidence) -> WorkerEvidence:
        merged = {**worker.environment, **values}
        kept = {name: value for name, value in merged.items() if value is not None}
        return dataclasses.replace(worker, environment=kept)

    return change


def set_libraries(drop: str = "", add: tuple[str, ...] = ()) -> Change:
    def change(worker: WorkerEvidence) -> WorkerEvidence:
        kept = tuple(file for file in worker.libraries if not drop or drop not in file)
        return dataclasses.replace(worker, libraries=kept + add)

    return change


def set_step(name: str, status: str) -> Change:
    def change(worker: WorkerEvidence) -> WorkerEvidence:
        steps = [
            {**step, "status": status, "reason": "planted"} if step["name"] == name else step
            for step in worker.describe["steps"]
        ]
        return dataclasses.replace(worker, describe={**worker.describe, "steps": steps})

    return change


def both(*changes: Change) -> Change:
    def change(worker: WorkerEvidence) -> WorkerEvidence:
        for one in changes:
            worker = one(worker)
        return worker

    return change


NO_JEMALLOC = both(
    set_libraries(drop="jemalloc"),
    set_described("allocator", {"name": "system", "library": "libc.so.6", "options": {}}),
)
LIBGOMP = set_described("openmp", {"name": "gnu", "library": "/kit/.venv/lib/libgomp.so.1"})
OTHER = "/opt/libiomp5.so"
FAULTS: list[tuple[str, Change, set[str]]] = [
    ("moved with taskset", set_field(thread_cpus={"7": (1,), "8": (1,)}), {"CPU affinity", "ranks"}),
    ("one thread moved", set_field(thread_cpus={"7": (0,), "8": (0, 1)}), {"CPU affinity", "ranks"}),
    (
        "never pinned",
        set_field(thread_cpus={"7": (0, 1)}, launcher=None),
        {"CPU affinity", "ranks", "launcher"},
    ),
    ("its launcher is gone", set_field(launcher=None), {"launcher"}),
    ("stopped", set_field(stopped=True), {"process"}),
    ("its archive is gone", set_field(archive_id=""), {"archive"}),
    ("on no CPU of the plan", set_field(thread_cpus={"7": (9,)}), {"CPU affinity", "ranks"}),
    ("memory not bound", set_field(memory_policies={"default": 800}), {"memory policy"}),
    ("memory bound elsewhere", set_field(memory_policies={"bind:1": 800}), {"memory policy"}),
    ("part of it elsewhere", set_field(memory_policies={"bind:0": 800, "prefer:1": 2}), {"memory policy"}),
    ("bound, but numa_maps unreadable", set_field(memory_policies=None), {"memory policy"}),
    ("throttled", set_field(throttled=90, throttled_ms_per_period=9.0), {"no throttling"}),
    ("allocator link removed", NO_JEMALLOC, {"allocator", "allocator options"}),
    ("a second allocator", set_libraries(add=("/usr/lib/libtcmalloc_minimal.so.4",)), {"allocator"}),
    ("mapped but not used", set_described("allocator", {"name": "system"}), {"allocator"}),
    ("options not read", set_described("allocator", {"options": {}}), {"allocator options"}),
    (
        "MALLOC_CONF missing",
        both(
            set_environment(MALLOC_CONF=None),
            set_described("allocator", {"options": {"dirty_decay_ms": 10000, "background_thread": False}}),
        ),
        {"environment", "allocator options"},
    ),
    ("libgomp does the work", LIBGOMP, {"OpenMP"}),
    ("Intel OpenMP not mapped", both(set_libraries(drop="iomp5"), LIBGOMP), {"OpenMP"}),
    (
        "another libiomp5 does the work",
        both(set_libraries(add=(OTHER,)), set_described("openmp", {"library": OTHER})),
        {"OpenMP"},
    ),
    ("OMP_NUM_THREADS changed", set_environment(OMP_NUM_THREADS="2"), {"threads", "environment"}),
    ("more intra-op threads", set_described("threads", {"intra_op": 2}), {"threads"}),
    ("more inter-op threads", set_described("threads", {"inter_op": 2}), {"threads"}),
    ("KMP_AFFINITY missing", set_environment(KMP_AFFINITY=None), {"environment"}),
    ("OpenMP not preloaded", set_environment(LD_PRELOAD="/kit/.venv/lib/libjemalloc.so"), {"environment"}),
    ("environment unreadable", set_field(environment=None), {"environment", "threads"}),
    ("wrong precision", set_described("precision", "bf16"), {"precision"}),
    ("another backend", set_described("backend", {"name": "eager", "version": "2.8.0"}), {"backend"}),
    ("a backend that is not installed", set_described("backend", {"version": None}), {"backend"}),
    ("a step switched off", set_step("freeze", "off"), {"load steps"}),
    ("a step that failed", set_step("ipex_optimize", "failed"), {"load steps"}),
    ("no steps at all", set_described("steps", []), {"load steps"}),
    ("not frozen", set_described("graph", {"kind": "torchscript"}), {"graph"}),
    ("eager", set_described("graph", {"kind": "eager", "prepacked": 0, "fused": 0}), {"graph"}),
    ("nothing prepacked", set_described("graph", {"prepacked": 0}), {"graph"}),
    ("nothing fused", set_described("graph", {"fused": 0}), {"graph"}),
    ("a row for each text", set_described("packing", {"applicable": True, "on": False}), {"packing"}),
    ("one weight not", set_described("memory_format", {"channels_last_weights": 52}), {"channels_last"}),
    ("input not channels_last", set_described("memory_format", {"input": "contiguous"}), {"channels_last"}),
    ("self-check out of tolerance", set_described("self_check", {"relative_error": 0.5}), {"self-check"}),
    ("self-check is NaN", set_described("self_check", {"relative_error": float("nan")}), {"self-check"}),
    ("self-check missing", set_described("self_check", None), {"self-check"}),
    ("another archive in the store", set_field(archive_id="0" * 64), {"archive"}),
]  # fmt: skip


def test_the_recorded_server_is_as_asked(plan, evidence):
    result = judge(plan, evidence)
    assert [one for one in result.judged if not one.finding.ok] == []
    assert result.good
    server = len(SERVER_CHECKS) + len(FRONTEND_CHECKS)
    assert len(result.judged) == server + 2 * len(MODEL_CHECKS) + 4 * len(CHECKS)


@pytest.mark.parametrize(
    ("change", "items"), [fault[1:] for fault in FAULTS], ids=[fault[0] for fault in FAULTS]
)
def test_a_fault_is_seen_and_nothing_else(plan, evidence, change, items):
    result = judge(plan, with_worker(evidence, change))
    assert not result.good
    assert {one.finding.item for one in result.differences} == items
    assert all(one.model == MODEL and one.finding.cure for one in result.differences)


def test_every_check_of_a_worker_has_a_fault_here(plan, evidence):
    worker = evidence.models[MODEL].workers[0]
    checked = {check(plan, worker).item for check in CHECKS}
    assert checked <= {item for _, _, items in FAULTS for item in items} | {"describe", "limits"}


def test_a_worker_that_does_not_describe_itself_is_a_difference_in_all_that_depends_on_it(plan, evidence):
    silent = set_field(describe=None, describe_problem="timed out")
    result = judge(plan, with_worker(evidence, silent))
    named = {one.finding.item: one.finding for one in result.differences}
    assert named["describe"].got == "timed out"
    unknown = {item for item, finding in named.items() if finding.got == NO_ANSWER}
    assert unknown == {
        "archive", "allocator", "allocator options", "OpenMP", "threads", "limits", "precision", "backend",
        "load steps", "channels_last", "packing", "graph", "self-check",
    }  # fmt: skip


def test_a_worker_that_had_no_turn_is_not_checkable_and_no_difference(plan, evidence):
    busy = set_field(describe=None, describe_problem="x", excuse="busy: 90 requests wait")
    result = judge(plan, with_worker(evidence, busy))
    assert result.good
    unknown = {one.finding.item for one in result.judged if one.finding.got == "busy: 90 requests wait"}
    assert {"describe", "archive", "precision", "threads"} < unknown
    assert all(one.finding.state == NOT_CHECKABLE for one in result.judged if not one.finding.ok)


@pytest.mark.parametrize("live", [{"pixels": 100, "scans": 7}, {"pixels": 24}, None])
def test_limits_of_a_request_are_those_the_handler_applies(plan, evidence, live):
    limits = as_settings(pixels=24, scans=7)
    models = {**plan.models, MODEL: dataclasses.replace(plan.models[MODEL], limits=limits)}
    limited = dataclasses.replace(plan, models=models)
    good = {"pixels": 24, "scans": 7, "own": 1}
    evidence = with_all(evidence, lambda worker: describe_with(worker, limits=good), MODEL)
    assert judge(limited, evidence).good
    wrong = with_worker(evidence, lambda worker: describe_with(worker, limits=live))
    assert differing(limited, wrong) == {"limits"}


def describe_with(worker, **values):
    return dataclasses.replace(worker, describe={**worker.describe, **values})


def double_a_rank(evidence: ServerEvidence) -> ServerEvidence:
    first = evidence.models[MODEL].workers[0]
    return with_worker(evidence, set_field(thread_cpus=first.thread_cpus, launcher=first.launcher), index=1)


def set_server(**values: Any) -> Callable[[ServerEvidence], ServerEvidence]:
    return lambda evidence: dataclasses.replace(evidence, **values)


GONE = set_field(thread_cpus=None, describe=None, environment=None, libraries=None, memory_policies=None)
OF_A_MODEL = [
    ({"ready": 1}, "workers", "1 ready of 2"),
    ({"ready": 3, "listed": 3}, "workers", "3 ready"),
    ({"problem": "answered 500: no"}, "workers", "answered 500: no"),
    ({"settings": {**SERVED, "batchSize": 1}}, "batch", "1 within 20 ms"),
    ({"settings": {**SERVED, "maxBatchDelay": 5000}}, "batch", "8 within 5000 ms"),
    ({"settings": {**SERVED, "responseTimeout": 3600}}, "time-outs", "response 3600 s, startup 360 s"),
    ({"settings": {**SERVED, "startupTimeout": 1}}, "time-outs", "response 120 s, startup 1 s"),
    ({"queue_sizes": (100_000,)}, "queue", "100000 requests"),
    ({"queue_sizes": ()}, "queue", "unknown: TorchServe does not describe the model"),
    ({"changed_files": ("labels.json is missing",)}, "archive files", "labels.json is missing"),
    ({"changed_files": None}, "archive files", "not unpacked"),
]
BESIDE_WORKERS = [
    *((lambda seen, of=of: with_model(seen, **of), {(item, got)}) for of, item, got in OF_A_MODEL),
    (lambda seen: with_worker(seen, GONE), {("process", "gone"), ("ranks", "1 on CPU 1")}),
    (double_a_rank, {("ranks", "0 on CPU 0, 0 on CPU 0")}),
    (set_server(plan_unchanged=False), {("plan", "plan.json has changed since")}),
    (set_server(stray_workers=(7, 8)), {("lost workers", "pid 7, pid 8")}),
    (lambda _: ServerEvidence(running=False, plan_unchanged=None), {("TorchServe", "not running")}),
]


@pytest.mark.parametrize(("change", "differences"), BESIDE_WORKERS)
def test_a_fault_beside_the_workers_is_seen_and_nothing_else(plan, evidence, change, differences):
    result = judge(plan, change(evidence))
    assert {(one.finding.item, one.finding.got) for one in result.differences} == differences


@pytest.mark.parametrize(
    ("change", "unchecked"),
    [
        # One look at a busy queue with the right sum is proof.
        (lambda seen: with_model(seen, queue_sizes=(126, 129, 128)), set()),
        (set_server(stray_workers=None), {"lost workers"}),
        (set_server(plan_unchanged=None), {"plan"}),
    ],
)
def test_what_nobody_tells_is_not_checkable_and_no_difference(plan, evidence, change, unchecked):
    result = judge(plan, change(evidence))
    assert result.good
    assert {one.finding.item for one in result.judged if not one.finding.ok} == unchecked


@pytest.mark.parametrize(
    ("threads", "good"),
    [
        # seen with two cores: main thread on the first, the team's other on the second, helpers on both
        ({"7": (0,), "8": (0, 1), "9": (1,)}, True),
        ({"7": (0,), "8": (0,)}, False),
    ],
)
def test_a_team_uses_each_of_its_cpus(plan, evidence, threads, good):
    wide = with_layout(plan, worker_cpus=[[0, 1]], memory_nodes=[[0]])
    bound = set_field(thread_cpus=threads, launcher=("python", "-m", "x"))
    assert check_affinity(wide, bound(evidence.models[MODEL].workers[0])).ok is good


def test_a_plan_without_pinning_asks_for_all_its_cpus_and_no_ranks(plan, evidence):
    free = with_layout(
        with_property(plan, cpu_launcher_enable="false"), worker_cpus=[[0, 1]] * 2, memory_nodes=[None] * 2
    )
    roam = set_field(thread_cpus={"7": (0, 1)}, launcher=None, memory_policies={"default": 9, "local": 1})
    assert judge(free, started_from(with_all(evidence, roam), free)).good


def share_cpus(plan, evidence):
    """As a plan and a server are where two CPUs are shared under a quota of one."""
    shared = with_layout(
        with_property(plan, cpu_launcher_args="--ncores_per_instance 1 --disable_numactl --disable_taskset"),
        worker_cpus=[[0, 1]] * 2,
        memory_nodes=[None] * 2,
        server_cpus=None,
    )
    affinity = as_settings(KMP_AFFINITY="none")
    shared = dataclasses.replace(
        shared,
        machine={**plan.machine, "quota_cpus": 1.0, "cpus_allowed": [0, 1]},
        worker_environment={**plan.worker_environment, **affinity},
    )
    free = both(
        set_field(thread_cpus={"7": (0, 1), "8": (0, 1)}, memory_policies={"default": 9}),
        set_environment(KMP_AFFINITY="none"),
    )
    return shared, dataclasses.replace(with_all(started_from(evidence, shared), free), server_cpus=(0, 1))


@pytest.mark.parametrize(
    ("change", "blamed"),
    [
        (lambda worker: worker, set()),
        (set_field(thread_cpus={"7": (0, 1), "8": (0,)}), {"CPU affinity"}),
        (set_field(thread_cpus={"7": (1,), "8": (1,)}), {"CPU affinity"}),
        (set_field(thread_cpus={"7": (0,), "8": (1,)}), {"CPU affinity"}),  # each bound, together on all
        (set_field(thread_cpus={"7": (0, 1, 2), "8": (0, 1)}), {"CPU affinity"}),
        (set_environment(KMP_AFFINITY="granularity=fine,compact,1,0"), {"environment"}),
        (set_field(launcher=None), {"launcher"}),
        (NO_JEMALLOC, {"allocator", "allocator options"}),
        (LIBGOMP, {"OpenMP"}),
        (set_described("threads", {"intra_op": 2}), {"threads"}),
        # what runs beside the workers, and one thread too many
        (set_field(throttled=90, throttled_ms_per_period=30.0), set()),
        (set_field(throttled=90, throttled_ms_per_period=100.0), {"no throttling"}),
    ],
)
def test_what_differs_on_shared_cpus(plan, evidence, change, blamed):
    shared, seen = share_cpus(plan, evidence)
    assert differing(shared, with_worker(seen, change)) == blamed


@pytest.mark.parametrize(("quota", "good"), [(1.5, True), (1.0, False)])
def test_throttling_on_shared_cpus_is_judged_by_the_quota(plan, evidence, quota, good):
    shared, seen = share_cpus(plan, evidence)
    shared = dataclasses.replace(shared, machine={**shared.machine, "quota_cpus": quota})
    result = judge(shared, with_worker(seen, set_field(throttled=90, throttled_ms_per_period=60.0)))
    assert result.good is good


@pytest.mark.parametrize(
    ("confined", "cpus", "good"),
    [
        *((True, cpus, good) for cpus, good in (((0,), True), ((0, 1), False), (None, False))),
        *((False, cpus, good) for cpus, good in (((0, 1), True), ((1,), False), (None, False))),
    ],
)
def test_a_server_stays_where_it_is_confined_and_else_may_use_all_cpus(plan, evidence, confined, cpus, good):
    asked, seen = (with_layout(plan, server_cpus=[0]), evidence) if confined else share_cpus(plan, evidence)
    assert judge(asked, dataclasses.replace(seen, server_cpus=cpus)).good is good


def test_where_nothing_is_bound_missing_numa_maps_are_not_checkable_but_no_difference(plan, evidence):
    unbound = with_layout(plan, memory_nodes=[None, None])
    result = judge(unbound, with_all(evidence, set_field(memory_policies=None)))
    assert result.good
    assert {one.finding.item for one in result.judged if not one.finding.ok} == {"memory policy"}


@pytest.mark.parametrize(("quota", "state"), [(None, NOT_CHECKABLE), (1.5, DIFFERS)])
def test_throttling_that_nobody_counts_is_a_difference_where_there_is_a_quota(plan, evidence, quota, state):
    limited = dataclasses.replace(plan, machine={**plan.machine, "quota_cpus": quota})
    result = judge(limited, with_worker(evidence, set_field(throttled_files=())))
    assert [one.finding.state for one in result.judged if not one.finding.ok] == [state]


@pytest.mark.parametrize(
    ("backend", "bound", "good"), [("openvino", 0, True), ("openvino", 1, False), ("ipex", 0, False)]
)
def test_a_backend_may_bind_what_it_computes_on_its_own_node(plan, evidence, backend, bound, good):
    asked = with_layout(fakes.with_model(plan, MODEL, backend=backend), memory_nodes=[None, None])
    worker = set_field(memory_policies={"default": 868, f"bind:{bound}": 2})
    assert check_memory_policy(asked, worker(evidence.models[MODEL].workers[0])).ok is good


def test_each_backend_is_proved_by_its_own_operators(plan, evidence):
    plain = fakes.with_model(plan, MODEL, backend="eager")
    named = set_described("backend", {"name": "eager", "version": "2.8.0"})
    fallen_back = both(named, set_described("graph", {"operators": {"aten::conv2d": 53}, "fused": 0}))
    seen = with_all(evidence, fallen_back, MODEL)
    assert differing(plain, seen) == set()
    assert differing(plan, seen) == {"backend", "graph"}
    assert differing(plain, with_all(evidence, named, MODEL)) == {"graph"}


def with_options(plan, evidence, **of_model):
    """Plan and evidence of a server that was started with other options for MODEL's handler."""
    usual = {"precision": "fp32", "threads": 1}
    options = json.dumps({"bert": usual, MODEL: {**usual, **of_model}})
    setting = dataclasses.replace(plan.environment["CPU_KIT_OPTIONS"], value=options)
    plan = dataclasses.replace(plan, environment={**plan.environment, "CPU_KIT_OPTIONS": setting})
    return plan, with_all(evidence, set_environment(CPU_KIT_OPTIONS=options))


TORCHSCRIPT = set_described("graph", {"kind": "torchscript", "prepacked": 0, "fused": 0})
EAGER = set_described("graph", {"kind": "eager", "prepacked": 0, "fused": 0})
NOT_CHANNELS_LAST = set_described("memory_format", {"channels_last_weights": 0, "input": "contiguous"})


@pytest.mark.parametrize(
    ("off", "change", "where_on"),
    [
        (
            "channels_last",
            both(set_step("channels_last", "off"), NOT_CHANNELS_LAST),
            {"load steps", "channels_last"},
        ),
        ("freeze", both(set_step("freeze", "off"), TORCHSCRIPT), {"load steps", "graph"}),
        ("trace", both(set_step("trace", "off"), set_step("freeze", "off"), EAGER), {"load steps", "graph"}),
        ("buckets", lambda worker: worker, set()),
    ],
)
def test_a_server_with_something_off_is_as_asked_and_any_other_is_not(plan, evidence, off, change, where_on):
    plan, evidence = with_options(plan, evidence, off=[off])
    assert differing(plan, with_all(evidence, change, MODEL)) == set()
    assert differing(plan, evidence) == where_on


def test_channels_last_is_seen_to_be_off_not_believed(plan, evidence):
    plan, evidence = with_options(plan, evidence, off=["channels_last"])
    still_on = with_all(evidence, set_step("channels_last", "off"), MODEL)
    assert differing(plan, still_on) == {"channels_last"}


def test_each_model_is_judged_by_its_own_precision(plan, evidence):
    """As a tuned plan can have it: bert in FP32, resnet50 in INT8, where nothing needs to be prepacked."""
    mixed, evidence = with_options(
        fakes.with_model(plan, MODEL, precision="int8"), evidence, precision="int8"
    )
    narrow = both(
        set_described("precision", "int8"),
        set_described("graph", {"prepacked": 0}),
        set_step("ipex_optimize", "not applicable"),
    )
    assert judge(mixed, with_all(evidence, narrow, MODEL)).good
    items = {(one.model, one.finding.item) for one in judge(mixed, evidence).differences}
    assert items == {(MODEL, "precision")}
