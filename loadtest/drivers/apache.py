"""ApacheBench as a driver of closed loops: one ab per payload side by side, as one ab repeats one body.

ab's raw times (`-g`) are whole milliseconds and say in which second a request began, so the rate is ab's own.
With `-l` ab counts a connection that was closed without any answer as a complete request, not as a failed one
(seen): such requests show only as missing among its keep-alive ones.
"""

from __future__ import annotations

import contextlib
import csv
import re
import resource
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from loadtest.ab import AbResult, parse_ab
from loadtest.drivers.generator import Outcome
from loadtest.drivers.job import Job
from loadtest.errors import LoadTestError
from loadtest.records import Records, make_records

MOST_REQUESTS = 10_000_000
"""ab ends at whichever comes first; the time is meant to."""
EXTRA_SECONDS = 30


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one ab does."""

    payload: int
    users: int


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
    shares = share_users(int(job.level), len(job.payloads))
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


def _run_all(job: Job, folder: Path, shares: Sequence[Share], seconds: float) -> list[AbResult]:
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
    name, kind = job.payloads[share.payload]
    # -t sets -n to 50000, so -n must come after it (ab(1)).
    command = ["ab", "-l", "-q", "-k", "-t", f"{max(1, round(seconds))}", "-n", str(MOST_REQUESTS)]
    command += ["-s", str(max(1, round(job.timeout_s))), "-c", str(share.users)]
    command += ["-g", str(folder / f"ab-{share.payload}.tsv"), "-p", str(folder / name), "-T", kind]
    for header, value in job.headers.items():
        command += ["-H", f"{header}: {value}"]
    try:
        return subprocess.Popen(
            [*command, f"{job.url}{job.path}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    except FileNotFoundError as problem:
        raise LoadTestError("ab is not installed; run `make setup`") from problem


def _finish(process: subprocess.Popen[str], seconds: float) -> AbResult:
    try:
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as problem:
        raise LoadTestError(f"ab did not end within {seconds:.0f} s") from problem
    if process.returncode != 0:
        raise LoadTestError(f"ab failed: {errors.strip()[-300:]}")
    return read_report(output)


def read_report(text: str) -> AbResult:
    """ab's report, with requests that got no answer counted as failed."""
    result = parse_ab(text)
    found = re.search(r"^Keep-Alive requests:\s+(\d+)", text, re.MULTILINE)
    kept = int(found.group(1)) if found else 0
    # A server that never keeps a connection shows nothing here; TorchServe keeps them but for errors.
    unanswered = max(0, result.completed - kept - result.non_2xx) if kept else 0
    return replace(result, failed=max(result.failed, unanswered))


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


def _add_failures(parts: Sequence[Records], results: Sequence[AbResult]) -> Records:
    """ab's raw times do not say which request failed: its counts mark so many rows of that payload."""
    rows: list[tuple] = []
    for part, result in zip(parts, results, strict=True):
        columns = (part.payload, part.scheduled, part.sent, part.ended, part.status, part.answer, part.error)
        listed = [list(row) for row in zip(*(column.tolist() for column in columns), strict=True)]
        for row in listed[: result.non_2xx]:
            row[4], row[6] = 500, "a status outside 2xx (ab does not say which)"
        for row in listed[result.non_2xx :][: result.failed]:
            row[4], row[6] = 0, "a connection failed or timed out"
        rows += [tuple(row) for row in listed]
    return make_records(rows, ())


def _children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
