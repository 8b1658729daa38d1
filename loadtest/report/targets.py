"""The sections of `make targets` and `make soak`: ratios, rates, limits, and where the time goes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from loadtest.experiments import soak
from loadtest.experiments.targets import ROWS, Row, Seen, count_fill, find_alone, judge, look_at
from loadtest.report.measured import Measured, make_accuracy, make_answers, read_measured
from loadtest.report.section import Doubt, Section, Table, make_doubts
from loadtest.report.words import INVALID, NONE, describe_host, show_rate, show_ratio
from loadtest.results.kept import Kept
from loadtest.results.ratios import METHOD, find_rate_interval, take_parts, take_rates
from loadtest.results.trial import CpuUse
from loadtest.trials.block import Verdict
from loadtest.trials.machine import GENERATOR
from loadtest.trials.validity import OF_THE_MACHINE

ROLES = {"worker": "workers", "TorchServe": "TorchServe's Java", GENERATOR: GENERATOR}


def make_targets_section(kept: Kept) -> Section:
    """Rows that are not measured yet say so."""
    seen = [(row, look_at(kept, kept.find(row.name))) for row in ROWS]
    loads, verdicts = read_measured(kept), judge(kept)
    ratios = Table(
        title="Ratios",
        note="Of the rates of one row, in turns.",
        header=("row and systems", "ratio (95 % interval)", "why not"),
        rows=tuple((one.what, show_ratio(one.figure), one.why or NONE) for one in verdicts),
    )
    rates = Table(
        title="Rates",
        note="Closed loops in turns; the median of the repeats.",
        header=("row", "system", "users", "requests/s", "95 % interval", "what it is"),
        rows=tuple(cells for row, one in seen for cells in _list_rates(row, one)),
    )
    shares = Table(
        title="Where the CPU time goes",
        note="Shares of all CPUs in the windows.",
        header=("row", "system", *ROLES.values(), "others and the host", "idle"),
        rows=tuple(cells for row, one in seen for cells in _list_shares(row, one)),
    )
    return Section(
        title="What the kit gains",
        notes=(describe_host(kept), *(f"{row.name}: {row.title}." for row, _ in seen)),
        tables=(ratios, rates, shares, make_answers(loads), make_accuracy(loads)),
        findings=_list_doubts(loads),
        whole=all(one.figure for one in verdicts),
        closing=(*(line for row, one in seen for line in describe_row(row, one)), METHOD),
    )


def make_soak_section(kept: Kept) -> Section:
    """Memory of each worker after each leg."""
    loads, verdicts = read_measured(kept), soak.judge(kept)
    ends = [one.series.trials[-1] for one in loads]
    workers = dict.fromkeys(worker for end in ends for worker in end.memory_mib)
    memory = Table(
        title="Resident memory after each leg, MiB",
        note="The first leg is a closed loop, the others an open one of 80 % of its rate, through the door.",
        header=("worker", *(f"{end.requests} requests" for end in ends)),
        rows=tuple(
            (worker, *(f"{end.memory_mib.get(worker, math.nan):.0f}" for end in ends)) for worker in workers
        ),
    )
    return Section(
        title="Soak",
        notes=(describe_host(kept),),
        tables=(make_verdicts(verdicts), memory, make_answers(loads)),
        findings=_list_doubts(loads, without=OF_THE_MACHINE),
        whole=all(one.figure for one in verdicts),
    )


def _list_doubts(loads: Sequence[Measured], without: Collection[str] = ()) -> tuple[Doubt, ...]:
    where = ((f"{one.name}, {one.series.system}", one.findings) for one in loads)
    kept = ((name, [one for one in found if one.rule not in without]) for name, found in where)
    return tuple(doubt for name, findings in kept for doubt in make_doubts(name, findings))


def make_verdicts(verdicts: Sequence[Verdict]) -> Table:
    """INVALID figures are not shown; the column at the end says why."""
    return Table(
        title="Targets",
        note="Judged by the figure; the interval is shown.",
        header=("figure", "value", "95 % interval", "target", "verdict", "how"),
        rows=tuple((one.what, *_show_verdict(one), one.why or NONE) for one in verdicts),
    )


def _show_verdict(verdict: Verdict) -> tuple[str, str, str, str]:
    """(value, interval, target, verdict)."""
    found, unit = verdict.figure, verdict.unit
    if found is None:
        return (INVALID if verdict.why.startswith(INVALID) else NONE, NONE, NONE, "NO FIGURE")
    sign = "≥" if verdict.at_least else "≤"
    target = NONE if verdict.limit is None else f"{sign} {verdict.limit:.4g}{unit}"
    interval = NONE if found.low == found.high else f"{found.low:.4g}-{found.high:.4g}"
    return f"{found.value:.4g}{unit}", interval, target, "met" if verdict.met else "MISSED"


def _list_rates(row: Row, seen: Seen) -> Iterator[tuple[str, ...]]:
    valid = list(seen.valid.values())
    rates, parts = take_rates(valid), take_parts(valid)
    for name, one in seen.valid.items():
        found = find_rate_interval(rates, name, parts) if len(valid) > 1 else None
        yield (row.name, name, f"{one.level:.0f}", *show_rate(found), one.facts.how)
    for name, gap in seen.gaps.items():
        yield (row.name, name, NONE, INVALID if gap.startswith(INVALID) else "refused", NONE, NONE)


def _list_shares(row: Row, seen: Seen) -> Iterator[tuple[str, ...]]:
    """Of servers; without one there is nothing but the model, its decoding and its packing."""
    for name, one in seen.valid.items():
        shares = find_shares([trial.cpu for trial in one.trials if trial.cpu])
        if shares and not find_alone(one):
            yield (row.name, name, *(f"{share:.1%}" for share in shares))


def find_shares(uses: Sequence[CpuUse]) -> list[float]:
    """Of each role, of others with the host, and idle (0 to 1); empty where nothing was watched."""
    used: Counter[str] = Counter()
    for one in uses:
        used.update(one.by_role)
    available = sum(one.cpus * one.seconds for one in uses)
    if not available:
        return []
    others = sum(one.others + one.stolen for one in uses) / available
    idle = 1 - sum(used.values()) / available - others
    return [*(used[role] / available for role in ROLES), others, max(0.0, idle)]


def describe_row(row: Row, seen: Seen) -> Iterator[str]:
    """What belongs to its figures: fill, and how much the model alone would reach."""
    for name, one in seen.valid.items():
        if "fill" in one.facts.seen:
            # Between the first trial and the last.
            before, after = count_fill(one.facts.described), one.facts.seen["fill"]
            own, computed, runs = (after[count] - before[count] for count in before)
            fill = f"{own / computed if computed else 1.0:.1%}: so much of {computed} tokens computed"
            yield f"{row.name}: {name}: fill {fill} in {runs} runs was texts."
        if alone := find_alone(one):
            yield (
                f"{row.name}: {name}: {alone[0]:.1%} of its time is the model, which alone would reach "
                f"{alone[1]:.2f} a second; the rest is decoding, packing, answering."
            )
