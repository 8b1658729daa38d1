"""Checks where a worker runs and with which libraries: CPUs, NUMA memory policy, quota, allocator, OpenMP."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from config.files import render_id_list
from config.plan import Plan
from handlers.backends.catalogue import BACKENDS
from server.verify.evidence import RESTART, Finding, WorkerEvidence, cannot_check, compare, need_describe

THROTTLED_MS = 1.0
"""Of each period of 100 ms. The kernel's bookkeeping takes some microseconds from a group that just fills its
quota; one thread too many takes tens of milliseconds."""
SHARED_THROTTLED_MS = 50.0
"""The same for each CPU of the quota where CPUs are shared: what runs beside the workers (Java, HAProxy) has
others than theirs then, and what it takes from a full quota is throttled. The time of all CPUs is summed
(cpu.stat): with a quota of one a thread too many loses 100 ms."""
SHARED = "not pinned: CPUs are shared under a quota"
_PINNING_CURE = (
    "if the worker was moved by hand, restart: make stop && make serve; if it never was pinned, look for "
    "`run_cpu is not available` in logs/ts_log.log and for the launcher's lines in logs/model_log.log"
)


def check_affinity(plan: Plan, seen: WorkerEvidence) -> Finding:
    """Every thread stays on the rank's CPUs, and together they may use all of them.

    Threads of an OpenMP team are bound to one CPU each (KMP_AFFINITY granularity=fine), so no one thread need
    be allowed on all CPUs of its rank. Where nothing is pinned each must be allowed on all.
    """
    asked = plan_cpus(plan, seen)
    evidence = "/proc/PID/task/*/status"
    threads = seen.thread_cpus or {}
    if not plan.pinned:
        return _check_unbound(plan, asked, threads, evidence)
    outside = [thread for thread, cpus in threads.items() if not set(cpus) <= set(asked)]
    used = union_of_cpus(seen)
    same = not outside and used == set(asked)
    count = len(threads)
    got = f"CPU {render_id_list(used)}, {count} threads"
    if outside:
        got = f"CPU {render_id_list(used)}: {len(outside)} of {count} threads may leave the plan's CPUs"
    return compare("CPU affinity", render_cpus(asked), got, evidence=evidence, cure=_PINNING_CURE, same=same)


def _check_unbound(
    plan: Plan, asked: tuple[int, ...], threads: Mapping[str, tuple[int, ...]], evidence: str
) -> Finding:
    bound = [cpus for cpus in threads.values() if set(cpus) != set(asked)]
    expected = SHARED if is_shared(plan) else "not pinned"
    got = f"{expected}, {len(threads)} threads on {render_cpus(asked)}"
    if bound:
        where = render_id_list({cpu for cpus in bound for cpu in cpus})
        got = f"{len(bound)} of {len(threads)} threads are bound to CPU {where}"
    cure = f"something else than the plan bound them (taskset, a variable): {RESTART}"
    return compare(
        "CPU affinity", expected, got, evidence=evidence, cure=cure, same=bool(threads) and not bound
    )


def check_launcher(plan: Plan, seen: WorkerEvidence) -> Finding:
    """The launcher that pinned the worker is still above it: TorchServe ends a worker through it."""
    if not plan.launched:
        return compare("launcher", "none planned", "none planned", evidence="the plan", cure="")
    got = "above the worker" if seen.launcher else "none: the worker has lost it, or never had one"
    cure = f"TorchServe does not see such a worker end: {RESTART}"
    return compare("launcher", "above the worker", got, evidence="/proc/PID/stat (parent)", cure=cure)


def is_shared(plan: Plan) -> bool:
    """Whether nothing is bound because a quota does not say which CPUs are ours (Topology.owns_cpus)."""
    quota = plan.machine["quota_cpus"]
    return not plan.pinned and quota is not None and quota < len(plan.machine["cpus_allowed"])


def plan_cpus(plan: Plan, seen: WorkerEvidence) -> tuple[int, ...]:
    """The CPUs of the worker's rank; () when its rank cannot be told."""
    rank = find_rank(plan, seen)
    return () if rank is None else tuple(plan.layout.worker_cpus.value[rank])


