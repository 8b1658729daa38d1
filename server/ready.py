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
"""On top of the workers' own time-out: JVM, unpacking of archives, the launcher's probe before each worker."""
SMOKE_TIMEOUT_S = 60.0
READY = "ready"


class StartFailed(Exception):  # noqa: N818 - it is an outcome, with its explanation
    """The server cannot become ready."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.cause)
        self.failure = failure


async def wait_until_ready(
    own: InstancePlan,
    archives: Mapping[str, Packed],
    *,
    find_failure: Callable[[], Failure | None],
    find_death: Callable[[], Failure | None],
    report: Report,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    now: Callable[[], float] = time.monotonic,
) -> float:
    """Seconds until every model was ready; StartFailed with the cause at the first failure.

    `find_failure`: the first failed worker so far; `find_death`: why TorchServe itself ended. A model without an
    archive of the kit is sent no smoke request.
    """
    began = now()
    limit = max(model.startup_timeout_s for model in own.models.values()) + EXTRA_SECONDS
    states: dict[str, str] = {}
    while True:
        if find_failure():
            await sleep(SETTLE_SECONDS)
        if failure := find_failure() or find_death():
            raise StartFailed(failure)
        for name in own.models:
            if states.get(name) != READY:
                state = await _observe(own, name, archives.get(name), find_failure)
                if states.get(name) != state:
                    report(f"{now() - began:5.0f} s  {name}: {state}")
                states[name] = state
        seconds = now() - began
        waiting = "; ".join(f"{name}: {state}" for name, state in states.items() if state != READY)
        if not waiting:
            return seconds
        if seconds > limit:
            cause = f"not ready after {limit} s: {waiting}"
            raise StartFailed(Failure(cause=cause, fix="see the log of the workers"))
        await sleep(POLL_SECONDS)


async def _observe(
    own: InstancePlan, name: str, archive: Packed | None, find_failure: Callable[[], Failure | None]
) -> str:
    """The model's state now, in words; READY after a right answer."""
    model = own.models[name]
    try:
        up = len((await describe(own, name))[0])
    except ApiError as problem:
        if problem.status != 404:
            return "TorchServe is starting"
        files = ", ".join(model.archives.values())
        unknown = Failure(
            model=name, step="register", cause=f"TorchServe does not know the model (archive {files})"
        )
        raise StartFailed(find_failure() or unknown) from problem
    if up < (planned := count_planned(model)):
        return f"{up} of {planned} workers ready"
    if archive is None:
        return READY
    try:
        wrong = await send_smoke_request(own, name, archive, SMOKE_TIMEOUT_S)
    except ApiError as problem:
        cause = f"the smoke request got no answer: {problem}"
        raise StartFailed(Failure(model=name, step="smoke request", cause=cause)) from problem
    if wrong:
        fix = "the archive may be damaged or made by another version: make clean && make models"
        raise StartFailed(Failure(model=name, step="smoke request", cause=f"wrong answer: {wrong}", fix=fix))
    return READY
