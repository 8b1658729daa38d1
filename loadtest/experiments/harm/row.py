"""One experiment's row: what was sent, what came back, what it cost, and which promise it broke."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from loadtest.experiments.harm.client import SILENT, Outcome

AGAIN_SECONDS = 5.0
"""A canary is answered right this soon after any harm."""
BUSY = frozenset({"200", "413", "429", "503"})
"""What overload may answer: the answer, too large, too many, not now."""


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What must hold; None promises nothing of that kind yet."""

    kinds: frozenset[str] | None = BUSY
    """Statuses that may come; a reset, a refusal or silence is never one of them."""
    again_s: float = AGAIN_SECONDS
    """Until every model's canary is answered right again."""
    workers_lost: int = 0
    """Workers that end, beyond which none may: 1 where the experiment kills one."""
    peak_mib: float | None = None
    """What the dearest worker may take above what it had."""
    kept_mib: float | None = None
    """What a worker may keep of it afterwards."""
    cpu_s: float | None = None
    """CPU seconds of all workers together."""
    log_kib: float | None = None
    """What the logs may grow by."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """The server at one moment."""

    java: int | None
    """Process id of TorchServe's frontend; None when it is gone."""
    resident_mib: Mapping[int, float]
    """Worker → resident memory."""
    peak_mib: Mapping[int, float]
    """Worker → the most it was since the peaks were last forgotten."""
    cpu_s: Mapping[int, float]
    """Worker → CPU seconds so far."""
    out_of_memory: int
    """OutOfMemoryErrors in all logs."""
    log_kib: float
    """Size of all logs."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What an experiment itself brings back."""

    outcomes: Sequence[Outcome]
    """Of the requests the promise is about."""
    notes: tuple[str, ...] = ()
    """What else a person wants to know."""
    faults: tuple[str, ...] = ()
    """Promises that only the experiment can judge, broken."""


@dataclass(frozen=True, kw_only=True)
class Harm:
    """The row."""

    experiment: str
    kinds: Mapping[str, int]
    """Status, reset, refused or no answer → how many."""
    slowest_s: float
    """Of all answers."""
    workers_lost: int
    server_lost: bool
    out_of_memory: int
    """Logged during the experiment."""
    again_s: float | None
    """None: not within the time that was waited."""
    resident_mib: Mapping[str, tuple[float, float | None]]
    """Worker → before and after; None when it has ended."""
    peak_mib: float
    """Of the dearest worker, above what it had before."""
    kept_mib: float
    """Of the worker that kept most."""
    cpu_s: float
    """Of all workers that still live."""
    log_kib: float
    notes: tuple[str, ...] = ()
    promised: bool = True
    """False: what clients get is only looked at."""
    broken: tuple[str, ...] = ()
    """What was promised and did not hold."""

    @property
    def verdict(self) -> str:
        return "BROKEN" if self.broken else "kept" if self.promised else "seen"

    @property
    def sent(self) -> int:
        return sum(self.kinds.values())

    def count(self, hundreds: int) -> int:
        """Answers of 2xx, 4xx or 5xx."""
        return sum(count for kind, count in self.kinds.items() if kind[0] == str(hundreds))


def make_row(name: str, seen: Seen, before: Look, after: Look, again_s: float | None) -> Harm:
    """Put two looks and what was seen between them together."""
    lives = [pid for pid in before.resident_mib if pid in after.resident_mib]
    mib = before.resident_mib
    return Harm(
        experiment=name,
        kinds=dict(sorted(Counter(outcome.kind for outcome in seen.outcomes).items())),
        slowest_s=round(max((one.seconds for one in seen.outcomes if one.status), default=0.0), 2),
        workers_lost=len(mib) - len(lives),
        server_lost=before.java != after.java,
        out_of_memory=after.out_of_memory - before.out_of_memory,
        again_s=again_s,
        resident_mib={str(pid): (mib[pid], after.resident_mib.get(pid)) for pid in mib},
        peak_mib=max((after.peak_mib[pid] - mib[pid] for pid in lives), default=0.0),
        kept_mib=max((after.resident_mib[pid] - mib[pid] for pid in lives), default=0.0),
        cpu_s=sum(after.cpu_s[pid] - before.cpu_s[pid] for pid in lives),
        log_kib=after.log_kib - before.log_kib,
        notes=seen.notes,
        broken=seen.faults,
    )


