"""Reads the evidence: /proc of every worker (proc(5), numa(7)) and the describe answer of each."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from config.files import parse_id_list
from config.plan import Plan
from server.activity import read_activity
from server.api import Client
from server.archives import Archive
from server.contents import check_unpacked
from server.errors import ApiError
from server.processes import PROC, Process, find_marked, read_environment, read_process
from server.queues import read_sizes
from server.rundir import RunDir
from server.running import digest_plan
from server.state import State, read_state
from server.throttling import find_loss, read_throttled
from server.verify.describing import Descriptions, describe_workers
from server.verify.evidence import ModelEvidence, ServerEvidence, WorkerEvidence
from server.verify.frontend import collect_frontend

_SHARED_OBJECT = re.compile(r"\.so(\.|$)")


def collect(plan: Plan, run: RunDir, archives: Mapping[str, Archive], client: Client) -> ServerEvidence:
    """Everything the checks need; `archives` may lack some whose files are gone."""
    processes = find_marked(run.path)
    if not any(process.is_java for process in processes):
        return ServerEvidence(running=False, plan_unchanged=None, stray_workers=_pids(processes))
    state = read_state(run.state)
    models = {name: _collect_model(name, archives.get(name), run, client, state) for name in plan.models}
    told = not any(model.problem for model in models.values())
    known = {worker.pid for model in models.values() for worker in model.workers}
    return ServerEvidence(
        running=True,
        plan_unchanged=state.plan_sha256 == digest_plan(run) if state else None,
        server_cpus=_read_server_cpus(processes),
        stray_workers=tuple(pid for pid in _pids(processes) if pid not in known) if told else None,
        frontend=collect_frontend(plan, run, client, processes, state),
        models=models,
    )


def _read_server_cpus(processes: list[Process]) -> tuple[int, ...] | None:
    threads = [read_thread_cpus(process.pid) or {} for process in processes if process.is_java]
    cpus = {cpu for found in threads for thread in found.values() for cpu in thread}
    return tuple(sorted(cpus)) or None


def _pids(processes: list[Process]) -> tuple[int, ...]:
    return tuple(process.pid for process in processes if process.is_worker)


def _collect_model(
    name: str, archive: Archive | None, run: RunDir, client: Client, state: State | None
) -> ModelEvidence:
    try:
        described = client.describe(name)
        queue_sizes = read_sizes(name, client, described)
    except ApiError as failed:
        return ModelEvidence(name=name, listed=0, ready=0, workers=(), problem=str(failed))
    listed = described.pop("workers", [])
    ready = [worker for worker in listed if worker.get("status") == "READY"]
    pids = [int(worker["pid"]) for worker in listed if int(worker.get("pid", -1)) > 0]
    descriptions = describe_workers(name, client, {int(worker["pid"]) for worker in ready})
    return ModelEvidence(
        name=name,
        listed=len(listed),
        ready=len(ready),
        workers=tuple(read_worker(name, pid, archive, descriptions, state) for pid in pids),
        settings=described,
        queue_sizes=queue_sizes,
        changed_files=find_changed_files(archive, run.temporary / "models"),
    )


def find_changed_files(archive: Archive | None, unpacked: Path) -> tuple[str, ...] | None:
    """What is not as built in any folder that TorchServe unpacked this model to; None when there is none."""
    if archive is None:
        return ("no archive is left in the store to compare with",)
    folders = [file.parent for file in unpacked.glob("*/definition.json") if _names(file) == archive.name]
    if not folders:
        return None
    return tuple(change for folder in folders for change in check_unpacked(archive, folder))


def _names(definition: Path) -> str | None:
    try:
        return str(json.loads(definition.read_text(encoding="utf-8"))["name"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_worker(
    model: str,
    pid: int,
    archive: Archive | None,
    described: Descriptions,
    state: State | None,
    proc: Path = PROC,
) -> WorkerEvidence:
    """All that can be seen of one worker."""
    activity = read_activity(pid, proc)
    describe = described.answers.get(pid)
    throttled = read_throttled(pid, proc)
    at_start = state.throttled_at_start if state else {}
    when_ready = state.throttled_when_ready if state else {}
    loss = find_loss(when_ready, throttled)
    return WorkerEvidence(
        model=model,
        pid=pid,
        launcher=read_launcher(pid, proc),
        thread_cpus=read_thread_cpus(pid, proc),
        memory_policies=read_memory_policies(pid, proc),
        libraries=read_libraries(pid, proc),
        environment=read_environment(pid, proc),
        describe=describe,
        describe_problem="" if describe else described.problem,
        excuse="" if describe else described.excuses.get(pid, ""),
        stopped=bool(activity and activity.stopped),
        archive_id=archive.archive_id if archive else "",
        throttled_files=tuple(throttled),
        throttled=loss.times,
        throttled_ms_per_period=loss.ms_per_period,
        throttled_loading=find_loss(at_start, when_ready).times,
    )


def read_launcher(pid: int, proc: Path = PROC) -> tuple[str, ...] | None:
    """Command line of the launcher that started the worker."""
    worker = read_process(pid, proc)
    parent = read_process(worker.parent_pid, proc) if worker else None
    return parent.command if parent and parent.is_launcher else None


def read_thread_cpus(pid: int, proc: Path = PROC) -> dict[str, tuple[int, ...]] | None:
    """The CPUs each thread may run on; None when the process cannot be read."""
    cpus = {}
    try:
        for task in sorted((proc / str(pid) / "task").iterdir(), key=lambda folder: int(folder.name)):
            found = _read_allowed(task / "status")
            if found:  # a thread may end while we look
                cpus[task.name] = found
    except OSError:
        return None
    return cpus or None


def _read_allowed(status: Path) -> tuple[int, ...]:
    try:
        text = status.read_text()
    except OSError:
        return ()
    match = re.search(r"^Cpus_allowed_list:\s*(\S+)", text, re.MULTILINE)
    return parse_id_list(match[1]) if match else ()


def read_memory_policies(pid: int, proc: Path = PROC) -> dict[str, int] | None:
    """NUMA policy → number of mappings; None where the kernel has no numa_maps or does not let us read it."""
    try:
        lines = (proc / str(pid) / "numa_maps").read_text().splitlines()
    except OSError:
        return None
    return dict(Counter(line.split()[1] for line in lines if len(line.split()) > 1)) or None


def read_libraries(pid: int, proc: Path = PROC) -> tuple[str, ...] | None:
    """Mapped shared objects; a file replaced since keeps its name."""
    try:
        lines = (proc / str(pid) / "maps").read_text(errors="replace").splitlines()
    except OSError:
        return None
    paths = (line.split(maxsplit=5)[5] for line in lines if len(line.split(maxsplit=5)) == 6)
    names = {path.removesuffix(" (deleted)") for path in paths if path.startswith("/")}
    return tuple(sorted(name for name in names if _SHARED_OBJECT.search(Path(name).name))) or None
