"""Collects what a live server shows: its processes, /proc of them (proc(5), numa(7)), what they answer."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from config.plan import ModelPlan, Plan
from config.proxy import SOCKETS
from handlers.definition import Packed
from handlers.sums import find_changed_files
from server.api import Client, count_waiting, make_client, make_instance_client, read_sizes
from server.errors import ApiError, ServerError
from server.haproxy import Runtime
from server.processes import AT_WORK, PROC, find_marked, read_activity, read_environment, read_process
from server.rundir import RunDir
from server.state import State, read_record, read_state
from server.throttling import Loss, find_loss, read_throttled
from server.verify.probes import probe_instance, probe_proxy, read_listening


class Unknown(str):
    """A value that cannot be read where no difference follows from that: its row is not checkable."""


@dataclass(frozen=True, kw_only=True)
class SeenProxy:
    """HAProxy and the supervisor. Digests are None where there is no such file, or no record of it."""

    phase: str  # the supervisor's own word; "no supervisor runs" where there is none
    plan_now: str | None
    plan_at_start: str | None
    configuration_now: str | None  # of haproxy.cfg
    configuration_at_start: str | None
    listening: Mapping[str, str] | None  # address → role of the process; None where it cannot be read
    answers: Mapping[str, str]  # probe → status, or why there was none
    limits: Mapping[str, int]  # <backend>/<instance> → requests that are handed over at once
    token_mode: int | None  # permissions of the token's file; None where there is none


@dataclass(frozen=True, kw_only=True)
class SeenWorker:
    """One worker process; None means that it could not be read."""

    pid: int
    launcher: tuple[str, ...] | None  # command line of the launcher above it; None: its parent is none
    thread_cpus: Mapping[str, tuple[int, ...]] | None  # by thread id; None: there is no such process
    memory_policies: Mapping[str, int] | None  # NUMA policy → mappings with it
    libraries: tuple[str, ...] | None  # mapped shared objects, real paths
    environment: Mapping[str, str] | None
    stopped: bool  # by SIGSTOP or a debugger: it does nothing at all
    throttling: Loss | None  # of its control groups since the server was ready; None where none counts it
    throttled_loading: int  # times, from the start until ready; for information
    archive_id: str  # of the archive in the model store now; empty where it is gone or damaged
    describe: Mapping[str, Any] | str = ""  # its answer, or why there is none


@dataclass(frozen=True, kw_only=True)
class SeenModel:
    """One version of a model, as TorchServe lists it."""

    name: str
    version: str
    listed: int = 0  # workers
    ready: int = 0
    problem: str = ""  # why TorchServe does not describe it
    described: Mapping[str, Any] = field(default_factory=dict)  # batchSize, maxBatchDelay, responseTimeout …
    queue_sizes: tuple[int, ...] = ()  # server.api.read_sizes
    changed_files: tuple[str, ...] | None = None  # of the unpacked archive; None: it is nowhere
    workers: tuple[SeenWorker, ...] = ()  # those that have a process


@dataclass(frozen=True, kw_only=True)
class SeenInstance:
    """One TorchServe; everything else is empty where it does not run."""

    running: bool
    orphans: tuple[int, ...] | None  # workers that TorchServe does not know; None where it does not say
    cpus: tuple[int, ...] = ()  # that threads of its java process may run on; empty where it cannot be read
    listening: Mapping[str, str] | None = None  # address → role of the process; None where it cannot be read
    answers: Mapping[str, str] = field(default_factory=dict)  # probe → status, or why there was none
    sockets: tuple[str, ...] = ()  # which of SOCKETS there are
    sockets_mode: int = 0  # permissions of the folder they are in; 0 where there is none
    sockets_own: bool = False  # that folder is of the run directory's user
    command: tuple[str, ...] = ()  # of java
    environment: Mapping[str, str] | None = None  # of java; None where it cannot be read
    configuration: Mapping[str, str] = field(default_factory=dict)  # as logged at its start; empty: no record
    properties_now: str | None = None  # digest of config.properties; None where there is none
    properties_at_start: str | None = None  # the same when TorchServe read it; None: no record
    models: tuple[SeenModel, ...] = ()


def digest(content: bytes) -> str:
    """As server.json has it."""
    return hashlib.sha256(content).hexdigest()


def _digest_file(file: Path) -> str | None:
    return digest(file.read_bytes()) if file.exists() else None


def collect_proxy(plan: Plan, run: RunDir) -> SeenProxy:
    """What HAProxy and the supervisor show."""
    processes = [one for one in find_marked(run.path) if one.role in ("HAProxy", "supervisor")]
    record, state = read_record(run.record), read_state(run.state)
    watched = any(process.role == "supervisor" for process in processes)
    try:
        limits = Runtime(Path(run.proxy_files.admin_socket)).read_limits()
    except ServerError:
        limits = {}
    return SeenProxy(
        phase=record.phase.value if record and watched else "no supervisor runs",
        plan_now=_digest_file(run.plan),
        plan_at_start=state.plan_sha256 if state else None,
        configuration_now=_digest_file(run.proxy_config),
        configuration_at_start=state.properties_sha256 if state else None,
        listening=read_listening(processes),
        answers=probe_proxy(make_client(plan, run), next(iter(plan.models)), plan.proxy.max_request_bytes),
        limits=limits,
        token_mode=stat.S_IMODE(run.token.stat().st_mode) if run.token.exists() else None,
    )


def collect_instance(plan: Plan, name: str, run: RunDir, archives: Mapping[str, Packed]) -> SeenInstance:
    """What one TorchServe and its workers show; `archives` may lack some whose files are gone."""
    instance, own, client = plan.instances[name], run.instance(name), make_instance_client(plan, name)
    processes = find_marked(own.path)
    workers = [process.pid for process in processes if process.role == "worker"]
    java = next((process for process in processes if process.role == "TorchServe"), None)
    if java is None:
        return SeenInstance(running=False, orphans=tuple(workers))
    state = read_state(own.state)
    models = tuple(
        collect_model(one, version, instance.models[one], archives.get(one), own, client, state)
        for one in instance.models
        for version in instance.models[one].archives
    )
    known = {worker.pid for model in models for worker in model.workers}
    orphans = tuple(pid for pid in workers if pid not in known)
    folder = own.temporary.stat() if own.temporary.exists() else None
    return SeenInstance(
        running=True,
        orphans=None if any(one.problem for one in models) else orphans,
        cpus=tuple(sorted({cpu for cpus in (read_thread_cpus(java.pid) or {}).values() for cpu in cpus})),
        listening=read_listening(processes),
        answers=probe_instance(client, next(iter(instance.models)), instance.properties),
        sockets=tuple(one for one in SOCKETS if (own.temporary / f"{one}.sock").is_socket()),
        sockets_mode=stat.S_IMODE(folder.st_mode) if folder else 0,
        sockets_own=folder is not None and folder.st_uid == own.path.stat().st_uid,
        command=java.command,
        environment=read_environment(java.pid),
        configuration=state.configuration if state else {},
        properties_now=_digest_file(own.properties),
        properties_at_start=state.properties_sha256 if state else None,
        models=models,
    )


def collect_model(name: str, version: str, model: ModelPlan, archive: Packed | None, run: RunDir,
                  client: Client, state: State | None) -> SeenModel:  # fmt: skip
    """One version and its workers; `run` is the instance's."""
    path = name if model.kit else f"{name}/{version}"
    try:
        described = client.describe(path)
        queue_sizes = read_sizes(path, client, described)
    except ApiError as failed:
        return SeenModel(name=name, version=version, problem=str(failed))
    listed = described.get("workers", [])
    pids = [int(worker["pid"]) for worker in listed if int(worker.get("pid", -1)) > 0]
    ready = [int(worker.get("pid", -1)) for worker in listed if worker.get("status") == "READY"]
    told = describe_workers(name, client, {*ready} & {*pids}) if model.kit else {}
    file = archive.path if archive else None if model.kit else Path(model.archives[version])
    return SeenModel(
        name=name,
        version=version,
        listed=len(listed),
        ready=len(ready),
        described=described,
        queue_sizes=queue_sizes,
        changed_files=find_changes(file, archive.sums if archive else None, run.temporary / "models"),
        workers=tuple(read_worker(pid, told, state, archive.archive_id if archive else "") for pid in pids),
    )


