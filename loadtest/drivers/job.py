"""What a load generator is told, in a folder that can go to other machines, and what it brings back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loadtest.drivers.records import Records
from loadtest.payloads import Payload
from loadtest.scenarios.scenario import Scenario

JOB_FILE = "job.json"
COOL_DOWN_S = 2.0
"""The load goes on for so long after the window, so that its last requests end under the same load."""


@dataclass(frozen=True, kw_only=True)
class Body:
    """One payload in the job's folder."""

    file: str
    content_type: str
    path: str
    """Of the URL."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to send, and when."""

    url: str
    """http://host:port of the server."""
    token: str
    """Sent as `Authorization: Bearer`; empty sends none."""
    is_open: bool
    level: float
    """Users of a closed loop, requests a second of an open one."""
    process: str
    """poisson or constant, of an open loop."""
    seed: int
    shuffled: bool
    """False sends the payloads as they are listed, again and again (closed loops)."""
    warm_up_s: float
    duration_s: float
    timeout_s: float
    stop_after: int | None
    """A closed loop ends after so many requests, whatever the time; None: when the time is over."""
    bodies: tuple[Body, ...]
    cool_down_s: float = COOL_DOWN_S

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    @property
    def longest_s(self) -> float:
        """After this even the slowest request has been given up."""
        return self.warm_up_s + self.duration_s + self.cool_down_s + self.timeout_s


def make_job(
    scenario: Scenario, *, level: float, repeat: int, url: str, token: str, payloads: Sequence[Payload]
) -> Job:
    """One repeat of one step; each repeat has arrivals of its own."""
    return Job(
        url=url,
        token=token,
        is_open=scenario.is_open,
        level=level,
        process=scenario.arrival.process,
        seed=scenario.arrival.seed + 1000 * repeat,
        shuffled=scenario.shuffled,
        warm_up_s=scenario.warm_up_s,
        duration_s=scenario.duration_s,
        timeout_s=scenario.timeout_s,
        stop_after=scenario.stop_after,
        bodies=tuple(
            Body(file=f"{number:04d}.body", content_type=one.content_type, path=one.path)
            for number, one in enumerate(payloads)
        ),
    )


def write_job(job: Job, payloads: Sequence[Payload], folder: Path) -> Path:
    """The folder with job.json, readable by its owner alone as it holds the token, and the bodies."""
    folder.mkdir(parents=True, exist_ok=True)
    for body, payload in zip(job.bodies, payloads, strict=True):
        (folder / body.file).write_bytes(payload.body)
    file = folder / JOB_FILE
    file.touch(mode=0o600)
    file.write_text(json.dumps(asdict(job), indent=1), encoding="utf-8")
    return folder


def read_job(folder: Path) -> Job:
    """The job in a folder."""
    raw: dict[str, Any] = json.loads((folder / JOB_FILE).read_text(encoding="utf-8"))
    return Job(**{**raw, "bodies": tuple(Body(**one) for one in raw["bodies"])})


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the generators saw of one job."""

    records: Records
    """Of all requests, those of warm-up and cool-down too."""
    wall_zero: float
    """When the measured window began, in seconds since the epoch."""
    cpu_shares: tuple[float, ...] = ()
    """Of each generating process: cores used during the window; empty where nothing generates."""
    requests_per_second: float | None = None
    """The driver's own figure, where its raw times are too coarse to make one (ab)."""
    model_share: float | None = None
    """Without a server: the part of the time inside the model (0 to 1)."""
    notes: tuple[str, ...] = ()
    """What the driver itself says."""
