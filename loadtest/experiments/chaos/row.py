"""One fault's row, from raw requests and what was seen of the server, and which promises it broke: pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from loadtest.drivers.records import Records
from loadtest.results.stats import pick

DRIVER_S = 0.25
"""The generator shares the cores with the server: an answer may be read so much after it came."""
GIVEN_UP_S = 5.0
"""After its deadline; who has no answer by then gets none."""
BIN_S = 1.0
SLOW = 2.0
"""Times the p99 before the fault; a second with more is slow."""
LEAST_CALM = 100
"""Requests before the fault, for such a p99."""
CUT, SILENT = "cut off", "no answer"


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What must hold."""

    failed: int | None = None
    """Requests without a 2xx; None promises nothing."""
    unanswered: int | None = 0
    open_cut: bool = False
    """What was open when the fault came may be cut, and is not counted: who holds the connections dies."""
    late_share: float | None = 0.001
    """Of all that were sent."""
    full_s: float | None = 60.0
    """From the end of the fault until all instances and workers are up again; None: it shall be down."""
    verified: bool = True
    """`make verify` is good afterwards."""
    strays: int | None = 0
    goodput: float | None = None
    """Good answers by their deadline a second, as a share of the peak."""
    slow_s: int | None = None
    """Seconds whose p99 is more than SLOW times that before the fault."""


