"""Closed loop by Locust: N users, each sends its next request as soon as it has its answer.

Closed-loop response times are no latency under load: a server that stalls is asked less. Locust runs in a
process of its own (gevent patches the standard library), headless, with FastHttpUser; samples come from
its `request` event, because its statistics round to two digits (docs.locust.io, "Retrieve test statistics").
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from loadtest.errors import LoadTestError
from loadtest.samples import Samples, load_samples

ROOT = Path(__file__).resolve().parents[2]
LOCUSTFILE = Path(__file__).with_name("locustfile.py")
JOB_VARIABLE = "CPU_KIT_LOCUST_JOB"
"""Names the file of the job to the locustfile."""
SAMPLES_FILE = "samples.npz"
USAGE_FILE = "usage.json"
EXTRA_SECONDS = 30
"""For Locust's own start and end, on top of the run and of one request's time-out."""


@dataclass(frozen=True, kw_only=True)
class ClosedLoop:
    """What to send."""

    url: str
    """http://host:port; each payload has its own path."""
    token: str
    """Sent as `Authorization: Bearer`; empty sends none."""
    payloads: str
    """Folder with a list of payloads."""
    users: int
    """Requests that are under way at any time."""
    seconds: float
    """How long is measured, after the warm-up."""
    warm_up_seconds: float = 0.0
    """Answers that come in this time are kept as samples but not measured."""
    most_requests: int | None = None
    """Send no more than this, whatever the time."""
    timeout_s: float = 120.0
    """For one request."""
    seed: int = 0
    """Of the order in which payloads are sent."""
    shuffle: bool = True
    """False sends them as they are listed, again and again."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ClosedLoopResult:
    """What came back."""

    job: ClosedLoop
    samples: Samples
    """Of all requests, the warm-up's too."""
    cpu_seconds: float
    """CPU time of Locust from the first request to the last answer."""

    @property
    def seconds(self) -> float:
        """How long was measured: as asked, or until the last answer when the requests ran out before."""
        return min(self.job.seconds, float(self.samples.end.max()) - self.job.warm_up_seconds)

    @property
    def measured(self) -> Samples:
        """Samples whose answers came after the warm-up and in time."""
        begin = self.job.warm_up_seconds
        if self.job.most_requests is None:
            return self.samples.answered_within(begin, begin + self.job.seconds)
        return self.samples.answered_within(begin, float("inf"))

    @property
    def requests_per_second(self) -> float:
        """Answers per second of the measured time."""
        return len(self.measured) / self.seconds


def run_closed_loop(job: ClosedLoop, folder: Path) -> ClosedLoopResult:
    """Run it, with Locust's files in `folder`; LoadTestError when nothing came out."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "job.json"
    file.touch(mode=0o600)  # it holds the token
    file.write_text(json.dumps({**asdict(job), "folder": str(folder)}), encoding="utf-8")
    try:
        _run_locust(job, file)
    finally:
        file.unlink()
    usage = json.loads((folder / USAGE_FILE).read_text(encoding="utf-8"))
    samples = load_samples(folder / SAMPLES_FILE)
    if not len(samples):
        raise LoadTestError(f"{job.url}: Locust sent nothing; see {folder}/locust.log")
    return ClosedLoopResult(job=job, samples=samples, cpu_seconds=usage["cpu_seconds"])


def _run_locust(job: ClosedLoop, file: Path) -> None:
    (file.parent / SAMPLES_FILE).unlink(missing_ok=True)
    command = [sys.executable, "-m", "locust", "--locustfile", str(LOCUSTFILE), "--headless"]
    command += ["--users", str(job.users), "--spawn-rate", str(job.users), "--host", job.url]
    # Failed requests are in the samples; the exit code tells of Locust itself.
    command += ["--only-summary", "--exit-code-on-error", "0", "--logfile", str(file.parent / "locust.log")]
    limit = job.warm_up_seconds + job.seconds + job.timeout_s + EXTRA_SECONDS
    environment = {**os.environ, JOB_VARIABLE: str(file)}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired as problem:
        raise LoadTestError(f"Locust did not finish within {limit:.0f} s; see {file.parent}") from problem
    if done.returncode != 0 or not (file.parent / SAMPLES_FILE).exists():
        raise LoadTestError(f"Locust failed ({done.returncode}): {done.stderr.strip()[-500:]}")
