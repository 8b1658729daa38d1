"""The sentences that explain a layout."""

from __future__ import annotations

from config.files import render_id_list
from config.plan import Inputs
from config.rules.layout import MAX_WORKERS, Candidate, Chunk
from config.topology import Topology


def explain_workers(topology: Topology, inputs: Inputs, cut: Candidate, fitting: int) -> str:
    """What decided the number of workers."""
    if inputs.workers is not None:
        return f"WORKERS={inputs.workers} was given"
    why = {
        "throughput": "many workers with few cores each: threads of one worker wait for each other",
        "latency": "few workers with many cores each: all cores of "
        f"{f'a {cut.unit}' if topology.owns_cpus else 'the quota'} answer one request",
    }[inputs.profile]
    limits = [] if topology.owns_cpus else ["the quota's whole CPUs: part of one is a throttled one"]
    if fitting == len(cut.chunks) < topology.usable_cores:
        limits.append(f"the memory holds {fitting}")
    if inputs.profile == "throughput" and topology.usable_cores > MAX_WORKERS:
        limits.append(
            f"at most {MAX_WORKERS}, because each start probes all others and each keeps a launcher process"
        )
    return "; ".join([why, f"{cut.used} of {topology.usable_cores} usable physical cores work", *limits])


def explain_cores(topology: Topology, inputs: Inputs, cut: Candidate) -> str:
    """What decided the cores of one worker."""
    if inputs.cores_per_worker is not None:
        crossing = "; a worker may cross NUMA nodes" if cut.unit == "machine" and topology.owns_cpus else ""
        return (
            f"CORES_PER_WORKER={inputs.cores_per_worker} was given{crossing}{_explain_kinds(topology, cut)}"
        )
    if cut.cores == 1:
        return "one core per worker: no barriers between threads"
    where = f"; a worker stays inside one {cut.unit}" if topology.owns_cpus else ""
    return f"the number with which the fewest cores stay idle{where}{_explain_kinds(topology, cut)}"


def _explain_kinds(topology: Topology, cut: Candidate) -> str:
    """Of a hybrid CPU's cores."""
    efficient = {*topology.efficient_cpus}
    if cut.cores == 1 or not efficient & {*topology.cpus_allowed}:
        return ""
    used = {cpu for chunk in cut.chunks for cpu in chunk}
    if used <= efficient and topology.owns_cpus:
        return "; a hybrid CPU: on E-cores alone"
    if used & efficient or not topology.owns_cpus:
        return "; a hybrid CPU: threads on P-cores wait for those on E-cores"
    return "; a hybrid CPU: on P-cores alone, which would wait for threads on E-cores"


def explain_shared(topology: Topology) -> str:
    """Why nothing is bound."""
    return (
        f"CPUs are shared under a quota of {topology.quota_cpus:g} of {len(topology.cpus_allowed)} CPUs "
        f"({topology.quota_source}): it names none of them, and every server on this machine that bound "
        "itself would be on the same first ones"
    )


def explain_list(topology: Topology, *, of_share: bool = False) -> str:
    """Why these CPUs."""
    parts = [
        "one CPU per physical core"
        + (", because SMT siblings share its vector units" if _has_smt(topology) else "")
    ]
    if len(topology.cpus_allowed) < topology.cpu_total:
        whose = "this instance's share" if of_share else "which this process may use"
        parts.append(f"of CPUs {render_id_list(topology.cpus_allowed)}, {whose}")
    if topology.usable_cores < len(topology.cores):
        parts.append(
            f"{topology.usable_cores} of {len(topology.cores)} cores, because the quota is "
            f"{topology.quota_cpus:g} CPUs ({topology.quota_source}), and part of a CPU is a throttled CPU"
        )
    return "; ".join(parts)


def explain_worker_cpus(cut: Candidate) -> str:
    """Why cut like this."""
    return f"by rank; no worker leaves its {cut.unit}, and none shares a core with another of its model"


def explain_server(topology: Topology, server_cpus: Chunk | None) -> str:
    """Why TorchServe itself is confined, or not."""
    if server_cpus is not None:
        return "confined to this instance's share of the CPUs, as each of the others is to its own"
    if not topology.owns_cpus:
        return f"not confined: {explain_shared(topology)}"
    return "not confined: no quota below the CPUs it may use"


def _has_smt(topology: Topology) -> bool:
    return any(len(core.siblings) > 1 for core in topology.cores)
