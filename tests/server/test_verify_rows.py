"""Every row of verify sees its fault, and only that one, in what was recorded from a live server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from config.plan import Plan
from server.throttling import Loss
from server.verify import rows as table
from server.verify.collect import JAVA_VARIABLES, SeenInstance, SeenProxy
from server.verify.compare import DIFFERS, NO_ANSWER, NOT_CHECKABLE, PASSED, Result, compare
from server.verify.probes import PROXY_PROBES, Unknown
from server.verify.rows import ROWS
from tests.server.seen import (
    GOMP,
    JEMALLOC,
    OPENMP,
    REQUEST_SIZE,
    plan_foreign,
    plan_server,
    render_properties,
    see_instance,
    see_proxy,
)

MODEL = "resnet50"
WORKERS = "seen.models.-1.workers"
SHORT = {
    "model": "seen.models.-1",
    "worker": f"{WORKERS}.0",
    "workers": f"{WORKERS}.*",
    "own": "plan.instances.a1",
    "planned": f"plan.instances.a1.models.{MODEL}",
}
"""Of MODEL, or of the only one: what was seen of it, of its first worker, of each; what is planned."""


@pytest.fixture(autouse=True)
def rendered(monkeypatch):
    monkeypatch.setattr(table, "render_properties", render_properties)


def put(thing: Any, path: str, value: Any) -> Any:
    """A copy with another value there; mappings are updated, and what is None in them taken out."""
    name, _, rest = path.partition(".")
    if isinstance(thing, list | tuple):
        chosen = [one for one in thing if isinstance(one, dict) and one["name"] == name]
        chosen = [*thing] if name == "*" else chosen or [thing[int(name)]]
        return type(thing)(put(one, rest, value) if one in chosen else one for one in thing)
    old = thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name)
    if rest:
        value = put(old, rest, value)
    elif value and isinstance(value, Mapping) and isinstance(old, Mapping):
        value = {key: one for key, one in {**old, **value}.items() if one is not None}
    return {**thing, name: value} if isinstance(thing, Mapping) else replace(thing, **{name: value})


@dataclass(frozen=True)
class Server:
    """A plan and what was seen of its server."""

    plan: Plan
    proxy: SeenProxy
    seen: SeenInstance

    @classmethod
    def of(cls, plan: Plan, changes: Mapping[str, Any] | None = None) -> Server:
        """As planned, but for the changes."""
        return cls(plan, see_proxy(plan), see_instance(plan)).but(changes or {})

    def but(self, changes: Mapping[str, Any]) -> Server:
        server = self
        for path, value in changes.items():
            first, _, rest = path.partition(".")
            server = put(server, f"{SHORT.get(first, first)}.{rest}", value)
        return server

    def compare(self) -> Result:
        return compare(self.plan, self.proxy, {"a1": self.seen})

    def find(self, state: str = DIFFERS) -> set[str]:
        """Names of the rows in that state."""
        return {one.name for one in self.compare().rows if one.state == state}


def names(rows: str) -> set[str]:
    return {*filter(None, rows.split(", "))}


FLAGS = sorted(plan_server().instances["a1"].java.flags)
SOCKETS = "inference, management, metrics; folder of mode"
CHANGED = "changed since the start"
LAUNCHER = ("python", "-m", "torch.backends.xeon.run_cpu", "--rank", "0", "model_service_worker.py")
OTHER = "/opt/libiomp5.so"
SYSTEM = {"name": "system", "library": "libc.so.6", "options": {}}
NO_JEMALLOC = {"worker.describe.allocator": SYSTEM, "worker.libraries": (OPENMP, GOMP)}
USES_GOMP = {"worker.describe.openmp": {"name": "gnu", "library": GOMP}}
NEEDS_ANSWER = {row.name for row in ROWS if row.describe}
LOST = {ms: {"worker.throttling": Loss(times=90, ms_per_period=ms)} for ms in (9.0, 30.0, 60.0, 100.0)}
GONE = dict.fromkeys(("thread_cpus", "environment", "libraries", "memory_policies"))
# fmt: off
FAULTS: list[tuple[dict[str, Any], str]] = [
    # the proxy
    ({"proxy.phase": "degraded"}, "supervisor"),
    ({"proxy.plan": CHANGED}, "plan"),
    ({"proxy.configuration": CHANGED}, "haproxy.cfg"),
    ({"proxy.configuration": "gone"}, "haproxy.cfg"),
    ({"proxy.listening": {"*:80": "HAProxy"}}, "proxy addresses"),
    ({"proxy.listening": {"127.0.0.1:80": "supervisor"}}, "proxy addresses"),
    ({"proxy.listening": None}, "proxy addresses"),
    *(({"proxy.answers": {name: "200x"}}, "proxy answers") for name in PROXY_PROBES),
    ({"proxy.limits": {"resnet50/a1": 9}}, "maxconn"),
    ({"proxy.limits": {"resnet50.large/a1": 9}}, "maxconn"),
    ({"proxy.limits": {"bert/a1": None}}, "maxconn"),
    ({"proxy.token": "mode 644"}, "token"),
    ({"proxy.token": "none"}, "token"),
    # an instance
    ({"seen.running": False}, "TorchServe"),
    ({"seen.running": False, "seen.orphans": (7,)}, "TorchServe, orphaned workers"),
    ({"seen.orphans": (7, 8)}, "orphaned workers"),
    ({"seen.cpus": (1,)}, "server's CPUs"),
    ({"seen.cpus": ()}, "server's CPUs"),
    ({"own.server_cpus": (0,)}, "server's CPUs"),
    ({"own.server_cpus": (0,), "seen.cpus": ()}, "server's CPUs"),
    ({"seen.properties": CHANGED}, "config.properties"),
    ({"seen.properties": "gone"}, "config.properties"),
    ({"seen.properties_at_start": "0"}, "config.properties"),
    ({"seen.flags": ["-Xmx64m"]}, "JVM flags"),
    ({"seen.flags": []}, "JVM flags"),
    ({"seen.flags": [*FLAGS, FLAGS[0]]}, "JVM flags"),
    ({"seen.flags": None}, "JVM flags"),
    *(({"seen.flags": [*FLAGS, f"{name}=-Xmx64m"]}, "JVM flags") for name in JAVA_VARIABLES),
    ({"seen.listening": {"*:9380": "TorchServe"}}, "addresses"),
    ({"seen.listening": {"127.0.0.1:9": "worker"}}, "addresses"),
    ({"seen.listening": None}, "addresses"),
    ({"seen.sockets": "inference, metrics; folder of mode 700"}, "sockets"),
    ({"seen.sockets": f"{SOCKETS} 755"}, "sockets"),
    ({"seen.sockets": f"{SOCKETS} 700 of another user"}, "sockets"),
    ({"seen.answers": {"gRPC": "gRPC inference 0"}}, "gRPC"),
    ({"seen.answers": {"gRPC": "gRPC management no answer"}}, "gRPC"),
    ({"seen.answers": {"model API": "on"}}, "model API"),
    ({"seen.answers": {"model API": "500"}}, "model API"),
    ({"seen.configuration": {"Allowed Urls": "file://.*|http(s)?://.*"}}, "allowed_urls"),
    ({"seen.configuration": {"Custom python dependency for model allowed": "true"}}, "archives install"),
    ({"seen.configuration": {"Maximum Response Size": "9"}}, "response size"),
    ({"seen.configuration": {"Maximum Response Size": None}}, "response size"),
    ({"seen.answers": {"request size": REQUEST_SIZE.replace("413", "100")}}, "request size"),
    ({"seen.answers": {"request size": REQUEST_SIZE.replace("100", "413")}}, "request size"),
    # a model
    ({"model.ready": 1}, "workers"),
    ({"model.ready": 3, "model.listed": 3}, "workers"),
    ({"model.problem": "answered 500"}, "workers"),
    ({f"{WORKERS}.1.thread_cpus": {"7": (0,), "8": (0,)}, f"{WORKERS}.1.launcher": LAUNCHER}, "ranks"),
    ({f"worker.{name}": value for name, value in {**GONE, "describe": ""}.items()}, "process, ranks"),
    ({"model.described": {}}, "batch, time-outs"),
    ({"planned.batch_size": 8}, "batch"),
    ({"planned.max_batch_delay_ms": 5}, "batch"),
    ({"planned.response_timeout_s": 1}, "time-outs"),
    ({"planned.startup_timeout_s": 1}, "time-outs"),
    ({"model.queue_size": 100_000}, "queue"),
    ({"model.queue_size": None}, "queue"),
    ({"model.files": "labels.json is missing"}, "archive files"),
    ({"model.files": "not unpacked"}, "archive files"),
    # a worker: where it runs
    ({"worker.thread_cpus": {"7": (1,), "8": (1,)}}, "CPU affinity, ranks"),
    ({"worker.thread_cpus": {"8": (0, 1)}}, "CPU affinity, ranks"),
    ({"worker.thread_cpus": {"7": (9,)}}, "CPU affinity, ranks"),
    ({"worker.thread_cpus": {"7": (0, 1)}, "worker.launcher": None}, "CPU affinity, ranks, launcher"),
    ({"worker.launcher": None}, "launcher"),
    ({"worker.stopped": True}, "process"),
    ({"worker.memory_policies": {"bind:0": None, "default": 800}}, "memory policy"),
    ({"worker.memory_policies": {"bind:0": None, "bind:1": 800}}, "memory policy"),
    ({"worker.memory_policies": {"prefer:1": 2}}, "memory policy"),
    ({"worker.memory_policies": None}, "memory policy"),
    (LOST[9.0], "no throttling"),
    # its libraries and environment
    (NO_JEMALLOC, "allocator, allocator options"),
    ({"worker.libraries": (JEMALLOC, OPENMP, "/usr/lib/libtcmalloc_minimal.so.4")}, "allocator"),
    ({"worker.describe.allocator": {"name": "system"}}, "allocator"),
    ({"worker.libraries": None}, "allocator, OpenMP"),
    ({"worker.describe.allocator": {"options": {}}}, "allocator options"),
    ({"worker.describe.allocator": {"options": {"dirty_decay_ms": 10000}}}, "allocator options"),
    (USES_GOMP, "OpenMP"),
    ({**USES_GOMP, "worker.libraries": (JEMALLOC, GOMP)}, "OpenMP"),
    ({"worker.describe.openmp": {"library": OTHER}, "worker.libraries": (JEMALLOC, OPENMP, OTHER)}, "OpenMP"),
    ({"worker.environment": {"OMP_NUM_THREADS": "2"}}, "threads, environment"),
    ({"worker.describe.threads": {"intra_op": 2}}, "threads"),
    ({"worker.describe.threads": {"inter_op": 2}}, "threads"),
    ({"worker.environment": {"MALLOC_CONF": None}}, "environment"),
    ({"worker.environment": {"LD_PRELOAD": "/kit/.venv/lib/libjemalloc.so"}}, "environment"),
    ({"worker.environment": None}, "environment, threads"),
    # its model
    ({"worker.describe": "timed out"}, ", ".join(["describe", *NEEDS_ANSWER])),
    ({"worker.archive_id": ""}, "archive"),
    ({"worker.archive_id": "0" * 64}, "archive"),
    ({"worker.describe.limits": {"pixels": 100}}, "limits"),
    ({"worker.describe.limits": None}, "limits"),
    ({"planned.limits": {"scans": 7}}, "limits"),
    ({"worker.describe.precision": "bf16"}, "precision"),
    ({"worker.describe.backend": {"name": "eager"}}, "backend"),
    ({"worker.describe.backend": {"version": None}}, "backend"),
    ({"worker.describe.steps.freeze.status": "off"}, "load steps"),
    ({"worker.describe.steps.ipex_optimize.status": "failed"}, "load steps"),
    ({"worker.describe.steps": []}, "load steps"),
    ({"worker.describe.memory_format": {"channels_last_weights": 52}}, "channels_last"),
    ({"worker.describe.memory_format": {"input": "contiguous"}}, "channels_last"),
    ({"worker.describe.packing": {"applicable": True, "on": False}}, "packing"),
    ({"worker.describe.packing": None}, "packing"),
    ({"worker.describe.graph": {"kind": "torchscript"}}, "graph"),
    ({"worker.describe.graph": {"kind": "eager", "prepacked": 0, "fused": 0}}, "graph"),
    ({"worker.describe.graph": {"prepacked": 0}}, "graph"),
    ({"worker.describe.graph": {"fused": 0}}, "graph"),
    ({"worker.describe.self_check": {"relative_error": 0.5}}, "self-check"),
    ({"worker.describe.self_check": {"relative_error": float("nan")}}, "self-check"),
    ({"worker.describe.self_check": None}, "self-check"),
]
ONLY_JEMALLOC = {"LD_PRELOAD": "/kit/.venv/lib/libjemalloc.so"}
FOREIGN_FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"worker.thread_cpus": {"7": (1,), "8": (1,)}}, "CPU affinity, ranks"),
    ({"worker.launcher": None}, "launcher"),
    ({"worker.stopped": True}, "process"),
    ({"worker.memory_policies": {"bind:1": 2}}, "memory policy"),
    (LOST[9.0], "no throttling"),
    ({"worker.libraries": (OPENMP, GOMP)}, "allocator"),
    ({"worker.libraries": (JEMALLOC, OPENMP, "/usr/lib/libtcmalloc.so.4")}, "allocator"),
    ({"worker.environment": {"LD_PRELOAD": OPENMP}}, "allocator, environment"),
    ({"worker.environment": {"MALLOC_CONF": "dirty_decay_ms:-1"}}, "allocator options, environment"),
    ({"worker.environment": ONLY_JEMALLOC}, "OpenMP, environment"),
    ({"worker.libraries": (JEMALLOC, GOMP)}, "OpenMP"),
    ({"worker.environment": {"OMP_NUM_THREADS": "2"}}, "threads, environment"),
    ({"worker.environment": None}, "allocator, allocator options, OpenMP, threads, environment"),
]
# fmt: on


@pytest.mark.parametrize(("changes", "rows"), FAULTS)
def test_a_fault_is_seen_and_nothing_else(changes, rows):
    found = Server.of(plan_server(), changes).compare()
    assert {one.name for one in found.differences} == names(rows)
    assert all(one.fix for one in found.differences)
    assert not found.good


def test_a_server_as_planned_passes_every_row_of_its_archives():
    found = Server.of(plan_server()).compare()
    assert {one.state for one in found.rows} == {PASSED}
    assert {one.name for one in found.rows} == {row.name for row in ROWS if row.kit is not False}
    assert found.good
    about = {(one.instance, one.model, one.pid) for one in found.rows}
    of_models = {("a1", name, pid) for name in ("bert", MODEL) for pid in (None, 100, 101)}
    assert about == {("", None, None), ("a1", None, None), *of_models}


def test_every_row_has_a_fault_here():
    assert {row.name for row in ROWS if row.kit is not False} == names(", ".join(rows for _, rows in FAULTS))
    foreign = {row.name for row in ROWS if row.scope == "worker" and row.kit is not True}
    assert foreign == names(", ".join(rows for _, rows in FOREIGN_FAULTS)) - {"ranks"}


def test_rows_that_need_the_answer_of_a_silent_worker_are_unknown():
    silent = Server.of(plan_server(), {"worker.describe": "timed out"}).compare().differences
    assert {one.actual for one in silent} == {"timed out", NO_ANSWER}
    assert {one.name for one in silent if one.actual == NO_ANSWER} == NEEDS_ANSWER


def share_cpus(quota: float | None = 1.0) -> Server:
    """Nothing is pinned: two CPUs are shared under a quota, or there is no launcher that pins."""
    plan = plan_server(pinned=False, worker_cpus=((0, 1),) * 2, memory_nodes=(None, None))
    policies = {"seen.models.*.workers.*.memory_policies": {"bind:0": None, "local": None, "default": 9}}
    return Server.of(plan, {**policies, "plan.machine": {"quota_cpus": quota}} if quota else policies)


BUSY = dict.fromkeys(("model API", "request size"), Unknown("429"))


@pytest.mark.parametrize(
    ("changes", "unchecked"),
    [
        ({"worker.describe": Unknown("busy: 90 requests wait")}, {"describe", *NEEDS_ANSWER}),
        ({"seen.orphans": None}, {"orphaned workers"}),
        ({"proxy.plan": Unknown("no record")}, {"plan"}),
        ({"seen.properties_at_start": None}, {"config.properties"}),
        ({"seen.configuration": {}}, {"allowed_urls", "archives install", "response size"}),
        ({"seen.answers": BUSY}, {*BUSY}),
        ({"worker.throttling": None}, {"no throttling"}),
    ],
)
def test_what_nobody_tells_is_not_checkable_and_no_difference(changes, unchecked):
    server = Server.of(plan_server(), changes)
    assert (server.find(), server.find(NOT_CHECKABLE)) == (set(), unchecked)


@pytest.mark.parametrize(
    ("threads", "rows"),
    [
        # seen with two cores: main thread on the first, the team's other on the second, helpers on both
        ({"7": (0,), "8": (0, 1), "9": (1,)}, ""),
        ({"7": (0,), "8": (0,)}, "CPU affinity, ranks"),
    ],
)
def test_a_team_uses_each_of_its_cpus(threads, rows):
    """One worker on two CPUs, without a rank on its launcher's command line."""
    one = replace(plan_server().instances["a1"].models[MODEL], workers=1)
    plan = plan_server(models={MODEL: one}, worker_cpus=((0, 1),))
    team = {"worker.thread_cpus": threads, "worker.launcher": ("python", "-m", "x")}
    assert Server.of(plan, team).find() == names(rows)