def find_rank(plan: Plan, seen: WorkerEvidence) -> int | None:
    """The rank the launcher was given; without one on its command line, that whose CPUs the worker has."""
    ranks = [set(cpus) for cpus in plan.layout.worker_cpus.value]
    if seen.launcher and "--rank" in seen.launcher[:-1]:
        rank = int(seen.launcher[seen.launcher.index("--rank") + 1])
        return rank if rank < len(ranks) else None
    if all(cpus == ranks[0] for cpus in ranks):  # one worker, or none pinned
        return 0
    used = union_of_cpus(seen)
    return ranks.index(used) if used in ranks else None


def union_of_cpus(seen: WorkerEvidence) -> set[int]:
    """All CPUs any thread may run on."""
    return {cpu for cpus in (seen.thread_cpus or {}).values() for cpu in cpus}


def render_cpus(cpus: Iterable[int]) -> str:
    """CPU numbers for a person."""
    numbers = render_id_list(cpus)
    return f"CPU {numbers}" if numbers else "the CPUs of one rank"


def check_memory_policy(plan: Plan, seen: WorkerEvidence) -> Finding:
    """Memory is bound to the rank's NUMA nodes, or not at all where the plan does not bind.

    A library may ask for single mappings `local` to the CPU (one of 32 MiB is seen in every worker), and a
    backend's runtime for the node it computes on: the same for a pinned thread, so that is no difference.
    """
    asked = plan_policy(plan, seen)
    evidence = "/proc/PID/numa_maps"
    cure = "numactl needs set_mempolicy: give the container CAP_SYS_NICE, then make stop && make serve"
    if seen.memory_policies is None:
        reason = "numa_maps cannot be read (no NUMA in this kernel, or not permitted)"
        if asked == "default":
            return cannot_check("memory policy", asked, reason, evidence=evidence, cure=cure)
        return compare("memory policy", asked, reason, evidence=evidence, cure=cure)
    got = ", ".join(f"{policy} ×{count}" for policy, count in sorted(seen.memory_policies.items()))
    others = set(seen.memory_policies) - {asked, "local", *list_own_policies(plan, seen)}
    same = asked in seen.memory_policies and not others
    return compare("memory policy", asked, got, evidence=evidence, cure=cure, same=same)


def list_own_policies(plan: Plan, seen: WorkerEvidence) -> set[str]:
    """Of mappings that the backend binds to a node of the worker's own CPUs."""
    if not BACKENDS[str(plan.models[seen.model].backend.value)].binds_memory:
        return set()
    cpus = plan.layout.worker_cpus.value[find_rank(plan, seen) or 0]
    return {f"bind:{core['node']}" for core in plan.machine["cores"] if core["cpu"] in cpus}


def plan_policy(plan: Plan, seen: WorkerEvidence) -> str:
    """As numa_maps writes it."""
    bound = plan.layout.memory_nodes.value[find_rank(plan, seen) or 0]
    return f"bind:{render_id_list(bound)}" if bound else "default"


def check_throttling(plan: Plan, seen: WorkerEvidence) -> Finding:
    """The kernel took no time from the worker for using up a CPU quota since it was ready."""
    limit = SHARED_THROTTLED_MS * plan.machine["quota_cpus"] if is_shared(plan) else THROTTLED_MS
    asked = f"at most {limit:g} ms a period"
    evidence = f"throttled time, {len(seen.throttled_files)} × cpu.stat"
    cure = "fewer workers or cores (make serve WORKERS=…), or a larger CPU quota; others may share it"
    if not seen.throttled_files:
        reason = "no control group here counts it"
        if plan.machine.get("quota_cpus") is None:
            return cannot_check(
                "no throttling", asked, f"{reason}; no quota either", evidence="cpu.stat", cure=""
            )
        return compare(
            "no throttling", asked, reason, evidence="cpu.stat", cure="mount the cgroup file system"
        )
    got = f"{seen.throttled_ms_per_period:.2g} ms, {seen.throttled} times since ready"
    if seen.throttled_loading:
        evidence += f"; {seen.throttled_loading} times while loading"
    within = seen.throttled_ms_per_period <= limit
    return compare("no throttling", asked, got, evidence=evidence, cure=cure, same=within)


# libtcm.so of intel-openmp is a thread manager, not tcmalloc.
_ALLOCATORS = re.compile(r"lib(jemalloc|tcmalloc|mimalloc|tbbmalloc_proxy|hoard|scalloc)")
_OPENMP = re.compile(r"lib(iomp5|gomp|omp)[-.]")
# Below its smallest large size class jemalloc turns the threshold off and says 0 (arena_init_huge).
_SMALLEST_LARGE_SIZE = 16384
_LINK_CURE = "the launcher found no library to preload: make stop && make serve makes the link again"


