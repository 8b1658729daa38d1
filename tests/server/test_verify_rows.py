"""Every row of verify sees its fault, and only that one, in what was recorded from a live server."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from config.plan import Plan
from server.throttling import Loss
from server.verify import judge
from server.verify.collect import SeenInstance, SeenProxy, Unknown
from server.verify.compare import DIFFERS, NO_ANSWER, NOT_CHECKABLE, PASSED, Result, compare
from server.verify.probes import LARGER_REQUEST, LARGEST_REQUEST, PROXY_PROBES, REGISTER
from server.verify.rows import ROWS
from tests.server.seen import (
    GOMP,
    JEMALLOC,
    OPENMP,
    change_models,
    plan_foreign,
    plan_server,
    render_properties,
    see_instance,
    see_proxy,
)

MODEL = "resnet50"


@pytest.fixture(autouse=True)
def rendered(monkeypatch):
    monkeypatch.setattr(judge, "render_properties", render_properties)


@dataclass(frozen=True)
class Server:
    """A plan and what was seen of its server."""

    plan: Plan
    proxy: SeenProxy
    seen: SeenInstance

    @classmethod
    def of(cls, plan: Plan) -> Server:
        """As planned."""
        return cls(plan, see_proxy(plan), see_instance(plan))

    def compare(self) -> Result:
        return compare(self.plan, self.proxy, {"a1": self.seen})


Change = Callable[[Server], Server]


def find(server: Server, state: str = DIFFERS) -> set[str]:
    """Names of the rows in that state."""
    return {one.name for one in server.compare().rows if one.state == state}


def merge(old: Any, **values: Any) -> Any:
    """Mappings are updated; a value None in one is taken out."""

    def update(name: str, value: Any) -> Any:
        if not isinstance(value, Mapping) or not isinstance(getattr(old, name), Mapping):
            return value
        return {key: one for key, one in {**getattr(old, name), **value}.items() if one is not None}

    return replace(old, **{name: update(name, value) for name, value in values.items()})


def proxy(**values: Any) -> Change:
    return lambda server: replace(server, proxy=merge(server.proxy, **values))


def instance(**values: Any) -> Change:
    return lambda server: replace(server, seen=merge(server.seen, **values))


def model(**values: Any) -> Change:
    """Of MODEL, or of the only one."""
    return lambda server: replace(
        server, seen=change_models(server.seen, server.seen.models[-1].name, **values)
    )


def worker(*changes: Callable[[Any], Any], every: bool = False, **values: Any) -> Change:
    """Of MODEL's first worker; or of every worker of that model."""

    def change(server: Server) -> Server:
        workers = list(server.seen.models[-1].workers)
        for number, one in enumerate(workers if every else workers[:1]):
            workers[number] = functools.reduce(lambda seen, each: each(seen), changes, merge(one, **values))
        return model(workers=tuple(workers))(server)

    return change


def said(section: str, value: Any) -> Callable[[Any], Any]:
    """Another answer to describe; mappings are updated."""

    def change(one: Any) -> Any:
        old = one.describe[section]
        new = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
        return replace(one, describe={**one.describe, section: new})

    return change


def step(name: str, status: str) -> Callable[[Any], Any]:
    def change(one: Any) -> Any:
        steps = [
            {**each, "status": status} if each["name"] == name else each for each in one.describe["steps"]
        ]
        return replace(one, describe={**one.describe, "steps": steps})

    return change


def planned(**values: Any) -> Change:
    """Another plan of MODEL than the one the server was started from."""

    def change(server: Server) -> Server:
        models = server.plan.instances["a1"].models
        name = [*models][-1]
        return planned_instance(models={**models, name: replace(models[name], **values)})(server)

    return change


def planned_instance(**values: Any) -> Change:
    def change(server: Server) -> Server:
        instances = {"a1": replace(server.plan.instances["a1"], **values)}
        return replace(server, plan=replace(server.plan, instances=instances))

    return change


def machine(**values: Any) -> Change:
    def change(server: Server) -> Server:
        return replace(server, plan=replace(server.plan, machine={**server.plan.machine, **values}))

    return change


def both(*changes: Change) -> Change:
    return lambda server: functools.reduce(lambda changed, one: one(changed), changes, server)


