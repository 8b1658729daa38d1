"""The one table of what verify compares: what is planned, what the live server shows, where, what to do.

`p` is what is planned for the thing that a row is about, `s` what was seen of it (collect.py). The table is
at the end; above it is how values are compared that take more than a line.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from config.files import render_id_list
from config.plan import InstancePlan, ModelPlan, Plan
from config.proxy import SOCKETS
from config.render import render_properties
from handlers.backends.catalogue import BACKENDS
from server.errors import RESTART
from server.ports import list_ports
from server.verify.collect import JAVA_VARIABLES, SeenInstance, SeenModel, SeenProxy, SeenWorker
from server.verify.probes import PROXY_PROBES, Unknown, render_address

PROXY, INSTANCE, MODEL, WORKER = "proxy", "instance", "model", "worker"
"""What a row is about: HAProxy and the supervisor, a TorchServe, a version of a model in it, a worker."""
Pair = tuple[Any, ...]
"""Expected and actual, as `show` takes them; where they need not be equal, whether the row has passed too."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """The plan, and the part of it that a row is about."""

    plan: Plan
    name: str = ""  # of the instance
    instance: InstancePlan = None  # type: ignore[assignment]  # rows of the proxy have none
    model: ModelPlan = None  # type: ignore[assignment]  # nor rows of an instance this

    @property
    def quota(self) -> float | None:
        """CPUs of this instance's part of the quota; None where there is none, or it takes nothing away."""
        quota = self.plan.machine["quota_cpus"]
        if quota is None or quota >= len(self.plan.machine["cpus_allowed"]):
            return None
        instances = self.plan.instances.items()
        cores = {name: len(one.worker_cpus) * one.cores_per_worker for name, one in instances}
        return float(quota) * cores[self.name] / sum(cores.values())

    @property
    def environment(self) -> dict[str, Any]:
        """Of a worker; where a value is no text, other paths may stand beside those in it."""
        return {**self.instance.environment, **self.instance.worker_environment}

    @property
    def off(self) -> frozenset[str]:
        """Load steps that are left out: only a traced model can be frozen."""
        return frozenset((*self.model.off, "freeze") if "trace" in self.model.off else self.model.off)


@dataclass(frozen=True)
class Row:
    """One comparison."""

    name: str
    scope: str
    look: Callable[[Planned, Any], Pair]
    source: str  # where the actual value is read
    fix: str | Callable[[Any], str]  # what to do about a difference
    describe: bool = False  # of archives of this kit it needs the worker's own answer
    kit: bool | None = None  # True: of archives of this kit alone; False: of those alone that others made
    always: bool = False  # also of what does not run


def show(value: Any) -> str:
    """A value as text; None cannot be read."""
    if value is None:
        return "cannot be read"
    if isinstance(value, Mapping):
        value = [f"{name} {one}" for name, one in value.items()]
    return value if isinstance(value, str) else ", ".join(value) or "none"


def _render_cpus(cpus: Iterable[int]) -> str | None:
    return f"CPU {numbers}" if (numbers := render_id_list(cpus)) else None


# ---- HAProxy, an instance

_TORCHSERVES_RESPONSE_BYTES = "6553500"


def _addresses(p: Planned, s: SeenProxy | SeenInstance) -> Pair:
    """A process that should not listen, such as a worker, is named."""
    expected, main = list_ports(p.plan, p.name).values(), ("HAProxy", "TorchServe")
    actual = s.listening and [at if role in main else f"{at} ({role})" for at, role in s.listening.items()]
    return sorted(render_address(*at) for at in expected), actual and sorted(actual)


def _maxconn(p: Planned, s: SeenProxy) -> Pair:
    """Requests that HAProxy hands over at once, by <backend>/<instance>."""
    limits: dict[str, int] = {}
    for name, instance in p.plan.instances.items():
        for model, one in instance.models.items():
            limits |= {f"{model}/{name}": one.maxconn, f"{model}.large/{name}": one.large_maxconn}
    return limits, {name: s.limits.get(name, "?") for name in limits}


