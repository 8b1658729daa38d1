"""ApacheBench as a driver of closed loops: one ab per payload side by side, as one ab repeats one body.

ab's raw times (`-g`) are whole milliseconds and say in which second a request began, so the rate is ab's own.
Its traps (ab(1); the last one seen): a reply of another length is "failed" unless told `-l`; replies outside
2xx stand on a line of their own that the exit code does not tell of; with `-l` a connection that was closed
without any answer is a complete request, and shows only as missing among the keep-alive ones.
"""

from __future__ import annotations

import contextlib
import csv
import re
import resource
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.drivers.job import Job, Outcome
from loadtest.drivers.records import ROW, Records, make_records
from loadtest.errors import LoadTestError

MOST_REQUESTS = 10_000_000
"""ab ends at whichever comes first; the time is meant to."""
EXTRA_SECONDS = 30


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one ab does."""

    payload: int
    users: int


@dataclass(frozen=True, kw_only=True)
class AbReport:
    """What one ab says."""

    requests_per_second: float
    failed: int
    """Connections that broke or timed out, or got no answer."""
    non_2xx: int
    """Answers with another status than 2xx."""


def share_users(users: int, payloads: int) -> list[Share]:
    """Users over payloads, at least one each: fewer users than payloads leave some payloads out, evenly."""
    used = min(users, payloads)
    chosen = [number * payloads // used for number in range(used)]
    return [
        Share(payload=payload, users=users // used + (number < users % used))
        for number, payload in enumerate(chosen)
    ]


def run_apache(job: Job, folder: Path) -> Outcome:
    """Warm up, then measure; LoadTestError when ab cannot finish."""
    if job.is_open or job.stop_after is not None:
        raise LoadTestError("ab drives closed loops that end by time alone; use DRIVER=locust")
    shares = share_users(int(job.level), len(job.bodies))
    if job.warm_up_s:
        _run_all(job, folder, shares, job.warm_up_s)
        _let_settle(job, folder, shares)
    before, began = _children_cpu(), time.time()
    results = _run_all(job, folder, shares, job.duration_s)
    cpu = (_children_cpu() - before) / job.duration_s
    parts = [read_times(folder / f"ab-{share.payload}.tsv", share.payload, began) for share in shares]
    return Outcome(
        records=_add_failures(parts, results),
        wall_zero=began,
        # ab's processes are small; their sum is what they take from the server.
        cpu_shares=(round(cpu, 4),),
        requests_per_second=sum(one.requests_per_second for one in results),
        notes=(f"ab: {len(shares)} processes, one per payload; what is under way at its end is not counted",),
    )


def _let_settle(job: Job, folder: Path, shares: Sequence[Share]) -> None:
    """ab leaves at its time with requests under way; the server still works on them for about so long."""
    seen = [read_times(folder / f"ab-{share.payload}.tsv", share.payload, 0.0).latency for share in shares]
    longest = max((float(one.max()) for one in seen if len(one)), default=job.timeout_s)
    time.sleep(min(longest, job.timeout_s))


def _run_all(job: Job, folder: Path, shares: Sequence[Share], seconds: float) -> list[AbReport]:
    started: list[subprocess.Popen[str]] = []
    try:
        started += [_start(job, folder, share, seconds) for share in shares]
        return [_finish(process, seconds + job.timeout_s + EXTRA_SECONDS) for process in started]
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                process.wait()


def _start(job: Job, folder: Path, share: Share, seconds: float) -> subprocess.Popen[str]:
    body = job.bodies[share.payload]
    # -t sets -n to 50000, so -n must come after it (ab(1)).
    command = ["ab", "-l", "-q", "-k", "-t", f"{max(1, round(seconds))}", "-n", str(MOST_REQUESTS)]
    command += ["-s", str(max(1, round(job.timeout_s))), "-c", str(share.users)]
    command += ["-g", str(folder / f"ab-{share.payload}.tsv"), "-p", str(folder / body.file)]
    command += ["-T", body.content_type]
    for header, value in job.headers.items():
        command += ["-H", f"{header}: {value}"]
    try:
        return subprocess.Popen(
            [*command, f"{job.url}{body.path}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    except FileNotFoundError as problem:
        raise LoadTestError("ab is not installed; run `make setup`") from problem


def _finish(process: subprocess.Popen[str], seconds: float) -> AbReport:
    try:
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as problem:
        raise LoadTestError(f"ab did not end within {seconds:.0f} s") from problem
    if process.returncode != 0:
        raise LoadTestError(f"ab failed: {errors.strip()[-300:]}")
    return read_report(output)


def read_report(text: str) -> AbReport:
    """ab's report; LoadTestError when a line that must be there is missing."""
    completed, kept = int(_find("Complete requests", text)), int(_find("Keep-Alive requests", text, "0"))
    non_2xx = int(_find("Non-2xx responses", text, "0"))
    # A server that never keeps a connection shows nothing here; TorchServe keeps them but for errors.
    unanswered = max(0, completed - kept - non_2xx) if kept else 0
    return AbReport(
        requests_per_second=float(_find("Requests per second", text)),
        failed=max(int(_find("Failed requests", text)), unanswered),
        non_2xx=non_2xx,
    )


def _find(name: str, text: str, default: str | None = None) -> str:
    found = re.search(rf"^{name}:\s+([\d.]+)", text, re.MULTILINE)
    if found:
        return found.group(1)
    if default is None:
        raise LoadTestError(f"ab's report has no line {name!r}: {text[-200:]!r}")
    return default


def read_times(file: Path, payload: int, began: float) -> Records:
    """ab's gnuplot file: a row a request with its second of begin and its milliseconds."""
    rows = []
    if file.exists():  # ab writes none when no request ended
        with file.open(encoding="utf-8", newline="") as lines:
            for row in csv.DictReader(lines, delimiter="\t"):
                with contextlib.suppress(ValueError, TypeError):
                    sent, took = float(row["seconds"]) - began, float(row["ttime"]) / 1000
                    rows.append((payload, float("nan"), max(0.0, sent), max(0.0, sent) + took, 200, -1, ""))
    return make_records(rows, ())


def _add_failures(parts: Sequence[Records], results: Sequence[AbReport]) -> Records:
    """ab's raw times do not say which request failed: its counts mark so many rows of that payload."""
    rows: list[tuple] = []
    for part, result in zip(parts, results, strict=True):
        columns = [getattr(part, name).tolist() for name in ROW]
        listed = [list(row) for row in zip(*columns, strict=True)]
        for row in listed[: result.non_2xx]:
            row[4], row[6] = 500, "a status outside 2xx (ab does not say which)"
        for row in listed[result.non_2xx :][: result.failed]:
            row[4], row[6] = 0, "a connection failed or timed out"
        rows += [tuple(row) for row in listed]
    return make_records(rows, ())


def _children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