def judge(row: Harm, promise: Promise) -> Harm:
    """The row with everything that was broken."""
    broken = (*row.broken, *find_broken(row, promise))
    return replace(row, promised=promise.kinds is not None, broken=broken)


def find_broken(row: Harm, promise: Promise) -> Iterator[str]:
    """Each says what, got, and what was promised."""
    if row.server_lost:
        yield "the server ended"
    if row.out_of_memory:
        yield f"{row.out_of_memory} OutOfMemoryErrors in the logs, promised: none"
    if promise.kinds is not None:
        others = {kind: count for kind, count in row.kinds.items() if kind not in promise.kinds}
        if others:
            yield f"answered {_list(others)}, promised: {', '.join(sorted(promise.kinds))}"
    if row.workers_lost > promise.workers_lost:
        yield f"{row.workers_lost} workers lost, promised: {promise.workers_lost}"
    if row.again_s is None or row.again_s > promise.again_s:
        yield f"right again after {_seconds(row.again_s)}, promised: {promise.again_s:g} s"
    for what, got, most, unit in (
        ("a worker's memory rose by", row.peak_mib, promise.peak_mib, "MiB"),
        ("a worker kept", row.kept_mib, promise.kept_mib, "MiB"),
        ("the workers computed", row.cpu_s, promise.cpu_s, "s"),
        ("the logs grew by", row.log_kib, promise.log_kib, "KiB"),
    ):
        if most is not None and got > most:
            yield f"{what} {got:.1f} {unit}, promised: {most:g}"


def _list(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{count} × {kind}" for kind, count in kinds.items())


def _seconds(value: float | None) -> str:
    return "more than a minute" if value is None else f"{value:.1f} s"


HEAD = ("experiment", "sent", "2xx", "4xx", "5xx", "no answer", "cut off", "workers lost", "right again",
        "slowest", "peak", "kept", "CPU", "")  # fmt: skip


def render_table(rows: Sequence[Harm]) -> list[str]:
    """A line an experiment, then what was broken and noted."""
    cells = [HEAD, *(_render_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEAD))]
    lines = [_align(line, widths) for line in cells]
    return lines + [line for row in rows for line in render_words(row)]


def _align(cells: Sequence[str], widths: Sequence[int]) -> str:
    numbers = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
    return "  ".join([cells[0].ljust(widths[0]), *numbers]).rstrip()


def _render_cells(row: Harm) -> tuple[str, ...]:
    answered = sum(row.count(hundreds) for hundreds in (2, 3, 4, 5))
    silent = row.kinds.get(SILENT, 0)
    return (
        row.experiment,
        *(str(number) for number in (row.sent, row.count(2), row.count(4), row.count(5))),
        str(silent),
        str(row.sent - answered - silent),
        f"{row.workers_lost}{' + server' if row.server_lost else ''}",
        "never" if row.again_s is None else f"{row.again_s:.1f} s",
        f"{row.slowest_s:.1f} s",
        f"{row.peak_mib:+.0f} MiB",
        f"{row.kept_mib:+.0f} MiB",
        f"{row.cpu_s:.1f} s",
        row.verdict,
    )


def render_words(row: Harm) -> list[str]:
    """Broken promises and notes of one row."""
    return [
        *(f"{row.experiment}: BROKEN: {text}" for text in row.broken),
        *(f"{row.experiment}: {text}" for text in row.notes),
    ]
