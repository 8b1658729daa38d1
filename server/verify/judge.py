"""What rows of verify compare where a plain field does not do, and whether they passed where equality does not.

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

Judged = tuple[str, str, bool]
"""Expected, actual, and whether the row has passed."""
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


def list_limits(plan: Plan) -> dict[str, int]:
    """<backend>/<instance>, as HAProxy has it → requests that are handed over at once."""
    limits = {}
    for name, instance in plan.instances.items():
        for model, one in instance.models.items():
            limits |= {f"{model}/{name}": one.maxconn, f"{model}.large/{name}": one.large_maxconn}
    return limits


def plan_addresses(p: Planned) -> str:
    return _join(sorted(render_address(*at) for at in list_ports(p.plan, p.name).values()))


def see_addresses(_: Planned, s: SeenProxy | SeenInstance) -> str:
    """A process that should not listen, such as a worker, is named."""
    found, main = s.listening, ("HAProxy", "TorchServe")
    if found is None:
        return UNREADABLE
    return _join(sorted(at if role in main else f"{at} ({role})" for at, role in found.items())) or "none"


JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
"""The JVM reads them besides its command line (the java launcher's documentation); the last one wins over it."""
_ADDED = ("-Dmodel_server_home=", "-Dlog4j.configurationFile=", "-Djava.io.tmpdir=")
"""What the torchserve command puts before the flags of config.properties (ts/model_server.py)."""
TORCHSERVES_RESPONSE_BYTES = "6553500"
_BUSY = {"429", "503"}
"""Not a word about the question: there was no room for it."""
_UNIMPLEMENTED = "12"


def see_server_cpus(p: Planned, s: SeenInstance) -> str:
    """Confined, TorchServe stays on its CPUs: beyond them a quota would be overdrawn. Else it may use all."""
    if p.instance.server_cpus is None and {*p.plan.machine["cpus_allowed"]} <= {*s.cpus}:
        return "not confined"
    return render_cpus(s.cpus) or UNREADABLE


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
    """From the command line, all before the class path that the plan may have given; and from the environment."""
    if s.environment is None:
        return UNREADABLE
    words = s.command[1 : s.command.index("-cp") if "-cp" in s.command else None]
    flags = [word for word in words if not word.startswith(_ADDED)]
    shown = p.instance.java.flags if sorted(flags) == sorted(p.instance.java.flags) else flags
    beside = [f"{name}={s.environment[name]}" for name in JAVA_VARIABLES if s.environment.get(name)]
    return "; ".join([" ".join(shown) or "none", *beside])


def see_sockets(_: Planned, s: SeenInstance) -> str:
    """No other user may reach them: predictions need no token there."""
    owner = "" if s.sockets_own else " of another user"
    return f"{_join(s.sockets) or 'none'} in a folder of mode {s.sockets_mode:o}{owner}"


def see_grpc(_: Planned, s: SeenInstance) -> str:
    """Everybody on this machine can call it."""
    answers = {name: s.answers.get(name, "not called") for name in GRPC}
    return render({name: status for name, status in answers.items() if status != _UNIMPLEMENTED}) or "rejected"


def see_model_api(_: Planned, s: SeenInstance) -> str:
    answer = s.answers.get(REGISTER, "not called")
    return Unknown(answer) if answer in _BUSY else {"403": "off", "405": "off", "400": "on"}.get(answer, answer)


def plan_sizes(p: Planned, answers: Iterable[str] = ("100", "413")) -> str:
    return "{} bytes: {}; one more: {}".format(p.instance.properties["max_request_size"], *answers)


def see_sizes(p: Planned, s: SeenInstance) -> str:
    answers = [s.answers.get(name, "not called") for name in (LARGEST_REQUEST, LARGER_REQUEST)]
    return Unknown(_join(answers)) if _BUSY & {*answers} else plan_sizes(p, answers)


def see_logged(s: SeenInstance, name: str) -> str:
    if not s.configuration:
        return Unknown("server.json does not say what TorchServe logged")
    live = s.configuration.get(name, "not logged")
    # A Java list of what stood between the commas.
    return live[1:-1].replace(", ", ",") if live.startswith("[") else live


# ---- a model

_NOT_DESCRIBED = "unknown: TorchServe does not describe the model"


def see_workers(_: Planned, s: SeenModel) -> str:
    return s.problem or f"{s.ready} ready" + (f" of {s.listed}" if s.listed != s.ready else "")


def see_described(s: SeenModel, text: str, *keys: str) -> str:
    return text.format(*map(s.described.get, keys)) if s.described else _NOT_DESCRIBED


def see_queue(p: Planned, s: SeenModel) -> str:
    """Of several readings of a busy queue, one of the planned size is proof."""
    size = p.instance.queue_size if p.instance.queue_size in s.queue_sizes else max(s.queue_sizes, default=0)
    return f"{size} requests" if s.queue_sizes else _NOT_DESCRIBED


def ranks(p: Planned, s: SeenModel) -> Judged:
    """Each rank's CPUs have exactly one worker of the model."""
    if not p.instance.pinned:
        return "not pinned", "not pinned", True
    cpus = p.instance.worker_cpus
    found = [(rank, worker) for worker in s.workers if (rank := _find_rank(p, worker)) is not None]
    placed = sorted(rank for rank, worker in found if _join_cpus(worker) == {*cpus[rank]})
    expected, actual = (_join(f"{rank} on {render_cpus(cpus[rank])}" for rank in of) for of in (range(len(cpus)), placed))
    return expected, actual or "none", expected == actual


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
    rank, used, threads = _find_rank(p, s), _join_cpus(s), [{*cpus} for cpus in (s.thread_cpus or {}).values()]
    cpus = set() if rank is None else {*p.instance.worker_cpus[rank]}
    actual = f"{render_cpus(used)}, {len(threads)} threads"
    if p.instance.pinned:
        outside = sum(not thread <= cpus for thread in threads)
        actual += f", {outside} may leave the plan's CPUs" if outside else ""
        return render_cpus(cpus) or "the CPUs of one rank", actual, used == cpus
    bound = sum(thread != cpus for thread in threads)
    expected = "not pinned: CPUs are shared under a quota" if _find_quota(p) else "not pinned"
    return expected, f"{actual}, {bound} are bound" if bound else f"{expected}; {actual}", bool(threads) and not bound


def memory(p: Planned, s: SeenWorker) -> Judged:
    """Memory is bound to the rank's NUMA nodes, or not at all where the plan does not bind.

    A library may ask for single mappings `local` to the CPU (one of 32 MiB is seen in every worker), and a
    backend's runtime for the node it computes on: the same for a pinned thread, so that is no difference. What
    runs in an archive that others made is not known.
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
    mapped, preloaded = ({one for one in files if library.search(one)} for files in (s.libraries or (), preloads))
    return mapped, preloaded


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
    """Parallel regions resolve to the planned library, or else it is preloaded; libgomp may be mapped too (torch
    brings it)."""
    name, path, (mapped, preloaded) = p.plan.libraries.openmp, p.plan.libraries.openmp_path, _find(_OPENMP, s)
    wanted = str(Path(path).resolve()) if path else next((one for one in sorted(mapped) if "libgomp" in one), "")
    if not p.model.kit:
        actual = f"preloaded: {_join(sorted(preloaded)) or 'none'}; mapped: {_name(mapped)}"
        expected = f"preloaded: {path or 'none'}; mapped: {_name({path}) if path else 'libgomp'}"
        return expected, actual, wanted in mapped and preloaded == ({path} if path else set())
    live, library = (get(s, "openmp").get(key) for key in ("name", "library"))
    actual = f"{live or 'unknown'} ({Path(library).name if library else 'no answer'})"
    right = library == wanted if path else True
    return f"{name} ({_name({path})})" if path else name, actual, live == name and library in mapped and right


def _parse_options(malloc_conf: str) -> dict[str, str]:
    """Of jemalloc: "a:1,b:true" is {"a": "1", "b": "true"}."""
    return {name: value for name, _, value in (one.partition(":") for one in malloc_conf.split(",")) if name}


def plan_options(p: Planned) -> str:
    """What jemalloc says of itself under the plan's MALLOC_CONF; or the variable."""
    uses = p.plan.libraries.allocator == "jemalloc"
    options = _parse_options(p.instance.environment.get("MALLOC_CONF", "") if uses else "")
    if p.model.kit and 0 < int(options.get("oversize_threshold", 0)) < _SMALLEST_LARGE_SIZE:
        options["oversize_threshold"] = "0"
    return render(options) or "none"


def see_options(p: Planned, s: SeenWorker) -> str:
    live = get(s, "allocator").get("options") or {}
    if not p.model.kit:
        live = _parse_options((s.environment or {}).get("MALLOC_CONF", ""))
    names = _parse_options(plan_options(p).replace(", ", ",").replace(" ", ":"))
    return render({name: str(live[name]).lower() for name in names if name in live}) or "none"


def merge_environment(p: Planned) -> dict[str, str | tuple[str, ...]]:
    return {**p.instance.environment, **p.instance.worker_environment}


def see_environment(p: Planned, s: SeenWorker) -> str:
    if s.environment is None:
        return UNREADABLE
    wrong = []
    for name, value in merge_environment(p).items():
        live = s.environment.get(name)
        if isinstance(value, str):
            wrong += [f"{name}: expected {value}, actual {'nothing' if live is None else live}"] if live != value else []
        elif missing := [path for path in value if path not in (live or "").split(":")]:  # others may stand beside
            wrong.append(f"{name} lacks {_join(missing)}")
    return "; ".join(wrong) or f"{len(merge_environment(p))} variables"


def plan_threads(p: Planned) -> str:
    omp = f"OMP_NUM_THREADS {merge_environment(p).get('OMP_NUM_THREADS', 'not set')}"
    return f"{omp}, intra-op {p.instance.cores_per_worker}, inter-op {_INTER_OP_THREADS}" if p.model.kit else omp


def see_threads(p: Planned, s: SeenWorker) -> str:
    omp = f"OMP_NUM_THREADS {(s.environment or {}).get('OMP_NUM_THREADS', 'not set')}"
    live = {"intra_op": "?", "inter_op": "?", **get(s, "threads")}
    return f"{omp}, intra-op {live['intra_op']}, inter-op {live['inter_op']}" if p.model.kit else omp


# ---- a worker: its model, by its own account

_NO_STEPS = {"packing", "buckets"}
"""Packing has a row of its own; that buckets reached the worker is seen in CPU_KIT_OPTIONS."""


def get(s: SeenWorker, section: str) -> Any:
    """Of the worker's answer; {} where it does not say."""
    return (s.describe.get(section) if isinstance(s.describe, Mapping) else None) or {}


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
            wrong.append(f"{step['name']} {step['status']}" + (f" ({step['reason']})" if step.get("reason") else ""))
    expected = f"all but {_join(sorted(off))}" if off else "all applied"
    return expected, "; ".join(wrong) or (expected if found else "unknown"), bool(found) and not wrong


def channels_last(p: Planned, s: SeenWorker) -> Judged:
    """Convolution weights and input are channels_last, or not where that is left out."""
    found = get(s, "memory_format")
    if found.get("applicable") is False:
        return "not applicable", "not applicable", True
    total, done, layout = (found.get(name) for name in ("convolutions", "channels_last_weights", "input"))
    actual = f"{done} of {total} convolutions, input {layout}" if found else "unknown"
    if "channels_last" in p.model.off:  # weights of 1×1 kernels count as both layouts, so some always look done
        return "off: not all, input contiguous", actual, done != total and layout == "contiguous"
    # A detector makes its batch of images itself.
    good = bool(total) and done == total and layout in ("channels_last", "not 4-D")
    return "all convolutions, input", actual, good


def packing(p: Planned, s: SeenWorker) -> Judged:
    """Texts share rows, where the model allows it and the plan does not leave it out."""
    found, share = get(s, "packing"), get(s, "packing_efficiency")
    if found.get("applicable") is False:
        why = f"not applicable: {found.get('reason')}"
        return why, why, True
    expected = "off" if _NO_STEPS & {*p.model.off} else "on"
    actual = {True: "on", False: "off"}.get(found.get("on"), "unknown")
    return expected, f"{actual}, packing efficiency {share.get('share')}" if share else actual, actual == expected


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
