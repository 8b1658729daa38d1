"""What was seen of the live server, and what a check says of it: plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from config.plan import Plan


@dataclass(frozen=True, kw_only=True)
class WorkerEvidence:
    """One worker process; None means that it could not be read."""

    model: str
    """Name of the model it serves."""
    pid: int
    """Process id."""
    launcher: tuple[str, ...] | None
    """Command line of the launcher above it; None when its parent is no launcher."""
    thread_cpus: Mapping[str, tuple[int, ...]] | None
    """Thread id → CPUs it may run on (/proc/PID/task/*/status)."""
    memory_policies: Mapping[str, int] | None
    """NUMA policy → mappings with it (/proc/PID/numa_maps)."""
    libraries: tuple[str, ...] | None
    """Mapped shared objects, real paths (/proc/PID/maps)."""
    environment: Mapping[str, str] | None
    """Environment it was started with (/proc/PID/environ)."""
    describe: Mapping[str, Any] | None
    """Its own answer to describe."""
    describe_problem: str = ""
    """Why there is no such answer."""
    excuse: str = ""
    """Why it could not be asked or had no turn to answer, where that is no fault of its own."""
    stopped: bool = False
    """Whether it is stopped (by SIGSTOP or a debugger) and so does nothing at all."""
    archive_id: str = ""
    """Id of the archive in the model store now."""
    throttled_files: tuple[str, ...] = ()
    """Files that count the throttling of its control groups."""
    throttled: int = 0
    """Times its control groups were throttled since the server was ready."""
    throttled_ms_per_period: float = 0.0
    """Time lost by that, on average, of each period (100 ms as a rule)."""
    throttled_loading: int = 0
    """The same from the start until ready; for information."""


@dataclass(frozen=True, kw_only=True)
class ModelEvidence:
    """One model as TorchServe lists it."""

    name: str
    """The model's name."""
    listed: int
    """Workers TorchServe lists."""
    ready: int
    """Those of them that are READY."""
    workers: tuple[WorkerEvidence, ...]
    """Evidence of each of them that has a process."""
    problem: str = ""
    """Why TorchServe does not describe the model."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """TorchServe's own description: batchSize, maxBatchDelay, responseTimeout, startupTimeout …"""
    queue_sizes: tuple[int, ...] = ()
    """Places of its queue, taken and free; more than one look where requests came and went meanwhile."""
    changed_files: tuple[str, ...] | None = None
    """Files of its unpacked archive that are not as built, in words; None when there is no such folder."""


@dataclass(frozen=True, kw_only=True)
class FrontendEvidence:
    """TorchServe's own process: what it listens on, lets in and was started with."""

    listening: Mapping[str, str] | None
    """Address → role of the process of this server that listens there; None when it cannot be read."""
    answers: Mapping[str, str]
    """Probe (server/verify/probes.py) → how it was answered: a status, or why there was none."""
    sockets: tuple[str, ...]
    """Which of TorchServe's Unix sockets are there: inference, management, metrics."""
    sockets_mode: int
    """Permissions of the folder they are in; 0 when there is none."""
    sockets_own: bool
    """Whether that folder is of the run directory's user."""
    flags: tuple[str, ...]
    """The JVM's flags on its command line, but for those the torchserve command adds for its own ends."""
    environment: Mapping[str, str] | None
    """Environment it was started with."""
    configuration: Mapping[str, str]
    """What it logged of its configuration at its start; empty when that was not recorded."""
    properties_now: str | None
    """Digest of config.properties; None when there is no such file."""
    properties_at_start: str | None
    """The same when the server was started; None when that was not recorded."""


@dataclass(frozen=True, kw_only=True)
class ServerEvidence:
    """The whole server."""

    running: bool
    """Whether TorchServe's java process runs."""
    plan_unchanged: bool | None
    """Whether plan.json is what the server was started from; None when that was not recorded."""
    server_cpus: tuple[int, ...] | None = None
    """CPUs the threads of TorchServe's java process may use; None when it cannot be read."""
    stray_workers: tuple[int, ...] | None = ()
    """Worker processes of this run directory that TorchServe does not know; None when it does not tell."""
    frontend: FrontendEvidence | None = None
    """TorchServe's own process; None when it does not run."""
    models: Mapping[str, ModelEvidence] = field(default_factory=dict)
    """By name, in the plan's order."""


OK = "ok"
DIFFERS = "DIFFERS"
NOT_CHECKABLE = "not checkable"

NO_ANSWER = "unknown: no answer to describe"
"""What checks got that need the worker's own description."""
RESTART = "make stop && make serve"
RECONFIGURE = f"config.properties was changed behind the plan's back? make plan && {RESTART}"
"""The cure of most differences in what TorchServe read when it started."""
TRY_AGAIN = "try again when its workers are free to answer"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The outcome of one check."""

    item: str
    """What was compared."""
    asked: str
    """What the plan says."""
    got: str
    """What the live process shows."""
    evidence: str
    """Where that was read."""
    state: str
    """ok, DIFFERS or not checkable."""
    cure: str = ""
    """What to do about a difference."""

    @property
    def ok(self) -> bool:
        """Whether it is as asked; what cannot be checked is not."""
        return self.state == OK


Check = Callable[[Plan, WorkerEvidence], Finding]
"""A check of one worker."""


def compare(
    item: str, asked: str, got: str, *, evidence: str, cure: str, same: bool | None = None
) -> Finding:
    """ok when `same` (by default: when the texts are equal), else DIFFERS with the cure."""
    good = asked == got if same is None else same
    state = OK if good else DIFFERS
    return Finding(item=item, asked=asked, got=got, evidence=evidence, state=state, cure="" if good else cure)


def need_describe(item: str) -> Callable[[Check], Check]:
    """Make a check say that its fact is unknown where the worker did not describe itself.

    That is a difference, unless there is an excuse: then it is not checkable now.
    """

    def wrap(check: Check) -> Check:
        def checked(plan: Plan, seen: WorkerEvidence) -> Finding:
            if seen.describe is not None:
                return check(plan, seen)
            if seen.excuse:
                return cannot_check(item, "as planned", seen.excuse, evidence="describe", cure=TRY_AGAIN)
            return compare(item, "as planned", NO_ANSWER, evidence="describe", cure="see describe")

        return checked

    return wrap


def cannot_check(item: str, asked: str, reason: str, *, evidence: str, cure: str) -> Finding:
    """The fact cannot be read and no difference can follow from it; said, never passed over."""
    return Finding(item=item, asked=asked, got=reason, evidence=evidence, state=NOT_CHECKABLE, cure=cure)
