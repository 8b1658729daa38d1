"""The section of `make ladder RUNGS=engines`: what each engine in each precision gives and costs."""

from __future__ import annotations

from collections.abc import Sequence

from handlers.engines import ENGINES
from loadtest.experiments.ladder.members import OWN_MIB
from loadtest.experiments.ladder.rows import MISSING, NOT_APPLICABLE, Row, make_rows
from loadtest.report.rungs import (
    LOAD,
    NAMES,
    describe_run,
    draw_rungs,
    list_doubts,
    list_weights,
    show_figures,
    tabulate_cpu,
    tabulate_seen,
)
from loadtest.report.section import Section, Table
from loadtest.report.words import NONE, describe_host, show_ratio
from loadtest.results.kept import Kept
from loadtest.results.ratios import METHOD
from loadtest.results.trial import Series

NOTE = (
    "Compared with the first engine in the same precision, and that one with its FP32. Start to ready is "
    "from the birth of the first worker's process to the last right answer. Memory is the largest worker's: "
    "its own of all that is resident. Accuracy is against eager FP32, as the gate judged it at build."
)


def make_engines_section(kept: Kept) -> Section:
    """Finished or not."""
    rows, name = make_rows(kept), NAMES[kept.asked["model"]]
    bottom = next(row.rung.label for row in rows if row.state != NOT_APPLICABLE)
    plot = draw_rungs(kept, rows, name=f"Engines of {name}", title=f"{name}: each engine", over=bottom)
    return Section(
        title=f"Engines of {name}",
        notes=(describe_host(kept), describe_run(kept)),
        tables=(_tabulate(kept, rows, bottom),),
        plots=(plot,) if plot else (),
        proofs=(tabulate_seen(rows), tabulate_cpu(rows)),
        findings=tuple(list_doubts(rows)),
        whole=len(rows) == count_variants() and all(row.state != MISSING for row in rows),
        closing=(LOAD, METHOD, *list_weights(kept)),
    )


def count_variants() -> int:
    """Engines in each precision that they offer."""
    return sum(len(engine.flags) for engine in ENGINES.values())


def _tabulate(kept: Kept, rows: Sequence[Row], bottom: str) -> Table:
    return Table(
        title="Each engine in each precision it offers",
        note=NOTE,
        header=("engine", "requests/s", "95 % interval", "compared", f"to {bottom}", "verdict",
                "start to ready", "a worker's memory", "labels as FP32", "largest difference"),
        rows=tuple(_make_cells(kept, row, bottom) for row in rows),
    )  # fmt: skip


def _make_cells(kept: Kept, row: Row, bottom: str) -> tuple[str, ...]:
    label = row.rung.label
    figures = show_figures(row, "1" if label == bottom else show_ratio(row.to_bottom))
    if row.series is None or row.doubts:
        return (label, *figures, *[NONE] * 4)
    accuracy = _show_accuracy(row.series, kept.asked["model"])
    return (label, *figures, *_show_costs(row.series), *accuracy)


def _show_costs(series: Series) -> tuple[str, str]:
    """Start to ready; own of resident memory."""
    start, own = series.facts.start, [mib for mib in series.facts.seen.get(OWN_MIB, ()) if mib is not None]
    resident = [mib for trial in series.trials for mib in trial.memory_mib.values()]
    return (
        f"{start['worker_seconds']:.0f} s" if start else NONE,
        f"{max(own)} of {max(resident):.0f} MiB" if own and resident else NONE,
    )


def _show_accuracy(series: Series, model: str) -> tuple[str, str]:
    seen = series.facts.accuracy.get(model)
    if not seen:
        return NONE, NONE
    return f"{seen['agreement']:.1%}", f"{seen['largest_probability_difference']:.4f}"