@pytest.mark.parametrize(
    ("changes", "rows"),
    [
        ({}, ""),
        ({"worker.thread_cpus": {"8": (0,)}}, "CPU affinity"),
        ({"worker.thread_cpus": {"7": (0,), "8": (1,)}}, "CPU affinity"),  # each bound, together on all
        ({"worker.thread_cpus": {"7": (0, 1, 2)}}, "CPU affinity"),
        ({"worker.environment": {"OMP_NUM_THREADS": "2"}}, "environment, threads"),
        ({"worker.launcher": None}, "launcher"),
        (NO_JEMALLOC, "allocator, allocator options"),
        (USES_GOMP, "OpenMP"),
        # what runs beside the workers, and one thread too many
        (LOST[30.0], ""),
        (LOST[60.0], "no throttling"),
        ({"plan.machine": {"quota_cpus": 1.5}, **LOST[60.0]}, ""),
        ({"plan.machine": {"quota_cpus": 1.5}, **LOST[100.0]}, "no throttling"),
        ({"worker.throttling": None}, "no throttling"),  # a quota that nobody counts
        ({"seen.cpus": (1,)}, "server's CPUs"),
        ({"own.launched": False}, ""),
    ],
)
def test_what_differs_on_shared_cpus(changes, rows):
    assert share_cpus().but(changes).find() == names(rows)