def double_a_rank(server: Server) -> Server:
    first, second = server.seen.models[-1].workers
    same = replace(second, thread_cpus=first.thread_cpus, launcher=first.launcher)
    return model(workers=(first, same))(server)


SYSTEM = {"name": "system", "library": "libc.so.6", "options": {}}
NO_JEMALLOC = worker(said("allocator", SYSTEM), libraries=(OPENMP, GOMP))
USES_GOMP = said("openmp", {"name": "gnu", "library": GOMP})
OTHER = "/opt/libiomp5.so"
GONE = worker(thread_cpus=None, describe="", environment=None, libraries=None, memory_policies=None)
FAULTS: list[tuple[Change, set[str]]] = [
    # the proxy
    (proxy(phase="degraded"), {"supervisor"}),
    (proxy(plan_now="other"), {"plan"}),
    (proxy(configuration_now="other"), {"haproxy.cfg"}),
    (proxy(configuration_now=None, configuration_at_start=None), {"haproxy.cfg"}),
    (proxy(listening={"*:80": "HAProxy"}), {"proxy addresses"}),
    (proxy(listening={"127.0.0.1:80": "supervisor"}), {"proxy addresses"}),
    (proxy(listening=None), {"proxy addresses"}),
    *((proxy(answers={name: "200x"}), {"proxy answers"}) for name in PROXY_PROBES),
    (proxy(limits={"resnet50/a1": 9}), {"maxconn"}),
    (proxy(limits={"resnet50.large/a1": 9}), {"maxconn"}),
    (proxy(limits={"bert/a1": None}), {"maxconn"}),
    (proxy(token_mode=0o644), {"token"}),
    (proxy(token_mode=None), {"token"}),
    # an instance
    (instance(running=False), {"TorchServe"}),
    (both(instance(running=False), instance(orphans=(7,))), {"TorchServe", "orphaned workers"}),
    (instance(orphans=(7, 8)), {"orphaned workers"}),
    (instance(cpus=(1,)), {"server's CPUs"}),
    (instance(cpus=()), {"server's CPUs"}),
    (planned_instance(server_cpus=(0,)), {"server's CPUs"}),
    (instance(properties_now="0"), {"config.properties"}),
    (instance(properties_now=None), {"config.properties"}),
    (instance(properties_now="0", properties_at_start="0"), {"config.properties"}),
    (instance(command=("java", "-Xmx64m")), {"JVM flags"}),
    (instance(command=("java",)), {"JVM flags"}),
    (instance(environment=None), {"JVM flags"}),
    *((instance(environment={name: "-Xmx64m"}), {"JVM flags"}) for name in judge.JAVA_VARIABLES),
    (instance(listening={"*:9380": "TorchServe"}), {"addresses"}),
    (instance(listening={"127.0.0.1:9": "worker"}), {"addresses"}),
    (instance(listening=None), {"addresses"}),
    (instance(sockets=("inference", "metrics")), {"sockets"}),
    (instance(sockets_mode=0o755), {"sockets"}),
    (instance(sockets_own=False), {"sockets"}),
    (instance(answers={"gRPC inference": "0"}), {"gRPC"}),
    (instance(answers={"gRPC management": "no answer"}), {"gRPC"}),
    (instance(answers={REGISTER: "400"}), {"model API"}),
    (instance(answers={REGISTER: "500"}), {"model API"}),
    (instance(configuration={"Allowed Urls": "[file://.*|http(s)?://.*]"}), {"allowed_urls"}),
    (instance(configuration={"Custom python dependency for model allowed": "true"}), {"archives install"}),
    (instance(configuration={"Maximum Response Size": "9"}), {"response size"}),
    (instance(configuration={"Maximum Response Size": None}), {"response size"}),
    (instance(answers={LARGER_REQUEST: "100"}), {"request size"}),
    (instance(answers={LARGEST_REQUEST: "413"}), {"request size"}),
    # a model
    (model(ready=1), {"workers"}),
    (model(ready=3, listed=3), {"workers"}),
    (model(problem="answered 500"), {"workers"}),
    (double_a_rank, {"ranks"}),
    (GONE, {"process", "ranks"}),
    (model(described={}), {"batch", "time-outs"}),
    (planned(batch_size=8), {"batch"}),
    (planned(max_batch_delay_ms=5), {"batch"}),
    (planned(response_timeout_s=1), {"time-outs"}),
    (planned(startup_timeout_s=1), {"time-outs"}),
    (model(queue_sizes=(100_000,)), {"queue"}),
    (model(queue_sizes=()), {"queue"}),
    (model(changed_files=("labels.json is missing",)), {"archive files"}),
    (model(changed_files=None), {"archive files"}),
    # a worker: where it runs
    (worker(thread_cpus={"7": (1,), "8": (1,)}), {"CPU affinity", "ranks"}),
    (worker(thread_cpus={"7": (0,), "8": (0, 1)}), {"CPU affinity", "ranks"}),
    (worker(thread_cpus={"7": (9,)}), {"CPU affinity", "ranks"}),
    (worker(thread_cpus={"7": (0, 1)}, launcher=None), {"CPU affinity", "ranks", "launcher"}),
    (worker(launcher=None), {"launcher"}),
    (worker(stopped=True), {"process"}),
    (worker(memory_policies={"bind:0": None, "default": 800}), {"memory policy"}),
    (worker(memory_policies={"bind:0": None, "bind:1": 800}), {"memory policy"}),
    (worker(memory_policies={"prefer:1": 2}), {"memory policy"}),
    (worker(memory_policies=None), {"memory policy"}),
    (worker(throttling=Loss(times=90, ms_per_period=9.0)), {"no throttling"}),
    # its libraries and environment
    (NO_JEMALLOC, {"allocator", "allocator options"}),
    (worker(libraries=(JEMALLOC, OPENMP, "/usr/lib/libtcmalloc_minimal.so.4")), {"allocator"}),
    (worker(said("allocator", {"name": "system"})), {"allocator"}),
    (worker(libraries=None), {"allocator", "OpenMP"}),
    (worker(said("allocator", {"options": {}})), {"allocator options"}),
    (worker(said("allocator", {"options": {"dirty_decay_ms": 10000}})), {"allocator options"}),
    (worker(USES_GOMP), {"OpenMP"}),
    (worker(USES_GOMP, libraries=(JEMALLOC, GOMP)), {"OpenMP"}),
    (worker(said("openmp", {"library": OTHER}), libraries=(JEMALLOC, OPENMP, OTHER)), {"OpenMP"}),
    (worker(environment={"OMP_NUM_THREADS": "2"}), {"threads", "environment"}),
    (worker(said("threads", {"intra_op": 2})), {"threads"}),
    (worker(said("threads", {"inter_op": 2})), {"threads"}),
    (worker(environment={"MALLOC_CONF": None}), {"environment"}),
    (worker(environment={"LD_PRELOAD": "/kit/.venv/lib/libjemalloc.so"}), {"environment"}),
    (worker(environment=None), {"environment", "threads"}),
    # its model
    (worker(describe="timed out"), {"describe", *(row.name for row in ROWS if row.describe)}),
    (worker(archive_id=""), {"archive"}),
    (worker(archive_id="0" * 64), {"archive"}),
    (worker(said("limits", {"pixels": 100})), {"limits"}),
    (worker(said("limits", None)), {"limits"}),
    (planned(limits={"scans": 7}), {"limits"}),
    (worker(said("precision", "bf16")), {"precision"}),
    (worker(said("backend", {"name": "eager"})), {"backend"}),
    (worker(said("backend", {"version": None})), {"backend"}),
    (worker(step("freeze", "off")), {"load steps"}),
    (worker(step("ipex_optimize", "failed")), {"load steps"}),
    (worker(said("steps", [])), {"load steps"}),
    (worker(said("memory_format", {"channels_last_weights": 52})), {"channels_last"}),
    (worker(said("memory_format", {"input": "contiguous"})), {"channels_last"}),
    (worker(said("packing", {"applicable": True, "on": False})), {"packing"}),
    (worker(said("packing", None)), {"packing"}),
    (worker(said("graph", {"kind": "torchscript"})), {"graph"}),
    (worker(said("graph", {"kind": "eager", "prepacked": 0, "fused": 0})), {"graph"}),
    (worker(said("graph", {"prepacked": 0})), {"graph"}),
    (worker(said("graph", {"fused": 0})), {"graph"}),
    (worker(said("self_check", {"relative_error": 0.5})), {"self-check"}),
    (worker(said("self_check", {"relative_error": float("nan")})), {"self-check"}),
    (worker(said("self_check", None)), {"self-check"}),
]  # fmt: skip


