"""Asks the workers of a model to describe themselves, without keeping TorchServe from seeing that one hangs.

TorchServe 0.12 puts the question at the end of the queue of predictions (ManagementRequestHandler.java), and
whichever worker is free answers it. A worker that takes the question and hangs is waited for without an end:
the response time-out counts for predictions only (WorkerThread.run). So a worker that is known to be stopped
is not asked, and neither are those beside it, since none can be chosen.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from server.activity import AT_WORK, read_activity
from server.api import Client
from server.errors import ApiError
from server.processes import PROC
from server.queues import count_waiting

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
    """All of them, as far as they answer in that time."""
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