def test_an_instance_has_its_part_of_the_quota():
    """Of two equal ones, half."""
    server = share_cpus(1.5).but(LOST[60.0])
    a1 = server.plan.instances["a1"]
    two = replace(server.plan, instances={"a1": a1, "a2": replace(a1, models={})})
    assert {one.name for one in compare(two, None, {"a1": server.seen}).differences} == {"no throttling"}


def test_without_a_quota_or_pinning_every_thread_is_free():
    server = share_cpus(quota=None)
    assert server.find() == set()
    assert server.but(LOST[30.0]).find() == {"no throttling"}
    assert server.but({"worker.memory_policies": None}).find(NOT_CHECKABLE) == {"memory policy"}


def test_a_server_stays_where_it_is_confined():
    server = Server.of(plan_server(server_cpus=(0,)))
    assert server.find() == set()
    assert server.but({"seen.cpus": (0, 1)}).find() == {"server's CPUs"}


@pytest.mark.parametrize(
    ("backend", "node", "good"), [("openvino", 0, True), ("openvino", 1, False), ("ipex", 0, False)]
)
def test_a_backend_may_bind_what_it_computes_on_its_own_node(backend, node, good):
    policies = {"bind:0": None, "default": 868, f"bind:{node}": 2}
    changes = {"planned.backend": backend, "own.memory_nodes": (None, None)}
    server = Server.of(plan_server(), {**changes, "workers.memory_policies": policies})
    differing = {one.name for one in server.compare().differences if one.model == MODEL}
    assert ("memory policy" not in differing) is good


