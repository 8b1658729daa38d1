"""What sections of rungs share: their figures, what was seen of them, doubts, and the picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from matplotlib.figure import Figure

from loadtest.experiments.ladder.rows import MEASURED, REFUSED, Row
from loadtest.experiments.ladder.rungs import BERT, DENSENET121, RESNET50
from loadtest.report.plots import COLOURS, GREY, STYLED, save_plot
from loadtest.report.section import Doubt, Plot, Table, make_doubts
from loadtest.report.targets import ROLES, find_shares
from loadtest.report.words import INVALID, NONE, describe_machine, show_rate, show_ratio
from loadtest.results.kept import Kept
from loadtest.results.trial import Series

NAMES = {RESNET50: "ResNet50", BERT: "BERT", DENSENET121: "DenseNet121"}
LOAD = (
    "Locust sends real payloads over REST in a closed loop, with the load generator on the same cores: more "
    "users to servers that batch, so that their batches fill. A closed loop's rate is throughput; its "
    "response times are no latency under load. Servers that do not have their turn are halted. What is "
    "listed above was read from the live processes."
)
WIDTH, ROW_HEIGHT, MARGIN, GAP = 9.0, 0.42, 1.6, 0.6
ROOM_FOR_WORDS = 1.5
"""Of the longest bar: the ratio stands behind it."""


def describe_run(kept: Kept) -> str:
    """How long, and of which weights."""
    timing, weights = kept.asked["timing"], kept.asked["archive"]["weights"]
    return f"{timing['repeats']} repeats of {timing['seconds']:g} s in turns; weights {weights}."


def list_weights(kept: Kept) -> list[str]:
    """What the archive says of them."""
    return [f"Weights: {note}." for note in kept.asked["archive"]["notes"]]


def show_figures(row: Row, *more: str) -> tuple[str, ...]:
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


def tabulate_seen(rows: Sequence[Row]) -> Table:
    return Table(
        title="Seen in the live servers",
        note="Of each rung's own setting: on the rung it is compared with → on this one.",
        header=("rung", "seen"),
        rows=tuple((row.rung.label, row.setting) for row in rows if row.setting),
    )


def tabulate_cpu(rows: Sequence[Row]) -> Table:
    return Table(
        title="Where the CPU time went",
        note="Shares of all CPUs while under load.",
        header=("rung", *ROLES.values(), "others and the host", "idle"),
        rows=tuple((row.rung.label, *_show_shares(row.series)) for row in rows if row.series),
    )


def _show_shares(series: Series) -> list[str]:
    shares = find_shares([trial.cpu for trial in series.trials if trial.cpu])
    return [f"{share:.1%}" for share in shares] or [NONE] * (len(ROLES) + 2)


def list_doubts(rows: Sequence[Row]) -> Iterator[Doubt]:
    """What is refused, with the kit's own reason, and what is doubtful."""
    for row in rows:
        if row.state == REFUSED:
            yield Doubt(where=row.rung.label, state=f"{describe_absence(row)}: {row.reason}", invalid=False)
        yield from make_doubts(row.rung.label, row.doubts)


@STYLED
def draw_rungs(kept: Kept, rows: Sequence[Row], *, name: str, title: str, over: str) -> Plot | None:
    """A bar for each rung with its interval, without the doubtful ones; None when no rung has a figure.

    `over` is what the bottom rung is called.
    """
    shown = [row for row in rows if row.rate]
    if not shown:
        return None
    figure = Figure(figsize=(WIDTH, MARGIN + ROW_HEIGHT * len(shown)), layout="constrained")
    axes = figure.subplots()
    places = [-number - (GAP if row.rung.left_out else 0) for number, row in enumerate(shown)]
    for place, row in zip(places, shown, strict=True):
        _draw_row(axes, place, row)
    axes.set_yticks(places, [row.rung.label for row in shown])
    axes.set_xlim(0, ROOM_FOR_WORDS * max(row.rate.high for row in shown if row.rate))
    axes.set_xlabel(f"requests a second (closed loop), 95 % interval; × over {over}")
    axes.margins(y=0.01)
    axes.tick_params(axis="y", length=0)
    figure.suptitle(f"{title} over REST on {describe_machine(kept.host)}", x=0.01, ha="left", fontsize=11)
    return save_plot(f"{kept.kind}-{kept.asked['model']}", name, figure)


def _draw_row(axes: Any, place: float, row: Row) -> None:
    assert row.rate is not None
    rate, rung = row.rate, row.rung
    colour = COLOURS[1] if rung.left_out else GREY if rung.is_stock else COLOURS[0]
    axes.barh(place, rate.value, height=0.7, color=colour, alpha=0.5 if rung.side else 0.85)
    ends = [[rate.value - rate.low], [rate.high - rate.value]]
    axes.errorbar(rate.value, place, xerr=ends, color="black", capsize=3, linewidth=1.2)
    ratio = row.to_before if rung.left_out else row.to_bottom
    times = (
        f"{ratio.value:.2f}× the top" if ratio and rung.left_out else f"{ratio.value:.1f}×" if ratio else ""
    )
    label = f"{rate.value:.3g}/s  {times}"
    axes.annotate(label, (rate.high, place), xytext=(6, 0), textcoords="offset points", va="center")
