"""The section of `make loadtest-gate`: both sides, their ratio, and what could have been found."""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.experiments.compare import Comparison
from loadtest.experiments.gate import compare_series, read_pair
from loadtest.report.measured import Measured, make_answers, read_measured
from loadtest.report.section import Section, Table, make_doubts
from loadtest.report.words import INVALID, NONE, describe_host, show_ratio
from loadtest.results.kept import Kept


def make_gate_section(kept: Kept) -> Section:
    """INVALID when one of the sides is."""
    loads = read_measured(kept)
    valid = bool(loads) and all(one.valid for one in loads)
    found = compare_series(*read_pair(kept), bound=kept.asked["bound"]) if valid else None
    servers = ", ".join(f"{side.upper()} {kept.asked[side]}" for side in ("a", "b"))
    return Section(
        title=f"Gate of {kept.asked['b']} against {kept.asked['a']}",
        notes=(describe_host(kept), f"Servers that took turns, A B, B A, …: {servers}."),
        tables=(_make_table(loads, found),),
        proofs=(make_answers(loads),),
        findings=tuple(doubt for one in loads for doubt in make_doubts(one.series.system, one.findings)),
        whole=bool(loads),
    )


def _make_table(loads: Sequence[Measured], found: Comparison | None) -> Table:
    return Table(
        title="B against A",
        note="B / A is the geometric mean over pairs that ran side by side. The smallest change is what this "
        "much data would find four times out of five.",
        header=("scenario", "users", "A, requests/s", "B, requests/s", "B / A (95 % interval)", "bound",
                "smallest change found", "verdict", "pairs"),
        rows=tuple((one.name, f"{one.series.level:.0f}", *_make_cells(found), str(len(one.series.trials)))
                   for one in loads[:1]),
    )  # fmt: skip


def _make_cells(found: Comparison | None) -> tuple[str, ...]:
    if found is None:
        return (INVALID, *[NONE] * 5)
    sides = (f"{one:.2f}" for one in (found.a, found.b))
    return (
        *sides,
        show_ratio(found.ratio),
        f"{found.bound:.1%}",
        f"{found.smallest_detectable:.1%}",
        found.word,
    )
