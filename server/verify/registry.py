"""The ordered registry of checks, and the judgement of one server by all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from config.plan import Plan
from server.verify.evidence import FrontendEvidence, ModelEvidence, ServerEvidence, WorkerEvidence
from server.verify.findings import DIFFERS, Finding
from server.verify.libraries import check_allocator, check_allocator_options, check_openmp
from server.verify.model import (
    check_archive,
    check_channels_last,
    check_describe,
    check_engine,
    check_graph,
    check_packing,
    check_precision,
    check_process,
    check_self_check,
    check_steps,
)
from server.verify.placement import check_affinity, check_launcher, check_memory_policy, check_throttling
from server.verify.protection import (
    check_addresses,
    check_grpc,
    check_model_api,
    check_request_size,
    check_sockets,
)
from server.verify.server_checks import (
    check_files,
    check_plan,
    check_ranks,
    check_running,
    check_server_cpus,
    check_strays,
    check_workers,
)
from server.verify.serving import check_batch, check_queue, check_timeouts
from server.verify.settings import check_environment, check_limits, check_threads
from server.verify.startup import (
    check_allowed_urls,
    check_installing,
    check_jvm_flags,
    check_properties,
    check_response_size,
)

# Printed in this order: first what makes the rest meaningless, then from the machine inwards to the model.
SERVER_CHECKS: tuple[Callable[[Plan, ServerEvidence], Finding], ...] = (
    check_running,
    check_plan,
    check_server_cpus,
    check_strays,
)
FRONTEND_CHECKS: tuple[Callable[[Plan, FrontendEvidence], Finding], ...] = (
    check_properties,
    check_jvm_flags,
    check_addresses,
    check_sockets,
    check_grpc,
    check_model_api,
    check_allowed_urls,
    check_installing,
    check_request_size,
    check_response_size,
)
MODEL_CHECKS: tuple[Callable[[Plan, ModelEvidence], Finding], ...] = (
    check_workers,
    check_ranks,
    check_batch,
    check_queue,
    check_timeouts,
    check_files,
)
CHECKS: tuple[Callable[[Plan, WorkerEvidence], Finding], ...] = (
    check_process,
    check_describe,
    check_archive,
    check_launcher,
    check_affinity,
    check_memory_policy,
    check_throttling,
    check_allocator,
    check_allocator_options,
    check_openmp,
    check_threads,
    check_environment,
    check_limits,
    check_precision,
    check_engine,
    check_steps,
    check_channels_last,
    check_packing,
    check_graph,
    check_self_check,
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
    for name, model in seen.models.items():
        judged += [Judged(model=name, pid=None, finding=check(plan, model)) for check in MODEL_CHECKS]
        judged += [
            Judged(model=name, pid=worker.pid, finding=check(plan, worker))
            for worker in model.workers
            for check in (CHECKS if worker.thread_cpus is not None else (check_process,))
        ]
    return Result(judged=tuple(judged))
