"""Waits until every model answers right: all workers READY *and* the answer to its smoke request as expected.

/ping is no measure: it says Healthy while workers load and through the first minutes of a crash loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from config.plan import InstancePlan
from config.terminal import Report
from server.errors import ApiError
from server.state import Failure
from server.supervisor.observe import count_planned, describe, send_smoke_request

if TYPE_CHECKING:
    from handlers.definition import Packed

POLL_SECONDS = 0.5
SETTLE_SECONDS = 0.5
"""After the first sign of a failure its cause may still be on the way into the log."""
EXTRA_SECONDS = 120
"""Beyond the workers' own time-out: JVM, unpacking of archives, the launcher's probe before each worker."""
SMOKE_TIMEOUT_S = 60.0
READY = "ready"
Find = Callable[[], "Failure | None"]


class StartFailed(Exception):  # noqa: N818 - it is an outcome, with its explanation
    """The server cannot become ready."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.cause)
        self.failure = failure


async def wait_until_ready(
    own: InstancePlan,
    archives: Mapping[str, Packed],
    *,
    find_failure: Find,
    find_death: Find,
    report: Report,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    now: Callable[[], float] = time.monotonic,
) -> None:
    """Until every model is ready; StartFailed with the cause at the first failure.

    `find_failure`: the first failed worker so far; `find_death`: why TorchServe itself ended. A model without
    an archive of the kit is sent no smoke request.
    """
    began = now()
    limit = max(model.startup_timeout_s for model in own.models.values()) + EXTRA_SECONDS
    states: dict[str, str] = {}
    while any(states.get(name) != READY for name in own.models):
        if find_failure():
            await sleep(SETTLE_SECONDS)
        if failure := find_failure() or find_death():
            raise StartFailed(failure)
        for name in own.models:
            if states.get(name) != READY:
                before, states[name] = states.get(name), await _observe(own, name, archives, find_failure)
                if states[name] != before:
                    report(f"{now() - began:5.0f} s  {name}: {states[name]}")
        if waiting := "; ".join(f"{name}: {state}" for name, state in states.items() if state != READY):
            if now() - began > limit:
                cause = f"not ready after {limit} s: {waiting}"
                raise StartFailed(Failure(cause=cause, fix="see the log of the workers"))
            await sleep(POLL_SECONDS)


async def _observe(own: InstancePlan, name: str, archives: Mapping[str, Packed], find_failure: Find) -> str:
    """The model's state now, in words; READY after a right answer."""
    model, planned = own.models[name], count_planned(own.models[name])
    try:
        up = len((await describe(own, name))[0])
    except ApiError as problem:
        if problem.status != 404:
            return "TorchServe is starting"
        cause = f"TorchServe does not know the model (archive {', '.join(model.archives.values())})"
        raise StartFailed(find_failure() or Failure(model=name, step="register", cause=cause)) from problem
    if up < planned:
        return f"{up} of {planned} workers ready"
    if name not in archives:
        return READY
    fix = None
    try:
        wrong = await send_smoke_request(own, name, archives[name], SMOKE_TIMEOUT_S)
        cause = f"wrong answer: {wrong}" if wrong else ""
        fix = "the archive may be damaged or made by another version: make clean && make models"
    except ApiError as problem:
        cause = f"the smoke request got no answer: {problem}"
    if cause:
        raise StartFailed(Failure(model=name, step="smoke request", cause=cause, fix=fix))
    return READY