_MANIFEST = "MAR-INF/MANIFEST.json"


def find_changes(archive: Path | None, sums: bytes | None, unpacked: Path) -> tuple[str, ...] | None:
    """What differs from the archive in each folder that TorchServe unpacked it to; None where there is none.

    `sums`: of an archive of this kit. Of others only the archive's own files are compared: what a handler
    writes beside them is its own affair.
    """
    if archive is None:
        return ("no archive is left in the store to compare with",)

    def identify(manifest: bytes) -> list[str]:
        model = json.loads(manifest)["model"]
        return [model["modelName"], model["modelVersion"]]

    try:
        with zipfile.ZipFile(archive) as packed:
            model = identify(packed.read(_MANIFEST))
            members = {one.filename: one.CRC for one in packed.infolist() if not one.is_dir()}
        manifests = [file for file in unpacked.glob(f"*/{_MANIFEST}") if identify(file.read_bytes()) == model]
    except (OSError, KeyError, TypeError, ValueError, zipfile.BadZipFile) as problem:
        return (f"cannot be read: {problem!r}",)
    changes = []
    for folder in (manifest.parents[1] for manifest in manifests):
        if sums is not None:
            changes += find_changed_files(sums, folder)
            continue
        for name, crc in members.items():
            if not (folder / name).is_file():
                changes.append(f"{name} is missing")
            elif _sum_file(folder / name) != crc:
                changes.append(f"{name} has changed")
    return tuple(sorted(changes)) if manifests else None


