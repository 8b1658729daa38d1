"""The programs that send the load: Locust, as one process or several, and ApacheBench."""

from __future__ import annotations

import json
import math
import re
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from loadtest.errors import LoadTestError
from loadtest.load import Load
from loadtest.payloads import Payload, write_manifest
from loadtest.rows import make_rows, merge_rows
from loadtest.schedule import LEAD_S

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent
LOCUSTFILE, RECORD = FOLDER / "locustfile.py", FOLDER / "record.py"
COOL_DOWN_S = 2.0
"""The load goes on for so long after the window, so that its last requests end under the same load."""
SPAWN_S = 2.0
"""More of several processes, which start one after the other."""
EXTRA_S = 90
"""For Locust's own start and end, on top of the longest request."""
MOST_AB_REQUESTS = 10_000_000
"""ab ends at whichever comes first; the time is meant to."""
AB_PERCENTILES = (50.0, 90.0, 95.0, 99.0)


@dataclass(frozen=True, kw_only=True)
class Generators:
    """Who generates the load."""

    processes: int = 1
    """Locust's worker processes; 1 is a single process without a master."""
    remote: bool = False
    """They are started elsewhere (`locust -f loadtest/locustfile.py --worker`); the master waits for them."""

    address: str = "127.0.0.1"
    """That the master of remote ones listens on."""

    @property
    def arguments(self) -> list[str]:
        if self.remote:
            return ["--master", "--master-bind-host", self.address, "--expect-workers", str(self.processes)]
        return ["--processes", str(self.processes)] if self.processes > 1 else []


HERE = Generators()


@dataclass(frozen=True, kw_only=True)
class AbReport:
    """What ab says of one run."""

    text: str
    requests_per_second: float
    complete: int
    failed: int
    """Connections that broke or timed out, or got no answer."""
    non_2xx: int
    percentiles_ms: dict[str, float]
    """By percentile; whole milliseconds."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the load generators saw."""

    rows: pd.DataFrame
    """Of all requests, those of warm-up and cool-down too (rows.py); none of ab's."""
    answers: Sequence[str] = ()
    wall_zero: float
    """When the measured window began, in seconds since the epoch."""
    cpu_shares: tuple[float, ...] = ()
    """Of each generating process: cores used; empty where nothing generates."""
    model_share: float | None = None
    """Without a server: the part of the time inside the model (0 to 1)."""
    ab: AbReport | None = None


def parse_generators(text: str) -> Generators:
    """--processes: empty, a number, remote:N, or remote:N@ADDRESS."""
    found = re.fullmatch(r"(?:([1-9]\d?)|remote:([1-9]\d?)(?:@([\w.:-]+))?)", text or "1")
    if not found:
        raise LoadTestError(f"--processes must be 1 to 99, remote:N or remote:N@ADDRESS: got {text}")
    if found.group(1):
        return Generators(processes=int(found.group(1)))
    return Generators(processes=int(found.group(2)), remote=True, address=found.group(3) or "127.0.0.1")


def make_locust_arguments(load: Load, *, url: str, payloads: str, token_file: str) -> list[str]:
    """Of the kit's locustfile, without those that say how long; `payloads` is a set or a folder."""
    arguments = ["--host", url, "--request-timeout", f"{load.timeout_s:g}", "--seed", str(load.seed)]
    arguments += ["--payloads", payloads] if payloads else []
    arguments += ["--model", load.models[0]] if len(load.models) == 1 else []
    arguments += ["--token-file", token_file] if token_file else []
    arguments += ["--rate", str(load.rate)] if load.rate is not None else []
    return [*arguments, *(["--in-order"] if load.in_order else [])]