def _server_cpus(p: Planned, s: SeenInstance) -> Pair:
    """Confined, TorchServe stays on its CPUs: beyond them a quota would be overdrawn. Else it may use all."""
    if p.instance.server_cpus is not None:
        return _render_cpus(p.instance.server_cpus), _render_cpus(s.cpus)
    return "not confined", _render_cpus(s.cpus), {*p.plan.machine["cpus_allowed"]} <= {*s.cpus}


def _properties(p: Planned, s: SeenInstance) -> Pair:
    """When TorchServe read config.properties, and now."""
    if s.properties_at_start is None:
        return "as planned", Unknown("server.json does not say what TorchServe read")
    rendered = hashlib.sha256(render_properties(p.plan, p.name).encode("utf-8")).hexdigest()
    wrong = ["not the plan's when TorchServe read it"] if s.properties_at_start != rendered else []
    return "as planned", "; ".join([*wrong, *filter(None, [s.properties])]) or "as planned"


def _logged(name: str, setting: str, default: str = "") -> Callable[[Planned, SeenInstance], Pair]:
    """What TorchServe made of a line of config.properties, by the name it logs it under."""
    why = Unknown("server.json does not say what TorchServe logged")
    return lambda p, s: (
        p.instance.properties.get(setting, default),
        s.configuration.get(name, "not logged") if s.configuration else why,
    )


# ---- a model, a worker: where it runs

THROTTLED_MS = 1.0
"""Of each period of 100 ms. The kernel's bookkeeping takes some microseconds from a group that just fills its
quota; one thread too many takes tens of milliseconds."""
SHARED_THROTTLED_MS = 50.0
"""The same for each CPU of the quota where CPUs are shared: what runs beside the workers (Java, HAProxy) has
others than theirs then, and what it takes from a full quota is throttled. The time of all CPUs is summed
(cpu.stat): with a quota of one a thread too many loses 100 ms."""


def _find_rank(p: Planned, s: SeenWorker) -> int | None:
    """The rank the launcher was given; without one on its command line, that whose CPUs the worker has."""
    planned, used = [{*cpus} for cpus in p.instance.worker_cpus], s.cpus
    if s.launcher and "--rank" in s.launcher[:-1]:
        rank = int(s.launcher[s.launcher.index("--rank") + 1])
        return rank if rank < len(planned) else None
    if all(cpus == planned[0] for cpus in planned):  # one worker, or none pinned
        return 0
    return planned.index(used) if used in planned else None


def _ranks(p: Planned, s: SeenModel) -> Pair:
    """Each rank's CPUs have exactly one worker of the model."""
    if not p.instance.pinned:
        return "not pinned", "not pinned"
    cpus, ranks = p.instance.worker_cpus, [(_find_rank(p, one), one.cpus) for one in s.workers]
    placed = sorted(rank for rank, used in ranks if rank is not None and used == {*cpus[rank]})
    texts = [f"{rank} on {_render_cpus(own)}" for rank, own in enumerate(cpus)]
    return texts, [texts[rank] for rank in placed]


def _affinity(p: Planned, s: SeenWorker) -> Pair:
    """Every thread stays on the rank's CPUs, and together they may use all of them.

    Threads of an OpenMP team are bound to one CPU each (KMP_AFFINITY granularity=fine), so no one thread need
    be allowed on all CPUs of its rank. Where nothing is pinned each must be allowed on all.
    """
    rank, used = _find_rank(p, s), s.cpus
    threads = [{*cpus} for cpus in (s.thread_cpus or {}).values()]
    cpus = set() if rank is None else {*p.instance.worker_cpus[rank]}
    actual = f"{_render_cpus(used)}, {len(threads)} threads"
    if p.instance.pinned:
        outside = sum(not thread <= cpus for thread in threads)
        actual += f", {outside} may leave the plan's CPUs" if outside else ""
        return _render_cpus(cpus) or "the CPUs of one rank", actual, used == cpus
    expected = "not pinned: CPUs are shared under a quota" if p.quota else "not pinned"
    if bound := sum(thread != cpus for thread in threads):
        return expected, f"{actual}, {bound} are bound"
    return expected, f"{expected}; {actual}", True