@pytest.mark.parametrize(("change", "rows"), FAULTS)
def test_a_fault_is_seen_and_nothing_else(change, rows):
    found = change(Server.of(plan_server())).compare()
    assert {one.name for one in found.differences} == rows
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
    faults = {name for _, rows in FAULTS for name in rows}
    assert {row.name for row in ROWS if row.kit is not False} == faults
    foreign = {row.name for row in ROWS if row.scope == "worker" and row.kit is not True}
    assert foreign == {name for _, rows in FOREIGN_FAULTS for name in rows if name != "ranks"}


def test_rows_that_need_the_answer_of_a_silent_worker_are_unknown():
    silent = worker(describe="timed out")(Server.of(plan_server())).compare().differences
    assert {one.actual for one in silent} == {"timed out", NO_ANSWER}
    assert {one.name for one in silent if one.actual == NO_ANSWER} == {
        row.name for row in ROWS if row.describe
    }


NEEDS_ANSWER = {"describe", *(row.name for row in ROWS if row.describe)}


@pytest.mark.parametrize(
    ("change", "unchecked"),
    [
        (worker(describe=Unknown("busy: 90 requests wait")), NEEDS_ANSWER),
        (model(queue_sizes=(18, 20, 19)), set()),  # of a busy queue one right sum is proof
        (instance(orphans=None), {"orphaned workers"}),
        (proxy(plan_at_start=None), {"plan"}),
        (instance(properties_at_start=None), {"config.properties"}),
        (lambda server: replace(server, seen=replace(server.seen, configuration={})),
         {"allowed_urls", "archives install", "response size"}),
        (instance(answers={REGISTER: "429", LARGEST_REQUEST: "429"}), {"model API", "request size"}),
        (instance(answers={REGISTER: "503", LARGER_REQUEST: "503"}), {"model API", "request size"}),
        (worker(throttling=None), {"no throttling"}),
        (lambda _: worker(memory_policies=None)(share_cpus(quota=None)), {"memory policy"}),
    ],
)  # fmt: skip
def test_what_nobody_tells_is_not_checkable_and_no_difference(change, unchecked):
    server = change(Server.of(plan_server()))
    assert (find(server), find(server, NOT_CHECKABLE)) == (set(), unchecked)


