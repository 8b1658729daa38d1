"""The section and the page of `make chaos`: a row a fault, and both figures of overload."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from loadtest.experiments.chaos.evidence import list_missing, make_rows, read_evidence
from loadtest.experiments.chaos.registry import DEADLINE_MS, FAULTS
from loadtest.experiments.chaos.row import DRIVER_S, GIVEN_UP_S, SLOW, Row
from loadtest.report.markdown import render_section, replace_part
from loadtest.report.section import Doubt, Section, Table
from loadtest.report.words import NONE, describe_host
from loadtest.results.kept import Kept

PAGE = "reliability.md"
BEGIN = "<!-- To the next mark by `make report OUTPUT=docs`: what is changed by hand here is lost. -->"
END = "<!-- To here. -->"
SKELETON = f"# Reliability: what was done to the server, and what clients saw\n\n{BEGIN}\n{END}\n"
HEADER = ("fault", "what happens", "sent", "2xx", "4xx", "5xx", "unanswered", "late", "full strength after",
          "slow seconds", "strays", "verify", "promise")  # fmt: skip
GOODPUT_HEADER = ("queue", "offered, requests/s", "peak", "answered in time, requests/s", "of the peak",
                  "refused or failed", "unanswered")  # fmt: skip
HOW = (
    "Requests come as a Poisson process at a constant rate, whatever becomes of the earlier ones, each on a "
    "connection of its own; one photograph in ten has 300 kB. Every request says in X-Deadline-Ms until when "
    f"it wants its answer: {DEADLINE_MS / 1000:g} s, in overload 1 s. Times count from when it was due.",
    f"Unanswered: no answer {GIVEN_UP_S:g} s after the deadline, or the connection was cut. Late: answered "
    f"more than {DRIVER_S:g} s after the deadline; the load generator shares the cores. Slow: a second whose "
    f"p99 is more than {SLOW:g} times that of the seconds before the fault.",
    "Full strength: the supervisor says that it and all instances are ready, HAProxy runs, and as many "
    "workers as planned are ready by TorchServe's own word, alive, not stopped and children of their "
    "launchers; counted from the end of the fault. `never`: not while it was looked at. Strays: marked "
    "processes that do not descend from the supervisor.",
)


def make_chaos_section(kept: Kept) -> Section:
    """Whole when each fault there is has a row, be it that this machine could not do it."""
    rows = make_rows(kept)
    asked = {evidence.fault: evidence for evidence, _ in read_evidence(kept.folder)}
    peak = max((one.peak for one in asked.values()), default=0.0)
    load = f"A closed loop reaches {peak:.1f} requests/s through the door; faults are done at 60 % of it."
    titles = {(fault.name, fault.front): fault.title for fault in FAULTS}
    named = {(row.fault, row.front) for row in rows}
    return Section(
        title="Faults under load",
        notes=(describe_host(kept), f"{kept.asked['model']}, {kept.asked['precision']}. {load}"),
        tables=(make_fault_table(rows, titles), make_goodput_table(rows, kept)),
        findings=tuple(list_doubts(rows)),
        closing=HOW,
        whole=not list_missing(kept, rows) and named == set(titles),
    )


def make_fault_table(rows: Sequence[Row], titles: dict[tuple[str, str], str]) -> Table:
    return Table(
        title="One fault after the other",
        note="",
        header=HEADER,
        rows=tuple(_make_cells(row, titles.get((row.fault, row.front), "")) for row in rows),
    )


def _make_cells(row: Row, title: str) -> tuple[str, ...]:
    if row.not_done:
        return (row.fault, title, *[NONE] * 10, row.verdict)
    counts = (row.sent, row.good, row.refused, row.failed, row.unanswered, row.late)
    return (
        row.fault,
        title,
        *map(str, counts),
        _show_full(row),
        NONE if row.slow_s is None else str(row.slow_s),
        str(len(row.strays)),
        NONE if row.verified is None else "good" if row.verified else "differs",
        row.verdict,
    )


def _show_full(row: Row) -> str:
    if row.fault == "stop" or row.front == "none":
        return NONE
    return "never" if row.full_s is None else f"{row.full_s:.1f} s"


def make_goodput_table(rows: Sequence[Row], kept: Kept) -> Table:
    """Of overload, behind the door and without it."""
    evidence = {(one.fault, one.front): one for one, _ in read_evidence(kept.folder)}
    return Table(
        title="Overload",
        note="The same rate and deadline for both, in one run.",
        header=GOODPUT_HEADER,
        rows=tuple(
            _make_goodput_cells(row, evidence[row.fault, row.front].rate, evidence[row.fault, row.front].peak)
            for row in rows
            if row.fault == "overload" and not row.not_done
        ),
    )


def _make_goodput_cells(row: Row, rate: float, peak: float) -> tuple[str, ...]:
    whose = "TorchServe's own" if row.front == "none" else "the door's"
    figures = (f"{rate:.1f}", f"{peak:.1f}", f"{row.goodput:.1f}", f"{row.goodput / peak:.0%}")
    return (whose, *figures, str(row.refused + row.failed), str(row.unanswered))


def list_doubts(rows: Sequence[Row]) -> Iterator[Doubt]:
    """Broken promises and what was not done; a generator that was late makes its row void."""
    for row in rows:
        where = f"{row.fault} ({row.front})"
        evidence = "; ".join(word for word in (row.others, *row.notes) if word)
        for broken in row.broken:
            yield Doubt(where=where, state=broken, evidence=evidence, invalid=False)
        if row.not_done:
            yield Doubt(where=where, state=f"not done: {row.not_done}", invalid=False)
        elif row.lag_p99_ms > 1000 * DRIVER_S:
            yield Doubt(
                where=where,
                state=f"the load generator was {row.lag_p99_ms:.0f} ms late (p99)",
                next_step="measure again on a quieter machine",
            )


def write_page(kept: Kept, output: Path) -> list[Path]:
    """Between the marks of the page; what stands around them is written by hand."""
    page = output / PAGE
    replace_part(page, SKELETON, (BEGIN, END), render_section(make_chaos_section(kept)))
    return [page]
