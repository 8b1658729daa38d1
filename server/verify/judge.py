"""What rows of verify compare where no plain field is it, and whether they passed where equality is not it.

`p` is what is planned for the thing that a row is about, and `s` what was seen of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from config.files import render_id_list
from config.plan import InstancePlan, ModelPlan, Plan
from config.render import render_properties
from handlers.backends.catalogue import BACKENDS
from server.ports import list_ports
from server.verify.collect import SeenInstance, SeenModel, SeenProxy, SeenWorker, Unknown, digest
from server.verify.probes import GRPC, LARGER_REQUEST, LARGEST_REQUEST, REGISTER, render_address

Judged = tuple[str, str, bool | None]
"""Expected, actual, and whether the row has passed; None: whether they are equal."""
UNREADABLE = "cannot be read"


@dataclass(frozen=True, kw_only=True)
class Planned:
    """The plan, and the part of it that a row is about."""

    plan: Plan
    name: str = ""  # of the instance
    instance: InstancePlan = None  # type: ignore[assignment]  # rows of the proxy have none
    model: ModelPlan = None  # type: ignore[assignment]  # nor rows of an instance this


# ---- the proxy, an instance


def see_plan(_: Planned, s: SeenProxy) -> str:
    if s.plan_at_start is None:
        return Unknown("server.json does not say what it was started from")
    return "as started" if s.plan_now == s.plan_at_start else "plan.json has changed since"


def see_proxy_config(_: Planned, s: SeenProxy) -> str:
    same = s.configuration_now is not None and s.configuration_now == s.configuration_at_start
    return "as rendered at the start" if same else "changed since the start"


def maxconn(p: Planned, s: SeenProxy) -> Judged:
    """Requests that HAProxy hands over at once, by <backend>/<instance>."""
    limits: dict[str, int] = {}
    for name, instance in p.plan.instances.items():
        for model, one in instance.models.items():
            limits |= {f"{model}/{name}": one.maxconn, f"{model}.large/{name}": one.large_maxconn}
    return render(limits), render({name: s.limits.get(name, "?") for name in limits}), None


def plan_addresses(p: Planned) -> str:
    return _join(sorted(render_address(*at) for at in list_ports(p.plan, p.name).values()))


def see_addresses(_: Planned, s: SeenProxy | SeenInstance) -> str:
    """A process that should not listen, such as a worker, is named."""
    found, main = s.listening, ("HAProxy", "TorchServe")
    if found is None:
        return UNREADABLE
    return _join(sorted(at if role in main else f"{at} ({role})" for at, role in found.items())) or "none"


JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
"""The JVM reads them, too (the java launcher's documentation); the last one wins over its command line."""
_ADDED = ("-Dmodel_server_home=", "-Dlog4j.configurationFile=", "-Djava.io.tmpdir=")
"""What the torchserve command puts before the flags of config.properties (ts/model_server.py)."""
TORCHSERVES_RESPONSE_BYTES = "6553500"
_BUSY = {"429", "503"}
"""Not a word about the question: there was no room for it."""
_UNIMPLEMENTED = "12"


def server_cpus(p: Planned, s: SeenInstance) -> Judged:
    """Confined, TorchServe stays on its CPUs: beyond them a quota would be overdrawn. Else it may use all."""
    confined, actual = p.instance.server_cpus, render_cpus(s.cpus) or UNREADABLE
    if confined is None:
        return "not confined", actual, {*p.plan.machine["cpus_allowed"]} <= {*s.cpus}
    return render_cpus(confined), actual, None


def see_orphans(_: Planned, s: SeenInstance) -> str:
    if s.orphans is None:
        return Unknown("TorchServe does not say which workers it knows")
    return _join(f"pid {pid}" for pid in s.orphans) or "none"


def see_properties(p: Planned, s: SeenInstance) -> str:
    """When TorchServe read config.properties, and now."""
    if s.properties_at_start is None:
        return Unknown("server.json does not say what TorchServe read")
    rendered = digest(render_properties(p.plan, p.name).encode("utf-8"))
    wrong = ["not the plan's when TorchServe read it"] if s.properties_at_start != rendered else []
    if s.properties_now != s.properties_at_start:
        wrong.append("gone" if s.properties_now is None else "changed since the start")
    return "; ".join(wrong) or "as planned"


def see_flags(p: Planned, s: SeenInstance) -> str:
    """From the command line, all before the class path; none may be given by the environment."""
    if s.environment is None:
        return UNREADABLE
    words = s.command[1 : s.command.index("-cp") if "-cp" in s.command else None]
    flags = [word for word in words if not word.startswith(_ADDED)]
    shown = p.instance.java.flags if sorted(flags) == sorted(p.instance.java.flags) else flags
    beside = [f"{name}={s.environment[name]}" for name in JAVA_VARIABLES if s.environment.get(name)]
    return "; ".join([" ".join(shown) or "none", *beside])


def see_grpc(_: Planned, s: SeenInstance) -> str:
    """Everybody on this machine can call it."""
    answers = {name: s.answers.get(name, "not called") for name in GRPC}
    return render({name: one for name, one in answers.items() if one != _UNIMPLEMENTED}) or "rejected"


def model_api(p: Planned, s: SeenInstance) -> Judged:
    """Nobody registers models in the running server, unless that is planned."""
    expected = "on" if p.instance.properties["enable_model_api"] == "true" else "off"
    answer = s.answers.get(REGISTER, "not called")
    live = {"403": "off", "405": "off", "400": "on"}.get(answer, answer)
    return expected, Unknown(answer) if answer in _BUSY else live, None


def request_size(p: Planned, s: SeenInstance) -> Judged:
    """A request as large as planned is let in, and one byte more is not."""
    text = f"{p.instance.properties['max_request_size']} bytes: {{}}; one more: {{}}"
    answers = [s.answers.get(name, "not called") for name in (LARGEST_REQUEST, LARGER_REQUEST)]
    actual = text.format(*answers)
    return text.format("100", "413"), Unknown(actual) if _BUSY & {*answers} else actual, None


def see_logged(s: SeenInstance, name: str) -> str:
    if not s.configuration:
        return Unknown("server.json does not say what TorchServe logged")
    live = s.configuration.get(name, "not logged")
    # A Java list of what stood between the commas.
    return live[1:-1].replace(", ", ",") if live.startswith("[") else live


# ---- a model


def see_queue(p: Planned, s: SeenModel) -> str:
    """Of several readings of a busy queue, one of the planned size is proof."""
    size = p.instance.queue_size if p.instance.queue_size in s.queue_sizes else max(s.queue_sizes, default=0)
    return f"{size} requests" if s.queue_sizes else "unknown: TorchServe does not describe the model"


def ranks(p: Planned, s: SeenModel) -> Judged:
    """Each rank's CPUs have exactly one worker of the model."""
    if not p.instance.pinned:
        return "not pinned", "not pinned", True
    cpus = p.instance.worker_cpus
    found = [(rank, worker) for worker in s.workers if (rank := _find_rank(p, worker)) is not None]
    placed = sorted(rank for rank, worker in found if _join_cpus(worker) == {*cpus[rank]})
    texts = [f"{rank} on {render_cpus(own)}" for rank, own in enumerate(cpus)]
    actual = _join(texts[rank] for rank in placed) or "none"
    return _join(texts), actual, actual == _join(texts)


# ---- a worker: where it runs

THROTTLED_MS = 1.0
"""Of each period of 100 ms. The kernel's bookkeeping takes some microseconds from a group that just fills its
quota; one thread too many takes tens of milliseconds."""
SHARED_THROTTLED_MS = 50.0
"""The same for each CPU of the quota where CPUs are shared: what runs beside the workers (Java, HAProxy) has
others than theirs then, and what it takes from a full quota is throttled. The time of all CPUs is summed
(cpu.stat): with a quota of one a thread too many loses 100 ms."""


def _find_rank(p: Planned, s: SeenWorker) -> int | None:
    """The rank the launcher was given; without one on its command line, that whose CPUs the worker has."""
    planned, used = [{*cpus} for cpus in p.instance.worker_cpus], _join_cpus(s)
    if s.launcher and "--rank" in s.launcher[:-1]:
        rank = int(s.launcher[s.launcher.index("--rank") + 1])
        return rank if rank < len(planned) else None
    if all(cpus == planned[0] for cpus in planned):  # one worker, or none pinned
        return 0
    return planned.index(used) if used in planned else None


def _join_cpus(s: SeenWorker) -> set[int]:
    return {cpu for cpus in (s.thread_cpus or {}).values() for cpu in cpus}


def affinity(p: Planned, s: SeenWorker) -> Judged:
    """Every thread stays on the rank's CPUs, and together they may use all of them.

    Threads of an OpenMP team are bound to one CPU each (KMP_AFFINITY granularity=fine), so no one thread need
    be allowed on all CPUs of its rank. Where nothing is pinned each must be allowed on all.
    """
    rank, used = _find_rank(p, s), _join_cpus(s)
    threads = [{*cpus} for cpus in (s.thread_cpus or {}).values()]
    cpus = set() if rank is None else {*p.instance.worker_cpus[rank]}
    actual = f"{render_cpus(used)}, {len(threads)} threads"
    if p.instance.pinned:
        outside = sum(not thread <= cpus for thread in threads)
        actual += f", {outside} may leave the plan's CPUs" if outside else ""
        return render_cpus(cpus) or "the CPUs of one rank", actual, used == cpus
    expected = "not pinned: CPUs are shared under a quota" if _find_quota(p) else "not pinned"
    if bound := sum(thread != cpus for thread in threads):
        return expected, f"{actual}, {bound} are bound", False
    return expected, f"{expected}; {actual}", True


def memory(p: Planned, s: SeenWorker) -> Judged:
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
        return expected, reason if nodes else Unknown(reason), False
    allowed = {expected, "local"}
    if not p.model.kit or BACKENDS[p.model.backend].binds_memory:
        allowed |= {f"bind:{core['node']}" for core in p.plan.machine["cores"] if core["cpu"] in cpus}
    actual = _join(f"{policy} ×{count}" for policy, count in sorted(s.memory_policies.items()))
    return expected, actual, expected in s.memory_policies and {*s.memory_policies} <= allowed


def _find_quota(p: Planned) -> float | None:
    """CPUs of this instance's part of the quota; None where there is none, or it takes nothing away."""
    quota = p.plan.machine["quota_cpus"]
    if quota is None or quota >= len(p.plan.machine["cpus_allowed"]):
        return None
    cores = {name: len(one.worker_cpus) * one.cores_per_worker for name, one in p.plan.instances.items()}
    return float(quota) * cores[p.name] / sum(cores.values())


def throttling(p: Planned, s: SeenWorker) -> Judged:
    """The kernel took no time from the worker for using up a CPU quota since it was ready."""
    quota, lost = _find_quota(p), s.throttling
    limit = SHARED_THROTTLED_MS * quota if quota and not p.instance.pinned else THROTTLED_MS
    expected = f"at most {limit:g} ms a period"
    if lost is None:
        reason = "no control group here counts it"
        return expected, reason if quota else Unknown(f"{reason}; no quota either"), False
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


def _find(library: re.Pattern[str], s: SeenWorker) -> tuple[set[str], set[str]]:
    """Paths that are mapped, and that LD_PRELOAD names."""
    preloads = (s.environment or {}).get("LD_PRELOAD", "").split(":")
    return {*filter(library.search, s.libraries or ())}, {*filter(library.search, preloads)}


def allocator(p: Planned, s: SeenWorker) -> Judged:
    """The planned one is mapped and no other is; malloc resolves to it, or else it is preloaded."""
    libraries, (mapped, preloaded) = p.plan.libraries, _find(_ALLOCATORS, s)
    wanted = {str(Path(libraries.allocator_path).resolve())} if libraries.allocator_path else set()
    how, name, live = "malloc is", libraries.allocator, str(get(s, "allocator").get("name") or "unknown")
    if not p.model.kit:
        how, name, live = "preloaded:", libraries.allocator_link or "none", _join(sorted(preloaded)) or "none"
    expected, actual = f"{how} {name}; mapped: {_name(wanted)}", f"{how} {live}; mapped: {_name(mapped)}"
    return expected, actual, s.libraries is not None and mapped == wanted and live == name


def openmp(p: Planned, s: SeenWorker) -> Judged:
    """Parallel regions resolve to the planned one, or else it is preloaded; torch's libgomp may be mapped."""
    name, path, (mapped, preloaded) = p.plan.libraries.openmp, p.plan.libraries.openmp_path, _find(_OPENMP, s)
    wanted = str(Path(path).resolve()) if path else next((one for one in mapped if "libgomp" in one), "")
    if not p.model.kit:
        actual = f"preloaded: {_join(sorted(preloaded)) or 'none'}; mapped: {_name(mapped)}"
        expected = f"preloaded: {path or 'none'}; mapped: {_name({path}) if path else 'libgomp'}"
        return expected, actual, wanted in mapped and preloaded == ({path} if path else set())
    live, library = (get(s, "openmp").get(key) for key in ("name", "library"))
    right = library == wanted if path else True
    file = Path(library).name if library and right else library  # another of the same name: its whole path
    actual = f"{live or 'unknown'} ({file or 'no answer'})"
    return f"{name} ({_name({path})})" if path else name, actual, live == name and library in mapped and right


def _parse_options(malloc_conf: str) -> dict[str, str]:
    """Of jemalloc: "a:1,b:true" is {"a": "1", "b": "true"}."""
    return {name: value for name, _, value in (one.partition(":") for one in malloc_conf.split(",")) if name}


def allocator_options(p: Planned, s: SeenWorker) -> Judged:
    """jemalloc runs with the options of the plan's MALLOC_CONF by its own account, or has the variable."""
    uses, conf = p.plan.libraries.allocator == "jemalloc", p.instance.environment.get("MALLOC_CONF", "")
    options, live = _parse_options(conf if uses else ""), get(s, "allocator").get("options") or {}
    if not p.model.kit:
        live = _parse_options((s.environment or {}).get("MALLOC_CONF", ""))
    elif 0 < int(options.get("oversize_threshold", 0)) < _SMALLEST_LARGE_SIZE:
        options["oversize_threshold"] = "0"
    actual = {name: str(live[name]).lower() for name in options if name in live}
    return render(options) or "none", render(actual) or "none", None


def _merge_environment(p: Planned) -> dict[str, str | tuple[str, ...]]:
    return {**p.instance.environment, **p.instance.worker_environment}


def environment(p: Planned, s: SeenWorker) -> Judged:
    """Every planned variable has its value."""
    expected, wrong = _merge_environment(p), []
    for name, value in expected.items():
        live = (s.environment or {}).get(name)
        if not isinstance(value, str):  # paths, and others may stand beside them
            missing = [path for path in value if path not in (live or "").split(":")]
            wrong += [f"{name} lacks {_join(missing)}"] if missing else []
        elif live != value:
            wrong.append(f"{name}: expected {value}, actual {'nothing' if live is None else live}")
    all_right = f"{len(expected)} variables"
    return all_right, UNREADABLE if s.environment is None else "; ".join(wrong) or all_right, None


def threads(p: Planned, s: SeenWorker) -> Judged:
    """OpenMP and PyTorch use as many threads as the worker has cores."""
    expected = {"OMP_NUM_THREADS": _merge_environment(p).get("OMP_NUM_THREADS", "not set")}
    actual = {"OMP_NUM_THREADS": (s.environment or {}).get("OMP_NUM_THREADS", "not set")}
    if p.model.kit:
        live = get(s, "threads")
        expected |= {"intra-op": str(p.instance.cores_per_worker), "inter-op": str(_INTER_OP_THREADS)}
        actual |= {"intra-op": live.get("intra_op", "?"), "inter-op": live.get("inter_op", "?")}
    return render(expected), render(actual), None


# ---- a worker: its model, by its own account

_NO_STEPS = {"packing", "buckets"}
"""Packing has a row of its own; that buckets reached the worker is seen in CPU_KIT_OPTIONS."""


def get(s: SeenWorker, section: str) -> Any:
    """Of the worker's answer; {} where it does not say."""
    return (s.describe.get(section) if isinstance(s.describe, Mapping) else None) or {}


def limits(p: Planned, s: SeenWorker) -> Judged:
    """What one request may cost, as the handler applies it."""
    if not p.model.limits:
        return "the handler's own", "the handler's own", None
    live = {name: get(s, "limits").get(name, "not known") for name in p.model.limits}
    return render(p.model.limits), render(live), None


def archive(_: Planned, s: SeenWorker) -> Judged:
    """The worker serves the archive that is in the model store now."""
    live = str(get(s, "archive_id") or "unknown")
    if not s.archive_id:
        return "in the store", "gone from the store, or damaged", False
    return s.archive_id[:12], live[:12], live == s.archive_id


def backend(p: Planned, s: SeenWorker) -> Judged:
    name, version = (get(s, "backend").get(key) for key in ("name", "version"))
    actual = f"{name or 'unknown'} ({version or 'not installed'})"
    return p.model.backend, actual, name == p.model.backend and bool(version)


def _list_off(model: ModelPlan) -> frozenset[str]:
    """Load steps that are left out: only a traced model can be frozen."""
    return frozenset((*model.off, "freeze") if "trace" in model.off else model.off)


def steps(p: Planned, s: SeenWorker) -> Judged:
    """Every load step was applied, but for those the plan leaves out or the model has no use for."""
    off, found, wrong = _list_off(p.model) - _NO_STEPS, get(s, "steps"), []
    for step in found:
        if step["status"] not in ("off" if step["name"] in off else "applied", "not applicable"):
            why = f" ({step['reason']})" if step.get("reason") else ""
            wrong.append(f"{step['name']} {step['status']}{why}")
    expected = f"all but {_join(sorted(off))}" if off else "all applied"
    return expected, "; ".join(wrong) or (expected if found else "unknown"), bool(found) and not wrong


def channels_last(p: Planned, s: SeenWorker) -> Judged:
    """Convolution weights and input are channels_last, or not where that is left out."""
    found = get(s, "memory_format")
    if found.get("applicable") is False:
        return "not applicable", "not applicable", True
    total, done, layout = (found.get(name) for name in ("convolutions", "channels_last_weights", "input"))
    actual = f"{done} of {total} convolutions, input {layout}" if found else "unknown"
    if "channels_last" in p.model.off:  # weights of 1×1 kernels count as both layouts: some always look done
        return "off: not all, input contiguous", actual, done != total and layout == "contiguous"
    # A detector makes its batch of images itself.
    good = bool(total) and done == total and layout in ("channels_last", "not 4-D")
    return "all convolutions, input", actual, good


def packing(p: Planned, s: SeenWorker) -> Judged:
    """Texts share rows, where the model allows it and the plan does not leave it out."""
    found, share = get(s, "packing"), get(s, "packing_efficiency").get("share")
    if found.get("applicable") is False:
        why = f"not applicable: {found.get('reason')}"
        return why, why, True
    expected = "off" if _NO_STEPS & {*p.model.off} else "on"
    actual = {True: "on", False: "off"}.get(found.get("on"), "unknown")
    efficiency = f", packing efficiency {share}" if share else ""
    return expected, actual + efficiency, actual == expected


def graph(p: Planned, s: SeenWorker) -> Judged:
    """What executes is the planned backend's, in the planned precision."""
    prove, threads = BACKENDS[p.model.backend].judge, p.instance.cores_per_worker
    proof = prove(get(s, "graph"), precision=p.model.precision, threads=threads, off=_list_off(p.model))
    return proof.expected, proof.actual, proof.good


def self_check(_: Planned, s: SeenWorker) -> Judged:
    """The optimised model gave the eager model's answers when it was loaded."""
    error, tolerance = (get(s, "self_check").get(key) for key in ("relative_error", "tolerance"))
    if not isinstance(error, float | int) or not isinstance(tolerance, float | int):
        return "error within tolerance", "unknown", False
    return f"error ≤ {tolerance:.3g}", f"{error:.2g}", error <= tolerance


def render(values: Mapping[str, Any]) -> str:
    return _join(f"{name} {value}" for name, value in values.items())


def render_cpus(cpus: Iterable[int]) -> str:
    """Empty for none."""
    return f"CPU {numbers}" if (numbers := render_id_list(cpus)) else ""


def _join(texts: Iterable[str]) -> str:
    return ", ".join(texts)


def _name(paths: Iterable[str]) -> str:
    return _join(sorted(Path(path).name for path in paths)) or "none"