@need_describe("allocator")
def check_allocator(plan: Plan, seen: WorkerEvidence) -> Finding:
    """The planned allocator is mapped, no other one is, and malloc resolves to it."""
    name = str(plan.libraries.allocator.value)
    path = plan.libraries.allocator_path.value
    wanted = {str(Path(path).resolve())} if path else set()
    mapped = {file for file in seen.libraries or () if _ALLOCATORS.search(Path(file).name)}
    resolved = _get(seen, "allocator", "name")
    got = f"malloc is {resolved or 'unknown'}; mapped: {render_names(mapped)}"
    return compare(
        "allocator",
        f"malloc is {name}; mapped: {render_names(wanted)}",
        got,
        evidence="/proc/PID/maps, describe (dladdr of malloc)",
        cure=_LINK_CURE
        if mapped != wanted
        else "another library's malloc comes first: see LD_PRELOAD in the environment",
        same=seen.libraries is not None and mapped == wanted and resolved == name,
    )


@need_describe("allocator options")
def check_allocator_options(plan: Plan, seen: WorkerEvidence) -> Finding:
    """jemalloc runs with the options of the plan's MALLOC_CONF, as it says itself."""
    setting = plan.environment.get("MALLOC_CONF")
    asked = (
        expect_options(str(setting.value)) if setting and plan.libraries.allocator.value == "jemalloc" else {}
    )
    if not asked:
        return compare("allocator options", "none", "none", evidence="no MALLOC_CONF in the plan", cure="")
    live = _get(seen, "allocator", "options") or {}
    shown = {
        option: str(value).lower() if isinstance(value, bool) else str(value)
        for option, value in live.items()
    }
    got = {option: shown[option] for option in asked if option in shown}
    unread = sorted(set(asked) - set(got))
    cure = "MALLOC_CONF did not reach jemalloc; nothing else may set it: make stop && make serve"
    if unread:
        cure = (
            f"not read back: {', '.join(unread)}; is jemalloc the allocator, and does it know these options?"
        )
    return compare(
        "allocator options",
        _render(asked),
        _render(got) or "none",
        evidence="describe (mallctl opt.*)",
        cure=cure,
    )


def expect_options(malloc_conf: str) -> dict[str, str]:
    """What jemalloc says of itself under that MALLOC_CONF: "a:1,b:true" is {"a": "1", "b": "true"}."""
    pairs = (part.partition(":") for part in malloc_conf.split(","))
    options = dict(sorted((name, value) for name, _, value in pairs if name))
    if 0 < int(options.get("oversize_threshold", 0)) < _SMALLEST_LARGE_SIZE:
        options["oversize_threshold"] = "0"
    return options


def _render(options: dict[str, str]) -> str:
    return ",".join(f"{name}:{value}" for name, value in options.items())


@need_describe("OpenMP")
def check_openmp(plan: Plan, seen: WorkerEvidence) -> Finding:
    """The parallel regions resolve to the planned library; libgomp may be mapped too (torch brings it)."""
    name = str(plan.libraries.openmp.value)
    path = plan.libraries.openmp_path.value
    resolved, library = _get(seen, "openmp", "name"), _get(seen, "openmp", "library")
    mapped = {file for file in seen.libraries or () if _OPENMP.search(Path(file).name)}
    same = resolved == name and library in mapped
    if path:
        same = same and library == str(Path(path).resolve())
    return compare(
        "OpenMP",
        f"{name}" + (f" ({Path(path).name})" if path else ""),
        f"{resolved or 'unknown'} ({Path(library).name if library else 'no answer'})",
        evidence=f"describe (dladdr of GOMP_parallel), mapped: {render_names(mapped)}",
        cure=_LINK_CURE + "; libiomp5.so comes with the package intel-openmp: make setup",
        same=same,
    )


def render_names(paths: set[str]) -> str:
    """File names for a person."""
    return ", ".join(sorted(Path(path).name for path in paths)) or "none"


def _get(seen: WorkerEvidence, section: str, name: str) -> Any:
    return ((seen.describe or {}).get(section) or {}).get(name)
