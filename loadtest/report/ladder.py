"""The ladder's section and page, from what is kept alone; a doubtful rung shows no figure."""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.answers.check import add_checks
from loadtest.experiments.ladder.rows import MISSING, NOT_APPLICABLE, Row, make_rows
from loadtest.experiments.ladder.rungs import BERT, DENSENET121, RESNET50, STOCK_RUNG, list_all
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

TUTORIAL = "[tutorial](https://pytorch.org/tutorials/intermediate/torchserve_with_ipex.html)"
PUBLISHED = {
    RESNET50: f"ResNet50 7.71× by TorchServe with IPEX ({TUTORIAL})",
    BERT: f"BERT 2.20× by TorchServe with IPEX ({TUTORIAL})",
    DENSENET121: "in training 1.56× by GNU's OpenMP with placement, 1.1× more by Intel's, 1.4× by IPEX, and "
    "torch.compile slower on a small network",
}
WORTH = (
    "Published: {published}; from single runs on other hardware. This is what is left of such a figure when "
    "every setting is put on by itself, seen in the live workers, and measured in turns with the one before."
)
CHAIN = "Ratios to stock are multiplied over blocks, by the rungs that were carried over."
LENGTHS = (
    "Servers without buckets are sent a text of each length before they are measured, so that compiling for "
    "lengths that are new to them is not in their figures, as it would be in production."
)
HEADER = ("rung", "requests/s", "95 % interval", "to the rung before", "to stock", "verdict",
          "labels as FP32", "largest difference", "users")  # fmt: skip
LEFT_OUT_HEADER = ("the top …", "requests/s", "95 % interval", "to the top", "verdict", "labels as FP32",
                   "largest difference")  # fmt: skip


def make_ladder_section(kept: Kept) -> Section:
    """Finished or not."""
    rows, model = make_rows(kept), kept.asked["model"]
    name = NAMES[model]
    plot = draw_rungs(kept, rows, name=f"Ladder of {name}", title=f"{name}: each setting", over="stock")
    worth = WORTH.format(published=PUBLISHED[model])
    return Section(
        title=f"Ladder of {name}",
        notes=(describe_host(kept), describe_run(kept), worth),
        tables=(_tabulate(rows), _tabulate_left_out(rows)),
        plots=(plot,) if plot else (),
        proofs=(tabulate_seen(rows), tabulate_cpu(rows)),
        findings=tuple(list_doubts(rows)),
        whole=len(rows) == len(list_all(model)) and all(row.state != MISSING for row in rows),
        closing=(LOAD, *([LENGTHS] if model == BERT else []), METHOD, CHAIN, *list_weights(kept)),
    )


def _tabulate(rows: Sequence[Row]) -> Table:
    return Table(
        title="What each setting adds",
        note="Each rung is one server with one setting more than the rung before, over REST. "
        "Ratios come from turns seconds apart in one block. A rung in brackets has none standing on it.",
        header=HEADER,
        rows=tuple(_make_cells(row) for row in rows if not row.rung.left_out),
    )


def _make_cells(row: Row) -> tuple[str, ...]:
    label = f"({row.rung.label})" if row.rung.side else row.rung.label
    to_stock = "1" if row.rung.name == STOCK_RUNG else show_ratio(row.to_bottom)
    users = f"{row.series.level:.0f}" if row.series else NONE
    return (label, *show_figures(row, to_stock), *_show_agreement(row), users)


def _tabulate_left_out(rows: Sequence[Row]) -> Table:
    shown = [row for row in rows if row.rung.left_out and row.state != NOT_APPLICABLE]
    return Table(
        title="Left out",
        note="The top with one setting taken away; below 1 the setting is worth having.",
        header=LEFT_OUT_HEADER,
        rows=tuple((row.rung.label, *show_figures(row), *_show_agreement(row)) for row in shown),
    )


def _show_agreement(row: Row) -> tuple[str, str]:
    found = add_checks([one.answers for one in row.series.trials]) if row.series else None
    if found is None or not found.labels_judged or found.largest_difference is None:
        return NONE, NONE
    return f"{found.labels_same / found.labels_judged:.1%}", f"{found.largest_difference:.4f}"
