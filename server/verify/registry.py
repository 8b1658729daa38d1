"""Collects the evidence of a run directory's server and judges it by all checks, in order."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from config.plan import Plan
from server.archives import read_archives_left
from server.call import make_client, make_instance_client, read_instances
from server.rundir import RunDir
from server.verify import model, placement, server_checks
from server.verify.collect import collect
from server.verify.door import DOOR_CHECKS, collect_door
from server.verify.evidence import (
    DIFFERS,
    Finding,
    FrontendEvidence,
    ModelEvidence,
    ServerEvidence,
    WorkerEvidence,
)

# Printed in this order: first what makes the rest meaningless, then from the machine inwards to the model.
SERVER_CHECKS: tuple[Callable[[Plan, ServerEvidence], Finding], ...] = (
    server_checks.check_running,
    server_checks.check_plan,
    server_checks.check_server_cpus,
    server_checks.check_strays,
)
FRONTEND_CHECKS: tuple[Callable[[Plan, FrontendEvidence], Finding], ...] = (
    server_checks.check_properties,
    server_checks.check_jvm_flags,
    server_checks.check_addresses,
    server_checks.check_sockets,
    server_checks.check_grpc,
    server_checks.check_model_api,
    server_checks.check_allowed_urls,
    server_checks.check_installing,
    server_checks.check_request_size,
    server_checks.check_response_size,
)
MODEL_CHECKS: tuple[Callable[[Plan, ModelEvidence], Finding], ...] = (
    server_checks.check_workers,
    server_checks.check_ranks,
    server_checks.check_batch,
    server_checks.check_queue,
    server_checks.check_timeouts,
    server_checks.check_files,
)
CHECKS: tuple[Callable[[Plan, WorkerEvidence], Finding], ...] = (
    model.check_process,
    model.check_describe,
    model.check_archive,
    placement.check_launcher,
    placement.check_affinity,
    placement.check_memory_policy,
    placement.check_throttling,
    placement.check_allocator,
    placement.check_allocator_options,
    placement.check_openmp,
    model.check_threads,
    model.check_environment,
    model.check_limits,
    model.check_precision,
    model.check_backend,
    model.check_steps,
    model.check_channels_last,
    model.check_packing,
    model.check_graph,
    model.check_self_check,
)


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One finding and what it is about."""

    instance: str = ""
    """Which one; empty for HAProxy."""
    model: str | None
    """None for the server as a whole."""
    pid: int | None
    """None for a model as a whole."""
    finding: Finding
    """What the check says."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """All findings, in order."""

    judged: tuple[Judged, ...]
    """Server, then per model the model's own and each worker's."""

    @property
    def good(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    @property
    def differences(self) -> tuple[Judged, ...]:
        """Those that differ."""
        return tuple(one for one in self.judged if one.finding.state == DIFFERS)


def judge(plan: Plan, seen: ServerEvidence) -> Result:
    """Every check on everything seen; without a running server only the first is of use."""
    judged = [Judged(model=None, pid=None, finding=check(plan, seen)) for check in SERVER_CHECKS]
    if seen.frontend:
        judged += [
            Judged(model=None, pid=None, finding=check(plan, seen.frontend)) for check in FRONTEND_CHECKS
        ]
    for name, one in seen.models.items():
        judged += [Judged(model=name, pid=None, finding=check(plan, one)) for check in MODEL_CHECKS]
        judged += [
            Judged(model=name, pid=worker.pid, finding=check(plan, worker))
            for worker in one.workers
            for check in (CHECKS if worker.thread_cpus is not None else (model.check_process,))
        ]
    return Result(judged=tuple(judged))


def verify(plan: Plan, run: RunDir, model_store: Path) -> Result:
    """Compare the plan with what is live now: HAProxy, then each instance."""
    seen = collect_door(plan, run, make_client(plan, run))
    judged = [Judged(model=None, pid=None, finding=check(plan, seen)) for check in DOOR_CHECKS]
    for name, (folder, own) in read_instances(run, plan).items():
        result = verify_instance(own, folder, model_store)
        judged += [dataclasses.replace(one, instance=name) for one in result.judged]
    return Result(judged=tuple(judged))


def verify_instance(plan: Plan, run: RunDir, model_store: Path) -> Result:
    """The same of one TorchServe."""
    archives = read_archives_left(plan, model_store)
    return judge(plan, collect(plan, run, archives, make_instance_client(plan)))