@pytest.mark.parametrize(
    ("threads", "rows"),
    [
        # seen with two cores: main thread on the first, the team's other on the second, helpers on both
        ({"7": (0,), "8": (0, 1), "9": (1,)}, set()),
        ({"7": (0,), "8": (0,)}, {"CPU affinity", "ranks"}),
    ],
)
def test_a_team_uses_each_of_its_cpus(threads, rows):
    """One worker on two CPUs, without a rank on its launcher's command line."""
    one = replace(plan_server().instances["a1"].models[MODEL], workers=1)
    server = Server.of(plan_server(models={MODEL: one}, worker_cpus=((0, 1),)))
    team = worker(lambda seen: replace(seen, thread_cpus=threads), launcher=("python", "-m", "x"))
    assert find(team(server)) == rows


def share_cpus(quota: float | None = 1.0) -> Server:
    """Nothing is pinned: two CPUs are shared under a quota, or there is no launcher that pins."""
    plan = plan_server(pinned=False, worker_cpus=((0, 1),) * 2, memory_nodes=(None, None))
    server = machine(quota_cpus=quota)(Server.of(plan))
    models = [
        replace(one, workers=tuple(replace(each, memory_policies={"default": 9}) for each in one.workers))
        for one in server.seen.models
    ]
    return replace(server, seen=replace(server.seen, models=tuple(models)))


LOST = {ms: Loss(times=90, ms_per_period=ms) for ms in (30.0, 60.0, 100.0)}


