"""What was seen of the live server: plain values, so that recorded evidence can be judged in a test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


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
    changed_files: tuple[str, ...] | None = None
    """Files of its unpacked archive that are not as built, in words; None when there is no such folder."""


@dataclass(frozen=True, kw_only=True)
class ServerEvidence:
    """The whole server."""

    running: bool
    """Whether TorchServe's java process runs."""
    plan_unchanged: bool | None
    """Whether plan.json is what the server was started from; None when that was not recorded."""
    server_cpus: tuple[int, ...] | None = None
    """CPUs the threads of TorchServe's java process may use; None when it cannot be read."""
    stray_workers: tuple[int, ...] = ()
    """Worker processes of this run directory that TorchServe does not know."""
    models: Mapping[str, ModelEvidence] = field(default_factory=dict)
    """By name, in the plan's order."""
