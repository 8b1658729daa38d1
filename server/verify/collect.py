"""Reads the evidence: TorchServe's process, /proc of its workers (proc(5), numa(7)), and what they answer."""

from __future__ import annotations

import json
import re
import stat
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from config.files import parse_id_list
from config.plan import Plan
from config.rules.network import SOCKETS
from handlers.sums import find_changed_files as find_changed
from server.api import Client, count_waiting, read_sizes
from server.errors import ApiError
from server.processes import (
    AT_WORK,
    PROC,
    Process,
    find_marked,
    read_activity,
    read_environment,
    read_process,
)
from server.rundir import RunDir
from server.running import digest_file, digest_plan
from server.state import State, read_state
from server.throttling import find_loss, read_throttled
from server.verify.evidence import FrontendEvidence, ModelEvidence, ServerEvidence, WorkerEvidence
from server.verify.probes import GRPC, probe, read_listening

if TYPE_CHECKING:  # pydantic, which a Python without the environment has not
    from handlers.definition import Packed

_SHARED_OBJECT = re.compile(r"\.so(\.|$)")


def collect(plan: Plan, run: RunDir, archives: Mapping[str, Packed], client: Client) -> ServerEvidence:
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
    name: str, archive: Packed | None, run: RunDir, client: Client, state: State | None
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


def find_changed_files(archive: Packed | None, unpacked: Path) -> tuple[str, ...] | None:
    """What is not as built in any folder that TorchServe unpacked this model to; None when there is none."""
    if archive is None:
        return ("no archive is left in the store to compare with",)
    folders = [
        file.parent for file in unpacked.glob("*/definition.json") if _names(file) == archive.definition.name
    ]
    if not folders:
        return None
    return tuple(change for folder in folders for change in find_changed(archive.sums, folder))


def _names(definition: Path) -> str | None:
    try:
        return str(json.loads(definition.read_text(encoding="utf-8"))["name"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_worker(
    model: str,
    pid: int,
    archive: Packed | None,
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


# What the torchserve command puts before the flags of config.properties (ts/model_server.py).
_OF_THE_COMMAND = ("-Dmodel_server_home=", "-Dlog4j.configurationFile=", "-Djava.io.tmpdir=")


def collect_frontend(
    plan: Plan,
    run: RunDir,
    client: Client,
    processes: Sequence[Process],
    state: State | None,
    proc: Path = PROC,
) -> FrontendEvidence:
    """Of the processes, one is TorchServe's java."""
    java = next(process for process in processes if process.is_java)
    folder = run.temporary.stat() if run.temporary.exists() else None
    ports = {key: int(plan.properties[key].value) for key, _ in GRPC.values()}
    largest = int(str(plan.properties["max_request_size"].value))
    return FrontendEvidence(
        listening=read_listening(processes, proc),
        answers=probe(client, next(iter(plan.models)), largest, ports),
        sockets=tuple(name for name in SOCKETS if (run.temporary / f"{name}.sock").is_socket()),
        sockets_mode=stat.S_IMODE(folder.st_mode) if folder else 0,
        sockets_own=folder is not None and folder.st_uid == run.path.stat().st_uid,
        flags=find_flags(java.command),
        environment=read_environment(java.pid, proc),
        configuration=state.configuration if state else {},
        properties_now=digest_file(run.properties),
        properties_at_start=state.properties_sha256 if state else None,
    )


def find_flags(command: Sequence[str]) -> tuple[str, ...]:
    """The JVM's flags on java's command line: all before the class path that the plan may have asked for."""
    end = command.index("-cp") if "-cp" in command else len(command)
    return tuple(word for word in command[1:end] if not word.startswith(_OF_THE_COMMAND))


SECONDS = 30.0
"""A full queue of a few seconds' work is long done by then; so is a batch that others wait for, as a rule."""

# An answer that brought nothing new, or a full queue: a worker must not be kept busy with questions.
_PAUSE_S = 0.1


@dataclass(frozen=True, kw_only=True)
class Descriptions:
    """What the workers said of themselves."""

    answers: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """Pid → its answer."""
    problem: str = ""
    """Why others gave none."""
    excuses: Mapping[int, str] = field(default_factory=dict)
    """Pid → why it could not answer, where that is no fault of its own."""


def describe_workers(
    model: str, client: Client, pids: set[int], seconds: float = SECONDS, proc: Path = PROC
) -> Descriptions:
    """What they say of themselves, as far as they answer in that time.

    TorchServe 0.12 puts the question at the end of the queue of predictions (ManagementRequestHandler.java),
    and whichever worker is free answers it. A worker that takes it and hangs is waited for without an end:
    the response time-out counts for predictions only (WorkerThread.run). So where one is known to be stopped
    none is asked, since none can be chosen.
    """
    stopped = [pid for pid in sorted(pids) if (found := read_activity(pid, proc)) and found.stopped]
    if stopped:
        problem = f"not asked: worker {', '.join(map(str, stopped))} is stopped and might take the question"
        return Descriptions(problem=problem, excuses=dict.fromkeys(pids - set(stopped), problem))
    before, began = _read_cpu(pids, proc), time.monotonic()
    answers, problem = collect_descriptions(model, client, pids, seconds)
    silent = pids - set(answers)
    waiting = _count_waiting(model, client) if silent else 0
    if not waiting:
        return Descriptions(answers=answers, problem=problem)
    least = AT_WORK * (time.monotonic() - began)
    at_work = [pid for pid, cpu in _read_cpu(silent, proc).items() if cpu - before.get(pid, cpu) > least]
    return Descriptions(
        answers=answers,
        problem=f"no answer, and no CPU time used, while {waiting} requests wait",
        excuses=dict.fromkeys(at_work, f"busy: {waiting} requests wait"),
    )


def collect_descriptions(
    model: str, client: Client, pids: set[int], seconds: float = SECONDS, profile: str = ""
) -> tuple[dict[int, dict[str, Any]], str]:
    """(pid → answer, why others did not): as many askers at once as workers, until all have answered."""
    asked = {"profile": profile} if profile else {}
    answers: dict[int, dict[str, Any]] = {}
    problems = [f"no answer to describe within {seconds:.0f} s"]
    deadline = time.monotonic() + seconds

    def keep_asking() -> None:
        while not pids <= set(answers) and (left := deadline - time.monotonic()) > 0:
            try:
                described = client.describe(model, customized=True, timeout_s=left, **asked)
            except ApiError as failed:
                if len(problems) == 1 or time.monotonic() < deadline:  # else it was we who cut it
                    problems.append(str(failed))
            else:
                answer = dict(described.get("customizedMetadata") or {})
                if "pid" in answer and int(answer["pid"]) not in answers:
                    answers[int(answer["pid"])] = answer
                    continue
            time.sleep(min(_PAUSE_S, left))

    with ThreadPoolExecutor(max_workers=max(1, len(pids))) as pool:
        for _ in pids:
            pool.submit(keep_asking)
    return answers, problems[-1]


def _count_waiting(model: str, client: Client) -> int:
    try:
        return count_waiting(client.describe(model))
    except ApiError:
        return 0


def _read_cpu(pids: Iterable[int], proc: Path) -> dict[int, float]:
    found = {pid: read_activity(pid, proc) for pid in pids}
    return {pid: activity.cpu_seconds for pid, activity in found.items() if activity}
