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
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from config.plan import InstancePlan, Plan
from config.proxy import SOCKETS
from handlers.definition import Packed
from handlers.sums import find_changed_files, render_changes
from server.api import Client, count_waiting, make_client, make_instance_client, read_queue_size
from server.errors import ApiError, ServerError
from server.haproxy import Runtime
from server.processes import AT_WORK, PROC, find_marked, read_activity, read_environment, read_process
from server.rundir import RunDir
from server.state import State, read_record, read_state
from server.throttling import Loss, find_loss, read_throttled
from server.verify.probes import Unknown, probe_instance, probe_proxy, read_listening

JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
"""The JVM reads them, too (the java launcher's documentation); the last one wins over its command line."""
_ADDED = ("-Dmodel_server_home=", "-Dlog4j.configurationFile=", "-Djava.io.tmpdir=")
"""What the torchserve command puts before the flags of config.properties (ts/model_server.py)."""
_MANIFEST = "MAR-INF/MANIFEST.json"


@dataclass(frozen=True, kw_only=True)
class SeenProxy:
    """HAProxy and the supervisor."""

    phase: str  # the supervisor's own word; "no supervisor runs" where there is none
    plan: str  # how plan.json differs from that of the start; empty where it does not
    configuration: str  # the same of haproxy.cfg
    listening: Mapping[str, str] | None  # address → role of the process; None where it cannot be read
    answers: Mapping[str, str]  # probe → status, or why there was none
    limits: Mapping[str, int]  # <backend>/<instance> → requests that are handed over at once
    token: str  # permissions of its file
    running = True


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

    @property
    def running(self) -> bool:
        return self.thread_cpus is not None

    @property
    def cpus(self) -> set[int]:
        """That any of its threads may run on."""
        return {cpu for cpus in (self.thread_cpus or {}).values() for cpu in cpus}


@dataclass(frozen=True, kw_only=True)
class SeenModel:
    """One version of a model, as TorchServe lists it."""

    name: str
    version: str
    listed: int = 0  # workers
    ready: int = 0
    problem: str = ""  # why TorchServe does not describe it
    described: Mapping[str, Any] = field(default_factory=dict)  # batchSize, maxBatchDelay, responseTimeout …
    queue_size: int | None = None
    files: str = "unknown"  # what differs from the archive where it was unpacked; empty where nothing does
    workers: tuple[SeenWorker, ...] = ()  # those that have a process
    running = True


@dataclass(frozen=True, kw_only=True)
class SeenInstance:
    """One TorchServe; everything else is empty where it does not run."""

    running: bool
    orphans: tuple[int, ...] | None  # workers that TorchServe does not know; None where it does not say
    cpus: tuple[int, ...] = ()  # that threads of its java process may run on; empty where it cannot be read
    listening: Mapping[str, str] | None = None  # address → role of the process; None where it cannot be read
    answers: Mapping[str, str] = field(default_factory=dict)  # row → what its calls were answered
    sockets: str = ""  # which of SOCKETS there are, and the permissions of their folder
    flags: list[str] | None = None  # of its JVM, sorted; None where its environment cannot be read
    configuration: Mapping[str, str] = field(default_factory=dict)  # as logged at its start; empty: no record
    properties: str = "unknown"  # how config.properties differs from that of the start
    properties_at_start: str | None = None  # its digest when TorchServe read it; None: no record
    models: tuple[SeenModel, ...] = ()


def compare_digest(file: Path, at_start: str | None) -> str:
    """What has become of a file since the start; empty where that is its digest still."""
    if not file.exists():
        return "gone"
    now = hashlib.sha256(file.read_bytes()).hexdigest()
    return "" if now == at_start else "changed since the start"