@pytest.mark.parametrize(
    ("change", "rows"),
    [
        (both(), set()),
        (worker(thread_cpus={"8": (0,)}), {"CPU affinity"}),
        (worker(thread_cpus={"7": (0,), "8": (1,)}), {"CPU affinity"}),  # each bound, together on all
        (worker(thread_cpus={"7": (0, 1, 2)}), {"CPU affinity"}),
        (worker(environment={"OMP_NUM_THREADS": "2"}), {"environment", "threads"}),
        (worker(launcher=None), {"launcher"}),
        (NO_JEMALLOC, {"allocator", "allocator options"}),
        (worker(USES_GOMP), {"OpenMP"}),
        # what runs beside the workers, and one thread too many
        (worker(throttling=LOST[30.0]), set()),
        (worker(throttling=LOST[60.0]), {"no throttling"}),
        (both(machine(quota_cpus=1.5), worker(throttling=LOST[60.0])), set()),
        (both(machine(quota_cpus=1.5), worker(throttling=LOST[100.0])), {"no throttling"}),
        (worker(throttling=None), {"no throttling"}),  # a quota that nobody counts
        (instance(cpus=(1,)), {"server's CPUs"}),
        (planned_instance(launched=False), set()),
    ],
)
def test_what_differs_on_shared_cpus(change, rows):
    assert find(change(share_cpus())) == rows


def test_an_instance_has_its_part_of_the_quota():
    """Of two equal ones, half."""
    server = both(machine(quota_cpus=1.5), worker(throttling=LOST[60.0]))(share_cpus())
    a1 = server.plan.instances["a1"]
    two = replace(server.plan, instances={"a1": a1, "a2": replace(a1, models={})})
    assert {one.name for one in compare(two, None, {"a1": server.seen}).differences} == {"no throttling"}


def test_without_a_quota_or_pinning_every_thread_is_free():
    server = share_cpus(quota=None)
    assert find(server) == set()
    assert find(worker(throttling=LOST[30.0])(server)) == {"no throttling"}


@pytest.mark.parametrize(
    ("cpus", "rows"), [((0,), set()), ((0, 1), {"server's CPUs"}), ((), {"server's CPUs"})]
)
def test_a_server_stays_where_it_is_confined(cpus, rows):
    assert find(instance(cpus=cpus)(Server.of(plan_server(server_cpus=(0,))))) == rows


@pytest.mark.parametrize(
    ("backend", "node", "good"), [("openvino", 0, True), ("openvino", 1, False), ("ipex", 0, False)]
)
def test_a_backend_may_bind_what_it_computes_on_its_own_node(backend, node, good):
    server = both(planned(backend=backend), planned_instance(memory_nodes=(None, None)))(
        Server.of(plan_server())
    )
    bound = worker(memory_policies={"bind:0": None, "default": 868, f"bind:{node}": 2}, every=True)(server)
    assert (
        "memory policy" not in {one.name for one in bound.compare().differences if one.model == MODEL}
    ) is good


PLAIN = both(
    worker(said("backend", {"name": "eager", "version": "2.8.0"}), every=True),
    worker(said("graph", {"operators": {"aten::conv2d": 53}, "fused": 0}), every=True),
)
NOT_CHANNELS_LAST = said("memory_format", {"channels_last_weights": 0, "input": "contiguous"})
TORCHSCRIPT = said("graph", {"kind": "torchscript", "prepacked": 0, "fused": 0})
EAGER = said("graph", {"kind": "eager", "prepacked": 0, "fused": 0})
INT8 = (said("precision", "int8"), said("graph", {"prepacked": 0}), step("ipex_optimize", "not applicable"))


@pytest.mark.parametrize(
    ("plan", "live", "otherwise"),
    [
        ({"backend": "eager"}, PLAIN, {"backend", "graph"}),
        ({"off": ("channels_last",)}, worker(step("channels_last", "off"), NOT_CHANNELS_LAST, every=True),
         {"load steps", "channels_last"}),
        ({"off": ("freeze",)}, worker(step("freeze", "off"), TORCHSCRIPT, every=True),
         {"load steps", "graph"}),
        ({"off": ("trace",)}, worker(step("trace", "off"), step("freeze", "off"), EAGER, every=True),
         {"load steps", "graph"}),
        ({"off": ("buckets",)}, both(), set()),
        ({"precision": "int8"}, worker(*INT8, every=True), {"precision"}),
    ],
)  # fmt: skip
def test_another_plan_is_met_by_what_it_asks_for_and_by_nothing_else(plan, live, otherwise):
    """Each model by its own backend, precision and steps."""
    server = planned(**plan)(Server.of(plan_server()))
    assert find(live(server)) == set()
    assert find(server) == otherwise
    assert {one.model for one in server.compare().differences} <= {MODEL}