def _sum_file(file: Path) -> int:
    """CRC-32, in pieces: a model may be larger than the memory that is left."""
    crc = 0
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            crc = zlib.crc32(block, crc)
    return crc


def read_worker(pid: int, told: Described, state: State | None, archive_id: str) -> SeenWorker:
    """All that can be seen of one worker."""
    activity, throttled, process = read_activity(pid), read_throttled(pid), read_process(pid)
    parent = read_process(process.parent_pid) if process else None
    at_start, when_ready = (state.throttled_at_start, state.throttled_when_ready) if state else ({}, {})
    return SeenWorker(
        pid=pid,
        launcher=parent.command if parent and parent.role == "launcher" else None,
        thread_cpus=read_thread_cpus(pid),
        memory_policies=read_memory_policies(pid),
        libraries=read_libraries(pid),
        environment=read_environment(pid),
        stopped=bool(activity and activity.stopped),
        throttling=find_loss(when_ready, throttled) if throttled else None,
        throttled_loading=find_loss(at_start, when_ready).times,
        archive_id=archive_id,
        describe=told.get(pid, "not asked: it is not ready"),
    )


def read_thread_cpus(pid: int) -> dict[str, tuple[int, ...]] | None:
    """The CPUs each thread may run on; None when there is no such process."""
    cpus = {}
    try:
        for thread in (PROC / str(pid) / "task").iterdir():
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                cpus[thread.name] = tuple(sorted(os.sched_getaffinity(int(thread.name))))
    except OSError:
        return None
    return cpus or None


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
    paths = {line.split(maxsplit=5)[-1].removesuffix(" (deleted)") for line in lines}
    return tuple(sorted(one for one in paths if re.search(r"^/.*\.so(\.[^/]*)?$", one))) or None


SECONDS = 30.0
"""A full queue of a few seconds' work is long done by then; so is a batch that others wait for, as a rule."""
_PAUSE_S = 0.1
"""After an answer that brought nothing new, or a full queue: questions must not keep a worker busy."""

Described = Mapping[int, "Mapping[str, Any] | str"]
"""Pid → what the worker says of itself; or why it does not, Unknown where that is no fault of its own."""


def describe_workers(model: str, client: Client, pids: set[int], seconds: float = SECONDS) -> Described:
    """What they say of themselves, as far as they answer in that time.

    TorchServe 0.12 puts the question at the end of the queue of predictions (ManagementRequestHandler.java),
    and whichever worker is free answers it. A worker that takes it and hangs is waited for without an end:
    the response time-out counts for predictions only (WorkerThread.run). So where one is known to be stopped
    none is asked, since none can be chosen.
    """
    before, began = {pid: read_activity(pid) for pid in pids}, time.monotonic()
    if stopped := [pid for pid, activity in sorted(before.items()) if activity and activity.stopped]:
        why = f"not asked: worker {', '.join(map(str, stopped))} is stopped and might take the question"
        return {pid: why if pid in stopped else Unknown(why) for pid in pids}
    answers, problem = collect_descriptions(model, client, pids, seconds)
    silent, waiting = pids - set(answers), 0
    try:
        waiting = count_waiting(client.describe(model)) if silent else 0
    except ApiError as failed:
        problem = str(failed)
    told: dict[int, Mapping[str, Any] | str] = {**answers, **dict.fromkeys(silent, problem)}
    for pid in silent if waiting else ():
        was, now, least = before[pid], read_activity(pid), AT_WORK * (time.monotonic() - began)
        at_work = was and now and now.cpu_seconds - was.cpu_seconds > least
        idle = f"no answer, and no CPU time used, while {waiting} requests wait"
        told[pid] = Unknown(f"busy: {waiting} requests wait") if at_work else idle
    return told


def collect_descriptions(
    model: str, client: Client, pids: set[int], seconds: float = SECONDS, profile: str = ""
) -> tuple[dict[int, dict[str, Any]], str]:
    """(pid → answer, why others gave none): as many askers at once as workers, until all have answered."""
    answers: dict[int, dict[str, Any]] = {}
    problems = [f"no answer to describe within {seconds:.0f} s"]
    deadline = time.monotonic() + seconds

    def keep_asking() -> None:
        while not pids <= set(answers) and (left := deadline - time.monotonic()) > 0:
            try:
                described = client.describe(model, customized=True, profile=profile, timeout_s=left)
            except ApiError as failed:
                if len(problems) == 1 or time.monotonic() < deadline:  # else the deadline cut it
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