def _memory(p: Planned, s: SeenWorker) -> Pair:
    """Memory is bound to the rank's NUMA nodes, or not at all where the plan does not bind.

    A library may ask for single mappings `local` to the CPU (one of 32 MiB is seen in every worker), and a
    backend's runtime for the node it computes on: the same for a pinned thread, so that is no difference. (An
    archive that others made may have any runtime.)
    """
    rank = _find_rank(p, s) or 0
    nodes, cpus = p.instance.memory_nodes[rank], p.instance.worker_cpus[rank]
    expected = f"bind:{render_id_list(nodes)}" if nodes else "default"
    if s.memory_policies is None:
        reason = "numa_maps cannot be read (no NUMA in this kernel, or not permitted)"
        return expected, reason if nodes else Unknown(reason)
    allowed = {expected, "local"}
    if not p.model.kit or BACKENDS[p.model.backend].binds_memory:
        allowed |= {f"bind:{core['node']}" for core in p.plan.machine["cores"] if core["cpu"] in cpus}
    actual = [f"{policy} ×{count}" for policy, count in sorted(s.memory_policies.items())]
    return expected, actual, expected in s.memory_policies and {*s.memory_policies} <= allowed


def _throttling(p: Planned, s: SeenWorker) -> Pair:
    """The kernel took no time from the worker for using up a CPU quota since it was ready."""
    quota, lost = p.quota, s.throttling
    limit = SHARED_THROTTLED_MS * quota if quota and not p.instance.pinned else THROTTLED_MS
    expected = f"at most {limit:g} ms a period"
    if lost is None:
        reason = "no control group here counts it"
        return expected, reason if quota else Unknown(f"{reason}; no quota either")
    loading = f", {s.throttled_loading} times while loading" if s.throttled_loading else ""
    actual = f"{lost.ms_per_period:.2g} ms, {lost.times} times since ready{loading}"
    return expected, actual, lost.ms_per_period <= limit


# ---- a worker: its libraries and environment; archives that others made are not asked

_ALLOCATORS = re.compile(r"/lib(jemalloc|tcmalloc|mimalloc|tbbmalloc_proxy|hoard|scalloc)[^/]*$")
"""libtcm.so of intel-openmp is a thread manager, not tcmalloc."""
_OPENMP = re.compile(r"/lib(iomp5|gomp|omp)[-.][^/]*$")
_SMALLEST_LARGE_SIZE = 16384
"""Below it jemalloc turns the threshold off and says 0 (arena_init_huge)."""
_INTER_OP_THREADS = 1
"""The worker runs one model call at a time; more inter-op threads would only compete for its cores."""


def _get(s: SeenWorker, section: str) -> Any:
    """Of the worker's answer; {} where it does not say."""
    return (s.describe.get(section) if isinstance(s.describe, Mapping) else None) or {}


def _find(library: re.Pattern[str], s: SeenWorker) -> tuple[set[str], set[str]]:
    """Paths that are mapped, and that LD_PRELOAD names."""
    preloads = (s.environment or {}).get("LD_PRELOAD", "").split(":")
    return {*filter(library.search, s.libraries or ())}, {*filter(library.search, preloads)}


def _name(paths: Iterable[str]) -> str:
    return show(sorted(Path(path).name for path in paths))


def _allocator(p: Planned, s: SeenWorker) -> Pair:
    """The planned one is mapped and no other is; malloc resolves to it, or else it is preloaded."""
    libraries, (mapped, preloaded) = p.plan.libraries, _find(_ALLOCATORS, s)
    wanted = {str(Path(libraries.allocator_path).resolve())} if libraries.allocator_path else set()
    how, name, live = "malloc is", libraries.allocator, str(_get(s, "allocator").get("name") or "unknown")
    if not p.model.kit:
        how, name, live = "preloaded:", libraries.allocator_link or "none", show(sorted(preloaded))
    expected, actual = f"{how} {name}; mapped: {_name(wanted)}", f"{how} {live}; mapped: {_name(mapped)}"
    return expected, actual, s.libraries is not None and mapped == wanted and live == name


