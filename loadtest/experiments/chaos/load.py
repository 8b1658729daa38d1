"""The load beside a fault: an open loop that goes on until enough was seen, and a peak to take a share of.

Each request has a connection of its own: a kept one may be closed by the server at any moment (RFC 9112,
9.3.1), and what comes of that is nobody's fault.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.drivers import drive
from loadtest.drivers.job import Job, make_job, write_job
from loadtest.drivers.locust import ONE_PROCESS, Running, start_locust
from loadtest.drivers.records import Records
from loadtest.errors import LoadTestError
from loadtest.experiments.chaos.row import GIVEN_UP_S
from loadtest.payloads import Payload
from loadtest.payloads.photos import IMAGENET, SCENES, WHOLE, Form, list_views, make_photo
from loadtest.results.stats import count_done
from loadtest.scenarios.scenario import Arrival, Scenario, Step

DEADLINE_HEADER = "X-Deadline-Ms"
SEED = 13
SMALL = 9
"""Photographs beside a large one."""
LARGE = Form(name="large", size=(1280, 960), options={"quality": 92})
"""300 kB: more than HAProxy's buffers hold where nobody made them larger."""
WARM_UP_S, PEAK_S = 4.0, 8.0
LONGEST_S = 360.0
"""Of an open loop; it is told to end long before."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where the load goes."""

    url: str
    token: str
    payloads: Sequence[Payload]


def make_photos(model: str) -> list[Payload]:
    """One in ten is of 300 kB."""
    views = list_views(SMALL)
    small = [
        make_photo(SCENES[number % len(SCENES)], IMAGENET, view, model=model, name=f"{number:02d}")
        for number, view in enumerate(views)
    ]
    return [*small, make_photo(SCENES[0], LARGE, WHOLE, model=model)]


def make_request_job(
    target: Target, *, loop: str, level: Step, seconds: float, deadline_ms: int, seed: int = SEED,
    warm_up_s: float = 0.0,
) -> Job:  # fmt: skip
    """Every request says until when its answer is wanted."""
    scenario = Scenario(
        name="chaos",
        model=target.payloads[0].model,
        payloads="chaos",
        arrival=Arrival(loop=loop, process="poisson", seed=seed),
        steps=(level,),
        warm_up_s=warm_up_s,
        duration_s=seconds,
        timeout_s=deadline_ms / 1000 + GIVEN_UP_S,
    )
    headers: Mapping[str, str] = {DEADLINE_HEADER: str(deadline_ms), "Connection": "close"}
    job = make_job(
        scenario,
        level=float(level),
        repeat=0,
        url=target.url,
        token=target.token,
        payloads=target.payloads,
        more_headers=headers,
    )
    return dataclasses.replace(job, cool_down_s=0.0)


def find_peak(target: Target, *, users: int, deadline_ms: int) -> float:
    """Requests a second of a short closed loop; LoadTestError when some were not answered well."""
    job = make_request_job(
        target, loop="closed", level=users, seconds=PEAK_S, deadline_ms=deadline_ms, warm_up_s=WARM_UP_S
    )
    with tempfile.TemporaryDirectory(prefix="kit-load-") as name:
        records = drive(job, write_job(job, target.payloads, Path(name)), ONE_PROCESS).records
    bad = records.take(~records.good)
    if len(bad) or not len(records):
        why = (
            f"{len(bad)} of {len(records)} requests failed: {', '.join(sorted(set(bad.error.tolist()))[:3])}"
        )
        raise LoadTestError(f"what the peak is cannot be told: {why}")
    return round(count_done(records, 0.0, PEAK_S) / PEAK_S, 2)


@dataclass(frozen=True, kw_only=True)
class UnderWay:
    """An open loop that sends."""

    zero: float
    """When it began: seconds since the epoch."""
    running: Running

    def finish(self) -> Records:
        """Nothing more is sent; all that was, with what became of it."""
        self.running.send_no_more()
        return self.running.wait().records


@contextlib.contextmanager
def sending(target: Target, *, rate: float, deadline_ms: int, seed: int) -> Iterator[UnderWay]:
    """It has begun; nothing is left of it after the block."""
    job = make_request_job(
        target, loop="open", level=rate, seconds=LONGEST_S, deadline_ms=deadline_ms, seed=seed
    )
    with tempfile.TemporaryDirectory(prefix="kit-load-") as name:
        running = start_locust(job, write_job(job, target.payloads, Path(name)), ONE_PROCESS)
        try:
            yield UnderWay(zero=running.wait_for_begin(), running=running)
        finally:
            running.end()