PLAIN = {
    "workers.describe.backend": {"name": "eager", "version": "2.8.0"},
    "workers.describe.graph": {"operators": {"aten::conv2d": 53}, "fused": 0},
}
STEP, GRAPH = "workers.describe.steps.{}.status", "workers.describe.graph"
OFF = {STEP.format("channels_last"): "off"}
CONTIGUOUS = {"workers.describe.memory_format": {"channels_last_weights": 0, "input": "contiguous"}}
NO_FREEZE = {STEP.format("freeze"): "off", GRAPH: {"kind": "torchscript", "prepacked": 0, "fused": 0}}
NO_TRACE = {**NO_FREEZE, STEP.format("trace"): "off", GRAPH: {"kind": "eager", "prepacked": 0, "fused": 0}}
UNUSED = {STEP.format("ipex_optimize"): "not applicable"}
INT8 = {**UNUSED, "workers.describe.precision": "int8", GRAPH: {"prepacked": 0}}


@pytest.mark.parametrize(
    ("plan", "live", "otherwise"),
    [
        ({"planned.backend": "eager"}, PLAIN, "backend, graph"),
        ({"planned.off": ("channels_last",)}, {**OFF, **CONTIGUOUS}, "load steps, channels_last"),
        ({"planned.off": ("freeze",)}, NO_FREEZE, "load steps, graph"),
        ({"planned.off": ("trace",)}, NO_TRACE, "load steps, graph"),
        ({"planned.off": ("buckets",)}, {}, ""),
        ({"planned.precision": "int8"}, INT8, "precision"),
    ],
)
def test_another_plan_is_met_by_what_it_asks_for_and_by_nothing_else(plan, live, otherwise):
    """Each model by its own backend, precision and steps."""
    server = Server.of(plan_server(), plan)
    assert server.but(live).find() == set()
    assert server.find() == names(otherwise)
    assert {one.model for one in server.compare().differences} <= {MODEL}