def _allocator_options(p: Planned, s: SeenWorker) -> Pair:
    """jemalloc runs with the options of the plan's MALLOC_CONF by its own account, or has the variable."""

    def parse(environment: Mapping[str, str]) -> dict[str, str]:
        pairs = (one.partition(":") for one in environment.get("MALLOC_CONF", "").split(","))
        return {name: value for name, _, value in pairs if name}

    options = parse(p.instance.environment) if p.plan.libraries.allocator == "jemalloc" else {}
    if p.model.kit and 0 < int(options.get("oversize_threshold", 0)) < _SMALLEST_LARGE_SIZE:
        options["oversize_threshold"] = "0"
    live = _get(s, "allocator").get("options") or {} if p.model.kit else parse(s.environment or {})
    return options, {name: str(live[name]).lower() for name in options if name in live}


def _openmp(p: Planned, s: SeenWorker) -> Pair:
    """Parallel regions resolve to the planned one, or else it is preloaded; torch's libgomp may be mapped."""
    name, path, (mapped, preloaded) = p.plan.libraries.openmp, p.plan.libraries.openmp_path, _find(_OPENMP, s)
    wanted = str(Path(path).resolve()) if path else next((one for one in mapped if "libgomp" in one), "")
    if not p.model.kit:
        actual = f"preloaded: {show(sorted(preloaded))}; mapped: {_name(mapped)}"
        expected = f"preloaded: {path or 'none'}; mapped: {_name({path}) if path else 'libgomp'}"
        return expected, actual, wanted in mapped and preloaded == ({path} if path else set())
    live, library = (_get(s, "openmp").get(key) for key in ("name", "library"))
    right = library == wanted if path else True
    file = Path(library).name if library and right else library  # another of the same name: its whole path
    actual = f"{live or 'unknown'} ({file or 'no answer'})"
    return f"{name} ({_name({path})})" if path else name, actual, live == name and library in mapped and right


def _threads(p: Planned, s: SeenWorker) -> Pair:
    """OpenMP and PyTorch use as many threads as the worker has cores."""
    name, sides = "OMP_NUM_THREADS", (p.environment, s.environment or {})
    expected, actual = ({name: side.get(name, "not set")} for side in sides)
    if p.model.kit:
        live = _get(s, "threads")
        expected |= {"intra-op": p.instance.cores_per_worker, "inter-op": _INTER_OP_THREADS}
        actual |= {"intra-op": live.get("intra_op", "?"), "inter-op": live.get("inter_op", "?")}
    return expected, actual


def _environment(p: Planned, s: SeenWorker) -> Pair:
    """Every planned variable has its value."""
    expected, wrong = p.environment, []
    for name, value in expected.items():
        live = (s.environment or {}).get(name)
        if not isinstance(value, str):  # paths, and others may stand beside them
            missing = [path for path in value if path not in (live or "").split(":")]
            wrong += [f"{name} lacks {show(missing)}"] if missing else []
        elif live != value:
            wrong.append(f"{name}: expected {value}, actual {'nothing' if live is None else live}")
    all_right = f"{len(expected)} variables"
    return all_right, None if s.environment is None else "; ".join(wrong) or all_right


# ---- a worker: its model, by its own account

_NO_STEPS = {"packing", "buckets"}
"""Packing has a row of its own; that buckets reached the worker is seen in CPU_KIT_OPTIONS."""


def _archive(_: Planned, s: SeenWorker) -> Pair:
    """The worker serves the archive that is in the model store now."""
    if not s.archive_id:
        return "in the store", "gone from the store, or damaged"
    live = str(_get(s, "archive_id") or "unknown")
    return s.archive_id[:12], live[:12], live == s.archive_id


def _backend(p: Planned, s: SeenWorker) -> Pair:
    name, version = (_get(s, "backend").get(key) for key in ("name", "version"))
    actual = f"{name or 'unknown'} ({version or 'not installed'})"
    return p.model.backend, actual, name == p.model.backend and bool(version)


def _steps(p: Planned, s: SeenWorker) -> Pair:
    """Every load step was applied, but for those the plan leaves out or the model has no use for."""
    off, found, wrong = p.off - _NO_STEPS, _get(s, "steps"), []
    for step in found:
        if step["status"] not in ("off" if step["name"] in off else "applied", "not applicable"):
            why = f" ({step['reason']})" if step.get("reason") else ""
            wrong.append(f"{step['name']} {step['status']}{why}")
    expected = f"all but {show(sorted(off))}" if off else "all applied"
    return expected, "; ".join(wrong) or (expected if found else "unknown")