def collect_proxy(plan: Plan, run: RunDir) -> SeenProxy:
    """What HAProxy and the supervisor show."""
    processes = [one for one in find_marked(run.path) if one.role in ("HAProxy", "supervisor")]
    record, state = read_record(run.record), read_state(run.state)
    watched = any(process.role == "supervisor" for process in processes)
    try:
        limits = Runtime(Path(run.proxy_files.admin_socket)).read_limits()
    except ServerError:
        limits = {}
    why = Unknown("server.json does not say what it was started from")
    return SeenProxy(
        phase=record.phase.value if record and watched else "no supervisor runs",
        plan=compare_digest(run.plan, state.plan_sha256) if state else why,
        configuration=compare_digest(run.proxy_config, state.properties_sha256 if state else None),
        listening=read_listening(processes),
        answers=probe_proxy(make_client(plan, run), next(iter(plan.models)), plan.proxy.max_request_bytes),
        limits=limits,
        token=f"mode {stat.S_IMODE(run.token.stat().st_mode):o}" if run.token.exists() else "none",
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
        collect_model(one, version, plan.instances[name], archives.get(one), own, client, state)
        for one in instance.models
        for version in instance.models[one].archives
    )
    known = {worker.pid for model in models for worker in model.workers}
    orphans = tuple(pid for pid in workers if pid not in known)
    logged = state.configuration if state else {}  # a Java list has blanks after its commas
    return SeenInstance(
        running=True,
        orphans=None if any(one.problem for one in models) else orphans,
        cpus=tuple(sorted({cpu for cpus in (read_thread_cpus(java.pid) or {}).values() for cpu in cpus})),
        listening=read_listening(processes),
        answers=probe_instance(client, next(iter(instance.models)), instance.properties),
        sockets=read_sockets(own),
        flags=read_flags(java.command, read_environment(java.pid)),
        configuration={
            name: text[1:-1].replace(", ", ",") if text.startswith("[") else text
            for name, text in logged.items()
        },
        properties=compare_digest(own.properties, state.properties_sha256 if state else None),
        properties_at_start=state.properties_sha256 if state else None,
        models=models,
    )


def read_sockets(run: RunDir) -> str:
    """Which there are, and who may reach them; `run` is the instance's."""
    there = [one for one in SOCKETS if (run.temporary / f"{one}.sock").is_socket()]
    if not run.temporary.exists():
        return "none"
    folder = run.temporary.stat()
    other = "" if folder.st_uid == run.path.stat().st_uid else " of another user"
    return f"{', '.join(there)}; folder of mode {stat.S_IMODE(folder.st_mode):o}{other}"


def read_flags(command: Sequence[str], environment: Mapping[str, str] | None) -> list[str] | None:
    """All before the class path, and those of the environment, where none may be."""
    if environment is None:
        return None
    words = command[1 : command.index("-cp") if "-cp" in command else None]
    beside = [f"{name}={environment[name]}" for name in JAVA_VARIABLES if environment.get(name)]
    return sorted([word for word in words if not word.startswith(_ADDED)] + beside)


def collect_model(name: str, version: str, instance: InstancePlan, archive: Packed | None, run: RunDir,
                  client: Client, state: State | None) -> SeenModel:  # fmt: skip
    """One version and its workers; `run` is the instance's."""
    model = instance.models[name]
    path = name if model.kit else f"{name}/{version}"
    try:
        described = client.describe(path)
        queue_size = read_queue_size(path, client, described, instance.queue_size)
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
        queue_size=queue_size,
        files=find_changes(file, archive.sums if archive else None, run.temporary / "models"),
        workers=tuple(read_worker(pid, told, state, archive.archive_id if archive else "") for pid in pids),
    )


def find_changes(archive: Path | None, sums: bytes | None, unpacked: Path) -> str:
    """What differs from the archive in each folder that TorchServe unpacked it to; empty where nothing does.

    `sums`: of an archive of this kit. Of others only the archive's own files are compared: what a handler
    writes beside them is its own affair.
    """

    def identify(manifest: bytes) -> list[str]:
        model = json.loads(manifest)["model"]
        return [model["modelName"], model["modelVersion"]]

    if archive is None:
        return "no archive is left in the store to compare with"
    try:
        with zipfile.ZipFile(archive) as packed:
            model = identify(packed.read(_MANIFEST))
            members = {one.filename: one.CRC for one in packed.infolist() if not one.is_dir()}
        manifests = [file for file in unpacked.glob(f"*/{_MANIFEST}") if identify(file.read_bytes()) == model]
    except (OSError, KeyError, TypeError, ValueError, zipfile.BadZipFile) as problem:
        return f"cannot be read: {problem!r}"
    changes = []
    for folder in (manifest.parents[1] for manifest in manifests):
        if sums is not None:
            changes += find_changed_files(sums, folder)
            continue
        crcs = {name: _sum_file(folder / name) for name in members}
        words = {name: "is missing" if crc is None else "has changed" for name, crc in crcs.items()}
        changes += [f"{name} {words[name]}" for name, crc in members.items() if crcs[name] != crc]
    return render_changes(sorted(changes)) if manifests else "not unpacked"


def _sum_file(file: Path) -> int | None:
    """CRC-32, in pieces: a model may be larger than the memory that is left. None where there is no file."""
    if not file.is_file():
        return None
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