NOTHING = Promise(unanswered=None, late_share=None, full_s=None, verified=False, strays=None)
"""Looked at alone."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """The server at one moment."""

    at: float
    """Seconds from the begin of the load."""
    phase: str
    """The supervisor's; empty where it says nothing, or has none."""
    instances: Mapping[str, str] = field(default_factory=dict)
    """Name → phase, as the supervisor says."""
    door: bool = True
    """Whether HAProxy runs."""
    workers: int = 0
    """Ready by TorchServe, alive, not stopped, and with a parent that waits for them."""
    planned: int = 0
    strays: tuple[str, ...] = ()
    """Marked processes that nobody owns."""
    restarts: int = 0
    """As the supervisor counts them, of all its parts."""
    full: bool = False
    """All of it is as planned."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What was asked, done and seen; with the raw requests all that a row is made from."""

    fault: str
    front: str
    """haproxy, or none for TorchServe by itself."""
    title: str
    deadline_ms: int
    peak: float
    """Requests a second of a closed loop through the door."""
    rate: float = 0.0
    """Of the open loop."""
    promise: Promise
    began: str = ""
    """UTC, ISO 8601."""
    fault_s: float = 0.0
    """When it began, in seconds from the begin of the load."""
    fault_ended_s: float = 0.0
    """When its cause was gone, or left to the server to cure."""
    until_fault: bool = False
    """Only requests that were sent before it count: a server that stops owes the others nothing."""
    looks: tuple[Look, ...] = ()
    verified: bool | None = None
    """None: not asked."""
    differs: tuple[str, ...] = ()
    """What verify found."""
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    """Promises that only the fault itself can judge, broken."""
    not_done: str = ""
    """Why nothing was done."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """What is told of one fault."""

    fault: str
    front: str
    sent: int
    good: int
    """Answered 2xx."""
    refused: int
    """4xx."""
    failed: int
    """5xx."""
    unanswered: int
    """No answer by the deadline and GIVEN_UP_S, or the connection was cut."""
    cut_open: int
    """Of these, sent before the fault."""
    kinds: Mapping[str, int]
    """How the others ended: the status, CUT or SILENT."""
    late: int
    """Answered after the deadline and DRIVER_S, counted from when they were due."""
    full_s: float | None
    """None: not again while it was looked at."""
    strays: tuple[str, ...]
    verified: bool | None
    goodput: float
    """Good answers by their deadline a second."""
    slow_s: int | None
    """None: too few requests before the fault to tell."""
    p99_before_ms: float | None
    slowest_ms: float | None
    """Of all answers."""
    lag_p99_ms: float
    """How late the generator itself was."""
    restarts: int
    """Of parts, by the supervisor."""
    promised: bool = True
    """False: only looked at."""
    not_done: str = ""
    notes: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()

    @property
    def others(self) -> str:
        """How what was not good ended, in words; empty where all was."""
        return ", ".join(f"{count} × {kind}" for kind, count in self.kinds.items())

    @property
    def verdict(self) -> str:
        if self.not_done:
            return "not done"
        return "BROKEN" if self.broken else "kept" if self.promised else "seen"


def make_row(evidence: Evidence, records: Records) -> Row:
    """The figures, then what they break."""
    seen = records.take(records.sent < evidence.fault_s) if evidence.until_fault else records
    deadline_s, answered = evidence.deadline_ms / 1000, seen.status > 0
    late = answered & (seen.latency > deadline_s + DRIVER_S)
    in_time = seen.good & (seen.latency <= deadline_s)
    calm_ms, slow_s = count_slow_seconds(seen, evidence.fault_s)
    row = Row(
        fault=evidence.fault,
        front=evidence.front,
        sent=len(seen),
        good=int(seen.good.sum()),
        refused=int(((seen.status >= 400) & (seen.status < 500)).sum()),
        failed=int((seen.status >= 500).sum()),
        unanswered=int((~answered).sum()),
        cut_open=int((~answered & (seen.sent < evidence.fault_s)).sum()),
        kinds=count_kinds(seen, deadline_s),
        late=int(late.sum()),
        full_s=find_full_s(evidence.looks, evidence.fault_s, evidence.fault_ended_s),
        strays=evidence.looks[-1].strays if evidence.looks else (),
        verified=evidence.verified,
        goodput=round(float(in_time.sum()) / find_span(seen), 2),
        slow_s=slow_s,
        p99_before_ms=calm_ms,
        slowest_ms=round(1000 * float(seen.latency[answered].max()), 1) if answered.any() else None,
        lag_p99_ms=round(1000 * pick(seen.lag, 99), 1) if len(seen) else 0.0,
        restarts=count_restarts(evidence.looks),
        promised=evidence.promise != NOTHING,
        not_done=evidence.not_done,
        notes=evidence.notes,
        broken=evidence.problems,
    )
    return judge(row, evidence)


def judge(row: Row, evidence: Evidence) -> Row:
    """The row with everything that was broken; nothing of a fault that was not done."""
    broken = () if row.not_done else (*row.broken, *find_broken(row, evidence))
    return replace(row, broken=broken)


def find_broken(row: Row, evidence: Evidence) -> Iterator[str]:
    """Each says what, got, and what was promised."""
    promise, failed = evidence.promise, row.sent - row.good
    unanswered = row.unanswered - (row.cut_open if promise.open_cut else 0)
    if not row.sent:
        yield "no request was sent"
    for what, got, most in (
        ("requests failed", failed, promise.failed),
        ("unanswered", unanswered, promise.unanswered),
        ("strays", len(row.strays), promise.strays),
        ("slow seconds", row.slow_s, promise.slow_s),
    ):
        if got is not None and most is not None and got > most:
            yield f"{got} {what}, promised: {most}"
    if promise.late_share is not None and row.late > promise.late_share * row.sent:
        yield f"{row.late} of {row.sent} answered after the deadline, promised: {promise.late_share:.1%}"
    if promise.full_s is not None and (row.full_s is None or row.full_s > promise.full_s):
        got_s = "never while it was looked at" if row.full_s is None else f"after {row.full_s:.1f} s"
        yield f"at full strength {got_s}, promised: {promise.full_s:g} s"
    if promise.verified and not row.verified:
        yield "verify: " + ("; ".join(evidence.differs) or "not good")
    if promise.goodput is not None and row.goodput < promise.goodput * evidence.peak:
        least = promise.goodput * evidence.peak
        share = f"{promise.goodput:.0%} of the peak"
        yield f"{row.goodput:.1f}/s answered in time, promised: {share}, {least:.1f}/s"


def count_kinds(records: Records, deadline_s: float) -> dict[str, int]:
    """What was not good: the status of an answer, else whether the connection ended or nothing came."""
    bad = records.take(~records.good)
    waited = bad.ended - bad.sent >= deadline_s + GIVEN_UP_S - DRIVER_S
    names = np.where(bad.status > 0, bad.status.astype(str), np.where(waited, SILENT, CUT))
    return dict(sorted(Counter(names.tolist()).items()))


def find_span(records: Records) -> float:
    """Seconds in which requests were due."""
    return max(1e-3, float(records.begun.max() - records.begun.min())) if len(records) else 1e-3


def find_full_s(looks: Sequence[Look], fault_s: float, ended_s: float) -> float | None:
    """From the end of the fault until nothing was missing any more; 0 where nothing ever was."""
    after = [look for look in looks if look.at >= fault_s]
    if not after or not after[-1].full:
        return None
    missing = [number for number, look in enumerate(after) if not look.full]
    return round(max(0.0, after[missing[-1] + 1].at - ended_s), 1) if missing else 0.0


def count_restarts(looks: Sequence[Look]) -> int:
    """Since the first look; a new supervisor counts anew."""
    return max(0, looks[-1].restarts - looks[0].restarts) if looks else 0


def count_slow_seconds(records: Records, fault_s: float) -> tuple[float | None, int | None]:
    """(p99 before the fault in ms, seconds from then on with more than SLOW times that)."""
    good = records.take(records.good)
    calm = good.latency[good.begun < fault_s]
    if len(calm) < LEAST_CALM:
        return None, None
    before = pick(calm, 99)
    later = good.take(good.begun >= fault_s)
    bins = np.floor((later.begun - fault_s) / BIN_S)
    slow = [number for number in np.unique(bins) if pick(later.latency[bins == number], 99) > SLOW * before]
    return round(1000 * before, 1), len(slow)
