"""The ladder's section and page, from what is kept alone; a doubtful rung shows no figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from loadtest.answers.check import add_checks
from loadtest.experiments.ladder.rows import MEASURED, MISSING, NOT_APPLICABLE, REFUSED, Row, make_rows
from loadtest.experiments.ladder.rungs import BERT, RESNET50, STOCK_RUNG, list_all
from loadtest.report.markdown import check_own, render_section
from loadtest.report.plots import COLOURS, GREY, STYLED, save_plot
from loadtest.report.section import Doubt, Plot, Section, Table, make_doubts
from loadtest.report.targets import ROLES, find_shares
from loadtest.report.words import INVALID, NONE, describe_host, describe_machine, show_rate, show_ratio
from loadtest.results.kept import Kept
from loadtest.results.ratios import METHOD
from loadtest.results.trial import Series

NAMES = {RESNET50: "ResNet50", BERT: "BERT"}
PUBLISHED = {RESNET50: 7.71, BERT: 2.20}
TUTORIAL = "https://pytorch.org/tutorials/intermediate/torchserve_with_ipex.html"
PAGE_TITLE = "# What each setting is worth: "
WORTH = (
    "The published figure for TorchServe with IPEX is {figure:.2f}× for {name} ([tutorial]({tutorial})), "
    "from single iterations on other hardware. This is what is left of such a figure when every setting is "
    "put on by itself, seen in the live workers, and measured in turns with the one before."
)
LOAD = (
    "Locust sends real payloads over REST in a closed loop, with the load generator on the same cores: more "
    "users to servers that batch, so that their batches fill. A closed loop's rate is throughput; its "
    "response times are no latency under load. Servers that do not have their turn are halted. What is "
    "listed above was read from the live processes."
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
WIDTH, ROW_HEIGHT, MARGIN, GAP = 9.0, 0.42, 1.6, 0.6
ROOM_FOR_WORDS = 1.5
"""Of the longest bar: the ratio stands behind it."""


def make_ladder_section(kept: Kept) -> Section:
    """Finished or not."""
    rows, model, timing = make_rows(kept), kept.asked["model"], kept.asked["timing"]
    archive, plot = kept.asked["archive"], draw_ladder(kept, rows)
    run = f"{timing['repeats']} repeats of {timing['seconds']:g} s in turns; weights {archive['weights']}."
    worth = WORTH.format(figure=PUBLISHED[model], name=NAMES[model], tutorial=TUTORIAL)
    weights = [f"Weights: {note}." for note in archive["notes"]]
    return Section(
        title=f"Ladder of {NAMES[model]}",
        notes=(describe_host(kept), run, worth),
        tables=(_tabulate(rows), _tabulate_left_out(rows)),
        plots=(plot,) if plot else (),
        proofs=(_tabulate_seen(rows), _tabulate_cpu(rows)),
        findings=tuple(_list_doubts(rows)),
        whole=len(rows) == len(list_all(model)) and all(row.state != MISSING for row in rows),
        closing=(LOAD, *([LENGTHS] if model == BERT else []), METHOD, CHAIN, *weights),
    )


def write_pages(kept: Kept, output: Path) -> list[Path]:
    """ladder-<model>.md and .png; what was written."""
    name, section = f"ladder-{kept.asked['model']}", make_ladder_section(kept)
    page = output / f"{name}.md"
    check_own(page, PAGE_TITLE)
    output.mkdir(parents=True, exist_ok=True)
    pictures = {plot.title: f"{name}.png" for plot in section.plots}
    for plot in section.plots:
        (output / f"{name}.png").write_bytes(plot.png)
    text = f"{PAGE_TITLE}{NAMES[kept.asked['model']]}\n\n{render_section(section, pictures)}\n"
    page.write_text(text, encoding="utf-8")
    return [page, *(output / file for file in pictures.values())]


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
    to_stock = "1" if row.rung.name == STOCK_RUNG else show_ratio(row.to_stock)
    users = f"{row.series.level:.0f}" if row.series else NONE
    return (label, *_show_figures(row, to_stock), *_show_agreement(row), users)


def _tabulate_left_out(rows: Sequence[Row]) -> Table:
    shown = [row for row in rows if row.rung.left_out and row.state != NOT_APPLICABLE]
    return Table(
        title="Left out",
        note="The top with one setting taken away; below 1 the setting is worth having.",
        header=LEFT_OUT_HEADER,
        rows=tuple((row.rung.label, *_show_figures(row), *_show_agreement(row)) for row in shown),
    )


def _show_figures(row: Row, *more: str) -> tuple[str, ...]:
    """Rate, interval, ratio, what else is a figure, and the verdict."""
    if row.state == MEASURED and not row.doubts:
        return (*show_rate(row.rate), show_ratio(row.to_before), *more, row.verdict or NONE)
    absence = describe_absence(row) if row.state != MEASURED else INVALID
    return (INVALID if row.doubts else NONE, *[NONE] * (2 + len(more)), absence)


def describe_absence(row: Row) -> str:
    """The kit's reasons for what it refuses are long and told below."""
    if row.state == REFUSED:
        return "cannot be left out" if row.rung.left_out else "cannot be served here"
    return f"{row.state}: {row.reason}" if row.reason else row.state