def test_channels_last_is_seen_to_be_off_not_believed():
    server = planned(off=("channels_last",))(Server.of(plan_server()))
    assert find(worker(step("channels_last", "off"), every=True)(server)) == {"channels_last"}


def with_libraries(**values: Any) -> Change:
    return lambda server: replace(
        server, plan=replace(server.plan, libraries=replace(server.plan.libraries, **values))
    )


GNU = with_libraries(openmp="gnu", openmp_path=None)
ONLY_JEMALLOC = {"LD_PRELOAD": "/kit/.venv/lib/libjemalloc.so"}
FOREIGN_FAULTS: list[tuple[Change, set[str]]] = [
    (worker(thread_cpus={"7": (1,), "8": (1,)}), {"CPU affinity", "ranks"}),
    (worker(launcher=None), {"launcher"}),
    (worker(stopped=True), {"process"}),
    (worker(memory_policies={"bind:1": 2}), {"memory policy"}),
    (worker(throttling=Loss(times=90, ms_per_period=9.0)), {"no throttling"}),
    (worker(libraries=(OPENMP, GOMP)), {"allocator"}),
    (worker(libraries=(JEMALLOC, OPENMP, "/usr/lib/libtcmalloc.so.4")), {"allocator"}),
    (worker(environment={"LD_PRELOAD": OPENMP}), {"allocator", "environment"}),
    (worker(environment={"MALLOC_CONF": "dirty_decay_ms:-1"}), {"allocator options", "environment"}),
    (worker(environment=ONLY_JEMALLOC), {"OpenMP", "environment"}),
    (worker(libraries=(JEMALLOC, GOMP)), {"OpenMP"}),
    (worker(environment={"OMP_NUM_THREADS": "2"}), {"threads", "environment"}),
    (worker(environment=None), {"allocator", "allocator options", "OpenMP", "threads", "environment"}),
]


@pytest.mark.parametrize(("change", "rows"), FOREIGN_FAULTS)
def test_an_archive_that_others_made_is_verified_from_proc(change, rows):
    server = change(Server.of(plan_foreign()))
    assert find(server) == rows
    assert find(server, NOT_CHECKABLE) == {"computation"}


def test_of_an_archive_that_others_made_nothing_needs_describe():
    found = Server.of(plan_foreign()).compare()
    unproven = [one for one in found.rows if one.state == NOT_CHECKABLE]
    assert [one.name for one in unproven] == ["computation"]
    assert found.good
    assert not {"describe", "archive", "precision", "graph", "self-check"} & {one.name for one in found.rows}
    assert not [one.source for one in found.rows if "describe" in one.source]


@pytest.mark.parametrize(
    ("values", "rows"),
    [
        ({"environment": ONLY_JEMALLOC}, {"environment"}),
        ({}, {"OpenMP"}),  # Intel's is preloaded
        ({"environment": ONLY_JEMALLOC, "libraries": (JEMALLOC,)}, {"OpenMP", "environment"}),
    ],
)
def test_gnus_openmp_is_mapped_and_no_other_is_preloaded(values, rows):
    assert find(worker(**values, every=True)(GNU(Server.of(plan_foreign())))) == rows


def test_versions_have_workers_and_ranks_of_their_own():
    server = Server.of(plan_foreign(("1.0", "2.0")))
    assert find(server) == set()
    assert {one.model for one in server.compare().rows} == {None, "old/1.0", "old/2.0"}
    first, second = server.seen.models
    lost = replace(server, seen=replace(server.seen, models=(first, replace(second, ready=1))))
    assert [(one.model, one.name) for one in lost.compare().differences] == [("old/2.0", "workers")]


def test_without_an_allocator_none_may_be_mapped():
    system = with_libraries(allocator="system", allocator_path=None, allocator_link=None)
    server = system(Server.of(plan_server()))
    assert find(server) == {"allocator"}
    plain = worker(said("allocator", SYSTEM), libraries=(OPENMP, GOMP), every=True)(server)
    assert {one.model for one in plain.compare().differences} == {"bert"}
    plain = worker(libraries=(OPENMP, GOMP), environment={"LD_PRELOAD": OPENMP}, every=True)
    assert find(plain(system(Server.of(plan_foreign())))) == {"environment"}
