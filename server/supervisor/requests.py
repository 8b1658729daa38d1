"""Each request's lines of HAProxy: counted, timed, and written to logs/requests.log where it failed.

HAProxy writes a line for each of the two hops (config/templates/haproxy.cfg.j2) into a pipe, which is read
once a turn: a wake-up for each line would cost more than its parsing. The pipe holds a megabyte, some 4,000
lines.
"""

from __future__ import annotations

import fcntl
import os
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from config.proxy import REQUEST_LINE
from config.terminal import Report, render_entry

PIPE_BYTES = 1 << 20
"""What any user may set (fs.pipe-max-size)."""
READ_BYTES = 256 << 10
ANSWERED, BAD_REQUEST, TOKEN, TOO_LARGE = "answered", "bad_request", "token", "too_large"
QUEUE_FULL, WOULD_BE_LATE, STOPPING = "queue_full", "would_be_late", "stopping"
DEADLINE, INSTANCE_FAILED, CLIENT_GONE = "deadline", "instance_failed", "client_gone"
REASONS = {
    ANSWERED: "2xx",
    BAD_REQUEST: "4xx: what was sent is wrong",
    TOKEN: "401: no valid token",
    TOO_LARGE: "413: the body is too large",
    QUEUE_FULL: "503: too many requests wait",
    WOULD_BE_LATE: "503: the deadline would pass in the queue",
    STOPPING: "503: the server is stopping",
    DEADLINE: "504: no response by the deadline",
    INSTANCE_FAILED: "other 5xx: no instance answered, or its handler failed",
    CLIENT_GONE: "499: the client left before the response",
}
"""Of `cpukit_requests_total`; haproxy.cfg names those that a status does not tell."""
BY_STATUS = {401: TOKEN, 413: TOO_LARGE, 504: DEADLINE}
GONE = 499
"""The status, as nginx counts it, where a client left before there was one."""
FRONTEND, ENTRY, QUEUE, LARGE, SUPERVISOR = "proxy", ".entry", ".queue", ".large", "supervisor"
NONE = "-"
WORDS = 17
MOST_HOPS = 10_000
"""Requests whose second hop has ended and the first has not."""


class Line(NamedTuple):
    """One hop of one request."""

    model: str
    """Empty: rejected before its model was known."""
    second: bool
    """The hop from HAProxy's queue to an instance."""
    queue_ms: float | None
    """In HAProxy's queue, and in the instance; None where no instance had it, and of the first hop."""
    instance_ms: float | None
    status: int
    reason: str
    total_ms: float
    """From the first byte of the request until the last one of the response."""
    client: str
    request: str
    trace: str
    method: str
    path: str
    cause: str

    @property
    def failed(self) -> bool:
        return self.reason != ANSWERED


def parse_line(text: str) -> Line | None:
    """None of what is no prediction, and of a line that is not as config.proxy.LOG_FORMAT says."""
    words = text.split(" ", WORDS - 1)
    if len(words) != WORDS:
        return None
    _, frontend, backend, server, status, ended, _, queue, instance, total, *rest = words
    client, request, trace, method, path, named, cause = rest
    second = frontend.endswith(QUEUE)
    if backend == SUPERVISOR or not (second or frontend.rstrip("~") == FRONTEND):
        return None
    try:
        code, total_ms = int(status), float(total.lstrip("+"))
        served = second and server not in ("<NOSRV>", NONE) and int(queue) >= 0 and int(instance) >= 0
        queue_ms, instance_ms = (float(queue), float(instance)) if served else (None, None)
    except ValueError:
        return None
    model = frontend.removesuffix(QUEUE) if second else backend.removesuffix(ENTRY).removesuffix(LARGE)
    model = "" if model.rstrip("~") == FRONTEND else model
    reason = find_reason(code, ended, named)
    code = GONE if reason == CLIENT_GONE else code
    trace, method, path, cause = ("" if word == NONE else word for word in (trace, method, path, cause))
    return Line(
        model=model, second=second, queue_ms=queue_ms, instance_ms=instance_ms, status=code, reason=reason,
        total_ms=total_ms, client=client, request=request, trace=trace, method=method, path=path, cause=cause,
    )  # fmt: skip


def find_reason(status: int, ended: str, named: str = NONE) -> str:
    """One of REASONS. `ended`: HAProxy's termination state, whose first letter says who ended it; `named`:
    what haproxy.cfg calls it. A foreign archive's response may call it anything."""
    if named in REASONS:
        return named
    if ended[:1] == "C":
        return CLIENT_GONE
    if 200 <= status < 300:
        return ANSWERED
    return BY_STATUS.get(status, BAD_REQUEST if 400 <= status < 500 else INSTANCE_FAILED)


class RequestPipe:
    """What HAProxy writes into; it outlives HAProxy, which is given the same end again."""

    def __init__(self) -> None:
        self._read, self.write_end = os.pipe()
        os.set_blocking(self._read, False)
        fcntl.fcntl(self._read, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._rest = b""

    def read_lines(self) -> Iterator[str]:
        """Those that have come since."""
        while True:
            try:
                data = os.read(self._read, READ_BYTES)
            except BlockingIOError:
                return
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                yield line.decode(errors="replace")
            if len(data) < READ_BYTES:
                return


class RequestLog:
    """Of the requests that failed, with the times of both hops."""

    def __init__(self, file: Path, log: str, report: Report) -> None:
        """`log`: text or json; `report` has what HAProxy says besides."""
        self._file, self._log, self._report = file, log, report
        self._hops: OrderedDict[str, Line] = OrderedDict()

    def take(self, lines: Iterator[str]) -> Iterator[Line]:
        """The hops that are to be counted; failures are written meanwhile, in one piece."""
        entries = []
        for text in lines:
            if not text.startswith(f"{REQUEST_LINE} "):
                self._report(f"proxy: {text}")
            elif line := parse_line(text):
                yield line
                if line.second:
                    self._hops[line.request] = line
                    if len(self._hops) > MOST_HOPS:
                        self._hops.popitem(last=False)
                    continue
                hop = self._hops.pop(line.request, None)
                # Of who has no token nothing is written, so that he can fill no disk; it is counted.
                if line.failed and line.reason != TOKEN:
                    entries.append(render_failure(self._log, line, hop))
        if entries:
            with self._file.open("a", encoding="utf-8") as file:
                file.write("".join(f"{entry}\n" for entry in entries))


def render_failure(log: str, line: Line, hop: Line | None) -> str:
    """A failed request's entry; `hop`: the second one, where it came so far."""
    queue, instance = (hop.queue_ms, hop.instance_ms) if hop else (None, None)
    level = "ERROR" if line.status >= 500 else "WARN"
    cause = line.cause or REASONS[line.reason].partition(": ")[2]
    if log == "json":
        return render_entry(
            log, cause, level=level, source="proxy", request=line.request, trace_id=line.trace,
            model=line.model, status=line.status, reason=line.reason, total_ms=round(line.total_ms),
            queue_ms=queue, instance_ms=instance, client=line.client, method=line.method, path=line.path,
        )  # fmt: skip
    parts = "".join(
        f", {value:.0f} {name}" for name, value in (("queue", queue), ("instance", instance)) if value
    )
    trace = f" trace={line.trace}" if line.trace else ""
    what = f"{line.client} {line.method} {line.path}: {line.status} {line.reason}: {cause}"
    return render_entry(log, f"{what} ({line.total_ms:.0f} ms{parts}) id={line.request}{trace}")