def _show_agreement(row: Row) -> tuple[str, str]:
    found = add_checks([one.answers for one in row.series.trials]) if row.series else None
    if found is None or not found.labels_judged or found.largest_difference is None:
        return NONE, NONE
    return f"{found.labels_same / found.labels_judged:.1%}", f"{found.largest_difference:.4f}"


def _tabulate_seen(rows: Sequence[Row]) -> Table:
    return Table(
        title="Seen in the live servers",
        note="Of each rung's own setting: on the rung it is compared with → on this one.",
        header=("rung", "seen"),
        rows=tuple((row.rung.label, row.setting) for row in rows if row.setting),
    )


def _tabulate_cpu(rows: Sequence[Row]) -> Table:
    return Table(
        title="Where the CPU time went",
        note="Shares of all CPUs while under load.",
        header=("rung", *ROLES.values(), "others and the host", "idle"),
        rows=tuple((row.rung.label, *_show_shares(row.series)) for row in rows if row.series),
    )


def _show_shares(series: Series) -> list[str]:
    shares = find_shares([trial.cpu for trial in series.trials if trial.cpu])
    return [f"{share:.1%}" for share in shares] or [NONE] * (len(ROLES) + 2)


def _list_doubts(rows: Sequence[Row]) -> Iterator[Doubt]:
    """What is refused, with the kit's own reason, and what is doubtful."""
    for row in rows:
        if row.state == REFUSED:
            yield Doubt(where=row.rung.label, state=f"{describe_absence(row)}: {row.reason}", invalid=False)
        yield from make_doubts(row.rung.label, row.doubts)


@STYLED
def draw_ladder(kept: Kept, rows: Sequence[Row]) -> Plot | None:
    """A bar for each rung with its interval, without the doubtful ones; None when no rung has a figure."""
    shown = [row for row in rows if row.rate]
    if not shown:
        return None
    model = kept.asked["model"]
    figure = Figure(figsize=(WIDTH, MARGIN + ROW_HEIGHT * len(shown)), layout="constrained")
    axes = figure.subplots()
    places = [-number - (GAP if row.rung.left_out else 0) for number, row in enumerate(shown)]
    for place, row in zip(places, shown, strict=True):
        _draw_row(axes, place, row)
    axes.set_yticks(places, [row.rung.label for row in shown])
    axes.set_xlim(0, ROOM_FOR_WORDS * max(row.rate.high for row in shown if row.rate))
    axes.set_xlabel("requests a second (closed loop), 95 % interval; × over stock")
    axes.margins(y=0.01)
    axes.tick_params(axis="y", length=0)
    title = f"{NAMES[model]}: each setting over REST on {describe_machine(kept.host)}"
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return save_plot(f"ladder-{model}", f"Ladder of {NAMES[model]}", figure)


def _draw_row(axes: Any, place: float, row: Row) -> None:
    assert row.rate is not None
    rate, rung = row.rate, row.rung
    colour = COLOURS[1] if rung.left_out else GREY if rung.is_stock else COLOURS[0]
    axes.barh(place, rate.value, height=0.7, color=colour, alpha=0.5 if rung.side else 0.85)
    ends = [[rate.value - rate.low], [rate.high - rate.value]]
    axes.errorbar(rate.value, place, xerr=ends, color="black", capsize=3, linewidth=1.2)
    ratio = row.to_before if rung.left_out else row.to_stock
    times = (
        f"{ratio.value:.2f}× the top" if ratio and rung.left_out else f"{ratio.value:.1f}×" if ratio else ""
    )
    label = f"{rate.value:.3g}/s  {times}"
    axes.annotate(label, (rate.high, place), xytext=(6, 0), textcoords="offset points", va="center")
