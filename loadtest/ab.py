"""Runs ApacheBench and reads its report without its traps.

`ab` counts a reply of another length as failed unless told `-l`, and puts replies outside 2xx on a line
of their own that its exit code does not tell of (ab(1)).
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from loadtest.errors import LoadTestError


@dataclass(frozen=True, kw_only=True)
class AbResult:
    """One run of ApacheBench."""

    requests_per_second: float
    seconds: float
    """From the first request to the last answer."""
    completed: int
    failed: int
    """Connections that broke or timed out."""
    non_2xx: int
    """Answers with another status than 2xx."""
    percentiles_ms: dict[int, float]
    """Closed-loop response times by percentile; no latency under load."""

    @property
    def clean(self) -> bool:
        return self.failed == 0 and self.non_2xx == 0


def run_ab(
    url: str, body: Path, content_type: str, *, token: str, requests: int, concurrency: int, timeout_s: int
) -> AbResult:
    """One closed-loop run; LoadTestError when ab cannot finish."""
    command = ["ab", "-l", "-q", "-k", "-s", str(timeout_s), "-n", str(requests), "-c", str(concurrency)]
    command += ["-p", str(body), "-T", content_type, "-H", f"Authorization: Bearer {token}", url]
    try:
        # Twice the time-out of one request bounds the whole run, whatever ab does.
        done = subprocess.run(command, capture_output=True, text=True, timeout=2 * timeout_s, check=False)
    except FileNotFoundError as error:
        raise LoadTestError("ab is not installed; run `make setup`") from error
    except subprocess.TimeoutExpired as error:
        raise LoadTestError(f"ab did not finish {requests} requests within {2 * timeout_s} s") from error
    if done.returncode != 0:
        raise LoadTestError(f"ab failed: {done.stderr.strip()[-300:]}")
    return parse_ab(done.stdout)


def parse_ab(text: str) -> AbResult:
    """Read ab's report; LoadTestError when a line that must be there is missing."""
    return AbResult(
        requests_per_second=float(_find(r"^Requests per second:\s+([\d.]+)", text)),
        seconds=float(_find(r"^Time taken for tests:\s+([\d.]+)", text)),
        completed=int(_find(r"^Complete requests:\s+(\d+)", text)),
        failed=int(_find(r"^Failed requests:\s+(\d+)", text)),
        non_2xx=int(_find(r"^Non-2xx responses:\s+(\d+)", text, default="0")),
        percentiles_ms={int(p): float(ms) for p, ms in re.findall(r"^\s+(\d+)%\s+(\d+)", text, re.MULTILINE)},
    )


def _find(pattern: str, text: str, default: str | None = None) -> str:
    found = re.search(pattern, text, re.MULTILINE)
    if found:
        return found.group(1)
    if default is None:
        raise LoadTestError(f"ab's report has no line like {pattern}: {text[-200:]!r}")
    return default
