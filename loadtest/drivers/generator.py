"""Starts Locust for one job, as one process or several, and reads what they saw."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from loadtest.drivers.job import Job
from loadtest.errors import LoadTestError
from loadtest.records import Records, make_records, merge_records

ROOT = Path(__file__).resolve().parents[2]
LOCUSTFILE = Path(__file__).with_name("users.py")
JOB_VARIABLE = "CPU_KIT_LOADTEST_JOB"
"""Names the job's folder to Locust's processes."""
WORKERS_VARIABLE = "CPU_KIT_LOADTEST_WORKERS"
"""How many processes share the load."""
REPORT = "kit-report"
"""Locust's message with what one process saw."""
OUT_FILE = "reports.json"
EXTRA_SECONDS = 90
"""For Locust's own start and end, on top of the job's longest time."""


@dataclass(frozen=True, kw_only=True)
class Crew:
    """Who generates the load."""

    processes: int = 1
    """Locust's worker processes; 1 is a single process without a master."""
    remote: bool = False
    """They are started on other machines (drivers/remote.py); the master waits for them here."""

    @property
    def arguments(self) -> list[str]:
        if self.remote:
            return ["--master", "--master-bind-host", "127.0.0.1", "--expect-workers", str(self.processes)]
        return ["--processes", str(self.processes)] if self.processes > 1 else []


ONE_PROCESS = Crew()


def parse_crew(text: str) -> Crew:
    """PROCESSES: empty, a number, or remote:N."""
    found = re.fullmatch(r"(remote:)?([1-9]\d?)", text or "1")
    if not found:
        raise LoadTestError(f"PROCESSES must be a number from 1 to 99, or remote:N: got {text}")
    return Crew(processes=int(found.group(2)), remote=bool(found.group(1)))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the generators saw of one job."""

    records: Records
    """Of all requests, those of warm-up and cool-down too."""
    wall_zero: float
    """When the measured window began, in seconds since the epoch."""
    cpu_shares: tuple[float, ...]
    """Of each generating process: cores used during the window."""
    requests_per_second: float | None = None
    """The driver's own figure, where its raw times are too coarse to make one (ab)."""
    notes: tuple[str, ...] = ()
    """What the driver itself says."""


def run_locust(job: Job, folder: Path, crew: Crew) -> Outcome:
    """Run the job that was written to `folder`; LoadTestError when Locust did not finish it."""
    out = folder / OUT_FILE
    out.unlink(missing_ok=True)
    log = folder / "locust.log"
    command = [*locust_command(crew), "--headless", "--only-summary", "--exit-code-on-error", "0"]
    with log.open("wb") as file:
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=locust_environment(folder, crew),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=job.longest_s + EXTRA_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as problem:
            raise LoadTestError(
                f"Locust did not end in {job.longest_s + EXTRA_SECONDS:.0f} s: {_tail(log)}"
            ) from problem
    if not out.exists():
        raise LoadTestError(f"Locust ended ({done.returncode}) without a report: {_tail(log)}")
    return read_outcome(out, job)


def locust_command(crew: Crew) -> list[str]:
    return [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), *crew.arguments]


def locust_environment(folder: Path, crew: Crew) -> dict[str, str]:
    return {**os.environ, JOB_VARIABLE: str(folder), WORKERS_VARIABLE: str(crew.processes)}


def _tail(log: Path) -> str:
    return " | ".join(log.read_text(errors="replace").strip().splitlines()[-5:])[-600:]


def read_outcome(file: Path, job: Job) -> Outcome:
    """Merge the processes' reports; each counts from its own zero, which are milliseconds apart."""
    reports = json.loads(file.read_text(encoding="utf-8"))
    parts = [make_records(report["rows"], report["answers"]) for report in reports]
    return Outcome(
        records=merge_records(parts),
        wall_zero=min(report["wall_zero"] for report in reports),
        cpu_shares=tuple(round(report["cpu_seconds"] / job.duration_s, 4) for report in reports),
    )