def run_locust(
    load: Load, *, url: str, token: str, payloads: Sequence[Payload], generators: Generators, folder: Path
) -> Outcome:
    """Warm-up, window and cool-down; LoadTestError when Locust did not finish, or the load ended early."""
    if not load.is_open and generators.processes > load.level:
        raise LoadTestError(
            f"--processes must be at most the users: got {generators.processes} for {load.place}"
        )
    # Of an open loop, each process has one user, who sends its share.
    users = generators.processes if load.is_open else int(load.level)
    spawn = SPAWN_S if generators.arguments else 0.0
    seconds = math.ceil(spawn + LEAD_S + load.warm_up_s + load.duration_s + COOL_DOWN_S)
    record, log = folder / "record.json", folder / "locust.log"
    record.unlink(missing_ok=True)
    if load.locustfile:
        own = ["-f", f"{RECORD},{load.locustfile}", "--host", url]
    else:
        token_file = folder / "token"
        token_file.touch(mode=0o600)
        token_file.write_text(token, encoding="ascii")
        # Generators elsewhere cannot read this folder: they make a set anew, or have the same folder.
        where = load.payloads if generators.remote else str(write_manifest(payloads, folder / "payloads"))
        own = ["-f", str(LOCUSTFILE)]
        own += make_locust_arguments(
            load, url=url, payloads=where, token_file=str(token_file) if token else ""
        )
    command = [sys.executable, "-m", "locust", *own, *generators.arguments, "--headless", "--only-summary"]
    command += ["--users", str(users), "--spawn-rate", str(users), "--run-time", str(seconds)]
    command += ["--stop-timeout", str(math.ceil(load.timeout_s) + 1), "--exit-code-on-error", "0"]
    command += ["--warm-up", str(load.warm_up_s), "--record", str(record)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
    limit = seconds + load.timeout_s + EXTRA_S
    try:
        code = process.wait(limit)
    except subprocess.TimeoutExpired as problem:
        raise LoadTestError(f"Locust did not end in {limit:.0f} s: {_read_end(log)}") from problem
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if not record.exists():
        raise LoadTestError(f"Locust ended ({code}) without a report: {_read_end(log)}")
    return _read_record(record, load, generators, log)


def _read_end(log: Path) -> str:
    """Why: its last lines, errors before all else."""
    lines = log.read_text(errors="replace").strip().splitlines()
    wrong = [line for line in lines if line.startswith(("error:", "locust: error:"))]
    return " | ".join(wrong or lines[-5:])[-600:]


def _read_record(record: Path, load: Load, generators: Generators, log: Path) -> Outcome:
    """Merge the processes' reports; each counts from its own zero, which are milliseconds apart."""
    reports = json.loads(record.read_text(encoding="utf-8"))
    if len(reports) != generators.processes:
        raise LoadTestError(
            f"--processes must be as many generators as report: got {generators.processes} and "
            f"{len(reports)} reports: {_read_end(log)}"
        )
    if len({one["payloads"] for one in reports}) > 1:
        raise LoadTestError("the generators must all have the same payloads: got different ones (PAYLOADS=)")
    if (shortest := min(one["measured_s"] for one in reports)) < load.duration_s:
        raise LoadTestError(f"the load ended after {shortest:.1f} of {load.duration_s:g} s: {_read_end(log)}")
    rows, answers = merge_rows([(make_rows(one["rows"]), one["answers"]) for one in reports])
    return Outcome(
        rows=rows,
        answers=answers,
        wall_zero=min(one["wall_zero"] for one in reports),
        cpu_shares=tuple(round(one["cpu_share"], 4) for one in reports),
    )


def run_ab(load: Load, *, url: str, token: str, payload: Payload, folder: Path) -> Outcome:
    """One ab with one payload: a short one to warm up, then the measured one.

    ab's traps (ab(1)): a reply of another length is "failed" unless told `-l`; replies outside 2xx stand on a
    line of their own, which the exit code does not tell of.
    """
    if load.is_open:
        raise LoadTestError("ab drives closed loops alone; use --driver locust for a rate")
    body = folder / "ab.body"
    body.write_bytes(payload.body)
    # -t sets -n to 50000, so -n must come after it (ab(1)).
    command = ["ab", "-l", "-q", "-k", "-c", str(int(load.level)), "-s", str(max(1, round(load.timeout_s)))]
    command += ["-p", str(body), "-T", payload.content_type]
    command += ["-H", f"Authorization: Bearer {token}"] if token else []
    if load.warm_up_s:
        _call_ab(command, f"{url}{payload.path}", load.warm_up_s, load.timeout_s)
    before, began = _read_children_cpu(), time.time()
    text = _call_ab(command, f"{url}{payload.path}", load.duration_s, load.timeout_s)
    cpu = (_read_children_cpu() - before) / load.duration_s
    return Outcome(rows=make_rows([]), wall_zero=began, cpu_shares=(round(cpu, 4),), ab=parse_ab_report(text))


def _call_ab(command: Sequence[str], url: str, seconds: float, timeout_s: float) -> str:
    timed = ["-t", str(max(1, round(seconds))), "-n", str(MOST_AB_REQUESTS)]
    try:
        done = subprocess.run(
            [*command, *timed, url], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            timeout=seconds + timeout_s + EXTRA_S,
        )  # fmt: skip
    except FileNotFoundError as problem:
        raise LoadTestError("ab is not installed; run `make setup`") from problem
    except subprocess.TimeoutExpired as problem:
        raise LoadTestError(f"ab did not end within {problem.timeout:.0f} s") from problem
    if done.returncode != 0:
        raise LoadTestError(f"ab failed: {done.stderr.strip()[-300:]}")
    return done.stdout


def parse_ab_report(text: str) -> AbReport:
    """ab's report; LoadTestError when a line that must be there is missing."""
    complete, kept = int(_find("Complete requests", text)), int(_find("Keep-Alive requests", text, "0"))
    non_2xx = int(_find("Non-2xx responses", text, "0"))
    # With -l a connection that was closed without any answer is a complete request; where connections are
    # kept otherwise, it shows as missing among these.
    hung_up = max(0, complete - kept - non_2xx) if kept else 0
    table = {f"{int(p):g}": float(ms) for p, ms in re.findall(r"^\s+(\d+)%\s+(\d+)", text, re.MULTILINE)}
    return AbReport(
        text=text[max(0, text.find("Server Software")) :].strip(),
        requests_per_second=float(_find("Requests per second", text)),
        complete=complete,
        failed=max(int(_find("Failed requests", text)), hung_up),
        non_2xx=non_2xx,
        percentiles_ms={f"{p:g}": table[f"{p:g}"] for p in AB_PERCENTILES if f"{p:g}" in table},
    )


def _find(name: str, text: str, default: str | None = None) -> str:
    found = re.search(rf"^{name}:\s+([\d.]+)", text, re.MULTILINE)
    if found:
        return found.group(1)
    if default is None:
        raise LoadTestError(f"ab's report has no line {name!r}: {text[-200:]!r}")
    return default


def _read_children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
