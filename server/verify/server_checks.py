"""Checks that concern a model or the server as a whole: number of workers, ranks, strays, the plan itself."""

from __future__ import annotations

from collections import Counter

from config.files import render_id_list
from config.plan import Plan
from server.contents import render_changes
from server.verify.evidence import ModelEvidence, ServerEvidence
from server.verify.findings import Finding, cannot_check, compare
from server.verify.placement import find_rank, render_cpus, union_of_cpus

_RESTART = "make stop && make serve"


def check_workers(plan: Plan, seen: ModelEvidence) -> Finding:
    """As many workers are ready as planned."""
    asked = f"{plan.models[seen.name].workers.value} ready"
    got = seen.problem or (
        f"{seen.ready} ready" + (f" of {seen.listed}" if seen.listed != seen.ready else "")
    )
    cure = (
        f"a worker died or was scaled: see make status; TorchServe restarts it within 30 s, else {_RESTART}"
    )
    return compare("workers", asked, got, evidence="GET /models/<name>", cure=cure)


def check_ranks(plan: Plan, seen: ModelEvidence) -> Finding:
    """Each rank's CPUs have exactly one worker of the model."""
    if not plan.pinned:
        return compare("ranks", "not pinned", "not pinned", evidence="the plan", cure="")
    cpus = plan.layout.worker_cpus.value
    ranks = Counter(
        rank
        for worker in seen.workers
        if (rank := find_rank(plan, worker)) is not None and union_of_cpus(worker) == set(cpus[rank])
    )
    asked = ", ".join(f"{rank} on CPU {render_id_list(cpus[rank])}" for rank in range(len(cpus)))
    got = (
        ", ".join(f"{rank} on CPU {render_id_list(cpus[rank])}" for rank in sorted(ranks.elements()))
        or "none"
    )
    cure = f"workers share cores while others idle (a scale call changes ranks): {_RESTART}"
    return compare("ranks", asked, got, evidence="launcher's --rank and thread affinity", cure=cure)


def check_files(_plan: Plan, seen: ModelEvidence) -> Finding:
    """The files that TorchServe unpacked, which the workers load, are those that were built."""
    changed = seen.changed_files
    got = "not unpacked" if changed is None else render_changes(list(changed)) or "as built"
    cure = f"they changed after the start: {_RESTART} unpacks the archive anew"
    return compare("archive files", "as built", got, evidence="RUN_DIR/tmp/models, SHA256SUMS", cure=cure)


def check_running(_plan: Plan, seen: ServerEvidence) -> Finding:
    """TorchServe runs."""
    got = "running" if seen.running else "not running"
    return compare("TorchServe", "running", got, evidence="/proc/*/environ (CPU_KIT_RUN)", cure="make serve")


def check_plan(_plan: Plan, seen: ServerEvidence) -> Finding:
    """The server was started from this very plan.json."""
    if not seen.running or seen.plan_unchanged is None:
        reason = "server.json does not say what it was started from"
        cure = "make stop && make serve writes it again"
        return cannot_check("plan", "as started", reason, evidence="server.json", cure=cure)
    got = "as started" if seen.plan_unchanged else "plan.json has changed since"
    cure = f"the running server follows the old plan: {_RESTART}"
    return compare("plan", "as started", got, evidence="server.json, plan.json", cure=cure)


def check_server_cpus(plan: Plan, seen: ServerEvidence) -> Finding:
    """TorchServe itself stays on the CPUs it is confined to; beyond them a quota would be overdrawn. Else it
    may use all there are."""
    planned = plan.layout.server_cpus.value
    got = render_cpus(seen.server_cpus) if seen.server_cpus else "cannot be read"
    everywhere = not seen.running or {*plan.machine["cpus_allowed"]} <= {*(seen.server_cpus or ())}
    if not planned and everywhere:
        got = "not confined"
    return compare(
        "server's CPUs",
        render_cpus(planned) if planned else "not confined",
        got,
        evidence="/proc/PID/task/*/status of java",
        cure=_RESTART,
    )


def check_strays(_plan: Plan, seen: ServerEvidence) -> Finding:
    """No worker process runs that TorchServe has lost; one would keep its cores and memory."""
    if seen.stray_workers is None:
        reason = "TorchServe does not say which workers it knows"
        return cannot_check("lost workers", "none", reason, evidence="GET /models/<name>", cure="see workers")
    got = ", ".join(f"pid {pid}" for pid in seen.stray_workers) or "none"
    pids = " ".join(str(pid) for pid in seen.stray_workers)
    cure = f"TorchServe has started others in their place: kill -9 {pids}, or {_RESTART}"
    return compare("lost workers", "none", got, evidence="/proc/*/environ (CPU_KIT_RUN)", cure=cure)