def _channels_last(p: Planned, s: SeenWorker) -> Pair:
    """Convolution weights and input are channels_last, or not where that is left out."""
    found = _get(s, "memory_format")
    if found.get("applicable") is False:
        return "not applicable", "not applicable"
    total, done, layout = (found.get(name) for name in ("convolutions", "channels_last_weights", "input"))
    actual = f"{done} of {total} convolutions, input {layout}" if found else "unknown"
    if "channels_last" in p.model.off:  # weights of 1×1 kernels count as both layouts: some always look done
        return "off: not all, input contiguous", actual, done != total and layout == "contiguous"
    # A detector makes its batch of images itself.
    good = bool(total) and done == total and layout in ("channels_last", "not 4-D")
    return "all convolutions, input", actual, good


def _packing(p: Planned, s: SeenWorker) -> Pair:
    """Texts share rows, where the model allows it and the plan does not leave it out."""
    found, share = _get(s, "packing"), _get(s, "packing_efficiency").get("share")
    if found.get("applicable") is False:
        return (f"not applicable: {found.get('reason')}",) * 2
    expected = "off" if _NO_STEPS & {*p.model.off} else "on"
    actual = {True: "on", False: "off"}.get(found.get("on"), "unknown")
    return expected, f"{actual}, packing efficiency {share}" if share else actual, actual == expected


def _graph(p: Planned, s: SeenWorker) -> Pair:
    """What executes is the planned backend's, in the planned precision."""
    prove, threads = BACKENDS[p.model.backend].judge, p.instance.cores_per_worker
    proof = prove(_get(s, "graph"), precision=p.model.precision, threads=threads, off=p.off)
    return proof.expected, proof.actual, proof.good


def _self_check(_: Planned, s: SeenWorker) -> Pair:
    """The optimised model gave the eager model's answers when it was loaded."""
    error, tolerance = (_get(s, "self_check").get(key) for key in ("relative_error", "tolerance"))
    if not isinstance(error, float | int) or not isinstance(tolerance, float | int):
        return "error within tolerance", "unknown"
    return f"error ≤ {tolerance:.3g}", f"{error:.2g}", error <= tolerance


# ---- the table: first what makes the rest meaningless, then from the machine inwards to the model

_RECONFIGURE = f"config.properties was changed behind the plan's back? {RESTART}"
_NEW_PROXY = f"haproxy.cfg was changed behind the plan's back? {RESTART}"
_YAML = f"config.properties, or a YAML file in the archive, says something else: {RESTART}"
_LINK = f"the launcher found no library to preload: {RESTART} makes the link again"
_OPTIONS = f"the plan's value did not reach the handler (CPU_KIT_OPTIONS), or the archive is older: {RESTART}"
_LOAD = f"see the worker's `loaded` line in logs/model_log.log, then {RESTART}"
_RETURNS = "TorchServe starts a dead worker again within 30 s"
TRY_AGAIN = "try again when its workers are free to answer"
_LOGGED = "what TorchServe logged at its start (server.json)"
_MODEL, _BATCH, _TIMEOUTS = "GET /models/<name>", "{} within {} ms", "response {} s, startup {} s"
_UNPROVEN = (
    "precision, graph, channels_last, load steps, self-check: no describe is sent to an archive that others "
    "made. TorchServe applies ipex.optimize to eager models only; TorchScript archives are served as they are"
)


def _own(name: str, look: Callable[[Planned, Any], Pair], fix: str | Callable[[Any], str]) -> Row:
    """Of what a worker of this kit makes of its model, by its own account."""
    return Row(name, WORKER, look, "describe", fix, describe=True, kit=True)


