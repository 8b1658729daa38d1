"""Waits until every model answers right: all workers READY *and* the canary's answer as expected.

/ping is no measure: it says Healthy while workers load and through the first minutes of a crash loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from config.plan import Plan
from config.terminal import Report
from server.api import Client
from server.archives import check_answer
from server.errors import ApiError
from server.state import Failure

if TYPE_CHECKING:  # pydantic, which a Python without the environment has not
    from handlers.definition import Packed

POLL_SECONDS = 0.5
# After the first sign of a failure its cause may still be on the way into the log.
_SETTLE_SECONDS = 0.5
# On top of the workers' own time-out: JVM, unpacking of archives, the launcher's probe before each worker.
EXTRA_SECONDS = 120
READY = "ready"


class StartFailed(Exception):  # noqa: N818 - it is an outcome, with its explanation
    """The server cannot become ready."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.cause)
        self.failure = failure


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What the wait looks at; a test puts its own in."""

    client: Client
    """TorchServe's addresses."""
    find_failure: Callable[[], Failure | None]
    """The first failed worker so far."""
    find_death: Callable[[], Failure | None]
    """Why TorchServe itself ended; None while it runs."""
    report: Report
    """Takes one line per change of state."""
    sleep: Callable[[float], None] = time.sleep
    """Waits."""
    now: Callable[[], float] = time.monotonic
    """Seconds."""


def wait_until_ready(plan: Plan, archives: Mapping[str, Packed], around: Surroundings) -> float:
    """Seconds until every model was ready; StartFailed with the cause at the first failure."""
    began = around.now()
    limit = max(int(model.startup_timeout_s.value) for model in plan.models.values()) + EXTRA_SECONDS
    states: dict[str, str] = {}
    while True:
        _raise_failure(around)
        for name in plan.models:
            if states.get(name) != READY and states.get(name) != (
                state := _observe(plan, archives[name], around)
            ):
                states[name] = state
                around.report(f"{around.now() - began:5.0f} s  {name}: {state}")
        seconds = around.now() - began
        if all(states.get(name) == READY for name in plan.models):
            return seconds
        if seconds > limit:
            waiting = "; ".join(f"{name}: {state}" for name, state in states.items() if state != READY)
            cause = f"not ready after {limit} s: {waiting}"
            raise StartFailed(Failure(cause=cause, cure="see the log of the workers"))
        around.sleep(POLL_SECONDS)


def _raise_failure(around: Surroundings) -> None:
    if around.find_failure():
        around.sleep(_SETTLE_SECONDS)
    failure = around.find_failure() or around.find_death()
    if failure:
        raise StartFailed(failure)


def _observe(plan: Plan, archive: Packed, around: Surroundings) -> str:
    """The model's state now, in words; READY after a right canary answer."""
    model = plan.models[archive.definition.name]
    try:
        workers = around.client.describe(archive.definition.name).get("workers", [])
    except ApiError as problem:
        if problem.status != 404:
            return "TorchServe is starting"
        cause = f"TorchServe does not know the model (archive {model.archive.value})"
        unknown = Failure(model=archive.definition.name, step="register", cause=cause)
        raise StartFailed(around.find_failure() or unknown) from problem
    up = sum(worker.get("status") == "READY" for worker in workers)
    if up < int(model.workers.value):
        return f"{up} of {model.workers.value} workers ready"
    return _ask_canary(archive, str(model.precision.value), around)


def _ask_canary(archive: Packed, precision: str, around: Surroundings) -> str:
    definition = archive.definition
    try:
        answer = around.client.predict(definition.name, archive.body, definition.example.content_type)
    except ApiError as problem:
        cause = f"the canary got no answer: {problem}"
        raise StartFailed(Failure(model=definition.name, step="canary", cause=cause)) from problem
    wrong = check_answer(definition, precision, answer)
    if wrong:
        cure = "the archive may be damaged or made by another version: make clean && make models"
        raise StartFailed(
            Failure(model=definition.name, step="canary", cause=f"wrong answer: {wrong}", cure=cure)
        )
    return READY