def test_channels_last_is_seen_to_be_off_not_believed():
    assert Server.of(plan_server(), {"planned.off": ("channels_last",), **OFF}).find() == {"channels_last"}


@pytest.mark.parametrize(("changes", "rows"), FOREIGN_FAULTS)
def test_an_archive_that_others_made_is_verified_from_proc(changes, rows):
    server = Server.of(plan_foreign(), changes)
    assert (server.find(), server.find(NOT_CHECKABLE)) == (names(rows), {"computation"})


def test_of_an_archive_that_others_made_nothing_needs_describe():
    server = Server.of(plan_foreign())
    found = server.compare()
    assert found.good
    assert server.find(NOT_CHECKABLE) == {"computation"}
    assert not {"describe", "archive", "precision", "graph", "self-check"} & {one.name for one in found.rows}
    assert not [one.source for one in found.rows if "describe" in one.source]


@pytest.mark.parametrize(
    ("values", "rows"),
    [
        ({"workers.environment": ONLY_JEMALLOC}, "environment"),
        ({}, "OpenMP"),  # Intel's is preloaded
        ({"workers.environment": ONLY_JEMALLOC, "workers.libraries": (JEMALLOC,)}, "OpenMP, environment"),
    ],
)
def test_gnus_openmp_is_mapped_and_no_other_is_preloaded(values, rows):
    gnu = {"plan.libraries.openmp": "gnu", "plan.libraries.openmp_path": None}
    assert Server.of(plan_foreign(), {**gnu, **values}).find() == names(rows)


def test_versions_have_workers_and_ranks_of_their_own():
    server = Server.of(plan_foreign(("1.0", "2.0")))
    assert server.find() == set()
    assert {one.model for one in server.compare().rows} == {None, "old/1.0", "old/2.0"}
    lost = server.but({"model.ready": 1}).compare().differences
    assert [(one.model, one.name) for one in lost] == [("old/2.0", "workers")]


def test_without_an_allocator_none_may_be_mapped():
    system = {
        f"plan.libraries.{name}": value
        for name, value in {"allocator": "system", "allocator_path": None, "allocator_link": None}.items()
    }
    server = Server.of(plan_server(), system)
    assert server.find() == {"allocator"}
    plain = {"workers.describe.allocator": SYSTEM, "workers.libraries": (OPENMP, GOMP)}
    assert {one.model for one in server.but(plain).compare().differences} == {"bert"}
    plain = {"workers.libraries": (OPENMP, GOMP), "workers.environment": {"LD_PRELOAD": OPENMP}}
    assert Server.of(plan_foreign(), {**system, **plain}).find() == {"environment"}