# fmt: off
ROWS: tuple[Row, ...] = (
    Row("supervisor", PROXY, lambda p, s: ("ready", s.phase),
        "run/supervisor.json, and its process", RESTART),
    Row("plan", PROXY, lambda p, s: ("as started", s.plan or "as started"),
        "digests: of plan.json, in server.json", f"the server follows the old plan: {RESTART}"),
    Row("haproxy.cfg", PROXY, lambda p, s: ("as started", s.configuration or "as started"),
        "digests: of the file, in server.json", _NEW_PROXY),
    Row("proxy addresses", PROXY, _addresses, "TCP sockets of HAProxy and the supervisor", _NEW_PROXY),
    Row("proxy answers", PROXY,
        lambda p, s: ({name: status for name, (status, _) in PROXY_PROBES.items()}, s.answers),
        "8 calls, as of an untrusted client", _NEW_PROXY),
    Row("maxconn", PROXY, _maxconn, "HAProxy's show stat", RESTART),
    Row("token", PROXY, lambda p, s: ("mode 600", s.token), "run/token", "chmod 600 run/token"),

    Row("TorchServe", INSTANCE, lambda p, s: ("running", "running" if s.running else "not running"),
        "/proc/*/environ (CPU_KIT_RUN)", "make serve", always=True),
    Row("server's CPUs", INSTANCE, _server_cpus, "affinity of java's threads", RESTART),
    Row("orphaned workers", INSTANCE, lambda p, s: ((), [f"pid {pid}" for pid in s.orphans]
        if s.orphans is not None else Unknown("TorchServe does not say which workers it knows")),
        f"/proc/*/environ (CPU_KIT_RUN), {_MODEL}", always=True,
        fix=lambda s: f"kill -9 {' '.join(map(str, s.orphans or ()))}, or {RESTART}"),
    Row("config.properties", INSTANCE, _properties,
        "digests: of plan.json's rendering, in server.json, of the file", _RECONFIGURE),
    Row("JVM flags", INSTANCE, lambda p, s: (sorted(p.instance.java.flags), s.flags),
        f"/proc/PID/cmdline and environ of java ({', '.join(JAVA_VARIABLES)})",
        f"{_RECONFIGURE}; and unset {', '.join(JAVA_VARIABLES)}"),
    Row("addresses", INSTANCE, _addresses, "TCP sockets of all its processes", _RECONFIGURE),
    Row("sockets", INSTANCE, lambda p, s: (f"{', '.join(SOCKETS)}; folder of mode 700", s.sockets),
        "the temporary folder of the instance", f"chmod 700 that folder, or {RESTART}"),
    Row("gRPC", INSTANCE, lambda p, s: ("rejected", s.answers["gRPC"]),  # anybody here can call it
        "a call of each: grpc-status 12 is UNIMPLEMENTED", f"make setup && {RESTART}"),
    Row("model API", INSTANCE, lambda p, s: (  # nobody registers models, unless that is planned
        "on" if p.instance.properties["enable_model_api"] == "true" else "off", s.answers["model API"]),
        "POST /models", _RECONFIGURE),
    Row("allowed_urls", INSTANCE, _logged("Allowed Urls", "allowed_urls"), _LOGGED, _RECONFIGURE),
    Row("archives install", INSTANCE,
        _logged("Custom python dependency for model allowed", "install_py_dep_per_model"), _LOGGED,
        _RECONFIGURE),
    Row("request size", INSTANCE, lambda p, s: (
        f"{p.instance.properties['max_request_size']} bytes: 100; one more: 413", s.answers["request size"]),
        "POST with Content-Length and Expect: 100-continue, no body", _RECONFIGURE),
    Row("response size", INSTANCE,
        _logged("Maximum Response Size", "max_response_size", _TORCHSERVES_RESPONSE_BYTES), _LOGGED,
        _RECONFIGURE),

    Row("workers", MODEL, lambda p, s: (f"{p.model.workers} ready",
        s.problem or f"{s.ready} ready" + (f" of {s.listed}" if s.listed != s.ready else "")),
        _MODEL, f"{_RETURNS}; else see make status, {RESTART}"),
    Row("ranks", MODEL, _ranks, "launcher's --rank and thread affinity",
        f"workers share cores while others idle (a scale call changes ranks): {RESTART}"),
    Row("batch", MODEL, lambda p, s: (_BATCH.format(p.model.batch_size, p.model.max_batch_delay_ms),
        _BATCH.format(*map(s.described.get, ("batchSize", "maxBatchDelay")))), _MODEL, _YAML),
    Row("queue", MODEL, lambda p, s: (
        f"{p.instance.queue_size} requests", f"{s.queue_size} requests" if s.queue_size else None),
        f"{_MODEL}: jobQueueStatus", _YAML),
    Row("time-outs", MODEL, lambda p, s: (
        _TIMEOUTS.format(p.model.response_timeout_s, p.model.startup_timeout_s),
        _TIMEOUTS.format(*map(s.described.get, ("responseTimeout", "startupTimeout")))), _MODEL, _YAML),
    Row("archive files", MODEL, lambda p, s: ("as built", s.files or "as built"),
        "tmp/models of the instance, the archive", f"{RESTART} unpacks the archive again"),
    Row("computation", MODEL, lambda p, s: ("as planned", Unknown(_UNPROVEN)), "nothing", "", kit=False),

    Row("process", WORKER, lambda p, s: ("alive",
        "gone" if s.thread_cpus is None else "stopped" if s.stopped else "alive"),
        "/proc/PID/task, /proc/PID/stat", always=True, fix=lambda s:
        f"somebody stopped it: kill -CONT {s.pid}, or {RESTART}" if s.stopped else
        f"{_RETURNS}; if it does not: {RESTART}"),
    Row("describe", WORKER,
        lambda p, s: ("answered", s.describe if isinstance(s.describe, str) else "answered"),
        f"{_MODEL}?customized=true", kit=True, fix=lambda s:
        TRY_AGAIN if isinstance(s.describe, Unknown) else f"the worker is stuck: try again, else {RESTART}"),
    _own("archive", _archive, lambda s:
        f"the archive was built again after the start: {RESTART}" if s.archive_id else
        "the running workers have copies of their own, but nothing starts again: make models"),
    Row("launcher", WORKER, lambda p, s: ("none planned",) * 2 if not p.instance.launched else
        ("above the worker", "above the worker" if s.launcher else "none: it was lost, or never there"),
        "/proc/PID/stat (parent)", f"TorchServe does not see such a worker end: {RESTART}"),
    Row("CPU affinity", WORKER, _affinity, "/proc/PID/task/*/status",
        f"if the worker was moved: {RESTART}; if it never was pinned, look for `run_cpu is not available` in "
        "logs/ts_log.log and for the launcher's lines in logs/model_log.log"),
    Row("memory policy", WORKER, _memory, "/proc/PID/numa_maps",
        f"numactl needs set_mempolicy: give the container CAP_SYS_NICE, then {RESTART}"),
    Row("no throttling", WORKER, _throttling, "throttled time in cpu.stat",
        "fewer workers or cores (make serve WORKERS=…), or a larger CPU quota; others may share it"),
    Row("allocator", WORKER, _allocator, "/proc/PID/maps, describe (dladdr of malloc)",
        f"{_LINK}; or another library's malloc comes first: see LD_PRELOAD in the environment",
        describe=True),
    Row("allocator options", WORKER, _allocator_options, "describe (mallctl opt.*)",
        f"MALLOC_CONF did not reach jemalloc, or it knows no such option: {RESTART}", describe=True),
    Row("OpenMP", WORKER, _openmp, "/proc/PID/maps, describe (dladdr of GOMP_parallel)",
        f"{_LINK}; libiomp5.so comes with the package intel-openmp: make setup", describe=True),
    Row("threads", WORKER, _threads, "/proc/PID/environ, describe",
        f"OMP_NUM_THREADS is set by the launcher, the others by the handler: {RESTART}", describe=True),
    Row("environment", WORKER, _environment, "/proc/PID/environ",
        f"something between the plan and the worker changed them: {RESTART}"),
    _own("limits", lambda p, s: (p.model.limits or "the handler's own",  # what one request may cost
        {name: _get(s, "limits").get(name, "not known") for name in p.model.limits} or "the handler's own"),
        _OPTIONS),
    _own("precision", lambda p, s: (p.model.precision, str(_get(s, "precision"))), _OPTIONS),
    _own("backend", _backend, _OPTIONS),
    _own("load steps", _steps, _LOAD),
    _own("channels_last", _channels_last, _LOAD),
    _own("packing", _packing, _LOAD),
    _own("graph", _graph, _LOAD),
    _own("self-check", _self_check, "serve with PRECISION=fp32, or check the weights"),
)
# fmt: on
