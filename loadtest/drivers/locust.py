"""Starts Locust for one job, as one process or several, and reads what they saw."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from loadtest.drivers.job import Job, Outcome
from loadtest.drivers.records import make_records, merge_records
from loadtest.errors import LoadTestError

ROOT = Path(__file__).resolve().parents[2]
LOCUSTFILE = Path(__file__).with_name("users.py")
JOB_VARIABLE = "CPU_KIT_LOADTEST_JOB"
"""Names the job's folder to Locust's processes."""
WORKERS_VARIABLE = "CPU_KIT_LOADTEST_WORKERS"
"""How many processes share the load."""
REPORT = "kit-report"
"""Locust's message with what one process saw."""
OUT_FILE = "reports.json"
LOG_FILE = "locust.log"
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
class Running:
    """Locust under way."""

    process: subprocess.Popen[bytes]
    job: Job
    folder: Path

    def wait(self) -> Outcome:
        """What it saw; LoadTestError when it did not finish the job. It is ended whatever happens."""
        limit = self.job.longest_s + EXTRA_SECONDS
        try:
            code = self.process.wait(limit)
        except subprocess.TimeoutExpired as problem:
            raise LoadTestError(f"Locust did not end in {limit:.0f} s: {self._tail()}") from problem
        finally:
            self.end()
        out = self.folder / OUT_FILE
        if not out.exists():
            raise LoadTestError(f"Locust ended ({code}) without a report: {self._tail()}")
        return read_outcome(out)

    def end(self) -> None:
        """At once, if it has not ended."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def _tail(self) -> str:
        log = (self.folder / LOG_FILE).read_text(errors="replace")
        return " | ".join(log.strip().splitlines()[-5:])[-600:]


def start_locust(job: Job, folder: Path, crew: Crew) -> Running:
    """Start the job that was written to `folder`."""
    if not job.is_open and crew.processes > job.level:
        raise LoadTestError(
            f"PROCESSES must be at most the users of a closed loop: got {crew.processes} for {job.level:g}"
        )
    (folder / OUT_FILE).unlink(missing_ok=True)
    command = [*locust_command(crew), "--headless", "--only-summary", "--exit-code-on-error", "0"]
    with (folder / LOG_FILE).open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=locust_environment(folder, crew),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    return Running(process=process, job=job, folder=folder)


def locust_command(crew: Crew) -> list[str]:
    return [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), *crew.arguments]


def locust_environment(folder: Path, crew: Crew) -> dict[str, str]:
    return {**os.environ, JOB_VARIABLE: str(folder), WORKERS_VARIABLE: str(crew.processes)}


def read_outcome(file: Path) -> Outcome:
    """Merge the processes' reports; each counts from its own zero, which are milliseconds apart."""
    reports = json.loads(file.read_text(encoding="utf-8"))
    parts = [make_records(report["rows"], report["answers"]) for report in reports]
    return Outcome(
        records=merge_records(parts),
        wall_zero=min(report["wall_zero"] for report in reports),
        cpu_shares=tuple(round(report["cpu_share"], 4) for report in reports),
    )
