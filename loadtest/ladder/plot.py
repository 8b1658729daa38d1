"""The ladder as a picture: a bar for each rung, its interval, and how many times stock it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from loadtest.ladder.keep import Header
from loadtest.ladder.rows import Row, is_stock
from loadtest.ladder.words import NAMES, describe_machine
from loadtest.pages.plots import COLOURS, GREY, STYLE, Plot, save_plot

WIDTH, ROW_HEIGHT, MARGIN = 9.0, 0.42, 1.6
ROOM_FOR_WORDS = 1.5
"""Of the longest bar: the ratio stands behind it."""


def draw_ladder(header: Header, ladder: Sequence[Row], left_out: Sequence[Row]) -> Plot | None:
    """None when no rung has a figure; doubtful ones are not drawn."""
    shown = [row for row in ladder if row.rate]
    taken = [row for row in left_out if row.rate]
    if not shown:
        return None
    title = f"{NAMES[header.model]}: each setting over REST on {describe_machine(header.inputs['host'])}"
    with matplotlib.rc_context(STYLE):
        count = len(shown) + len(taken)
        figure = Figure(figsize=(WIDTH, MARGIN + ROW_HEIGHT * count), layout="constrained")
        axes = figure.subplots()
        for place, row in enumerate((*shown, *taken)):
            _draw_row(axes, -place - (0.6 if row in taken else 0), row, is_left_out=row in taken)
        _finish(axes, [*shown, *taken], len(shown))
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
        return save_plot(f"ladder-{header.model}", f"Ladder of {NAMES[header.model]}", figure)


def _draw_row(axes: Any, place: float, row: Row, *, is_left_out: bool) -> None:
    assert row.rate is not None
    rate = row.rate
    colour = COLOURS[1] if is_left_out else GREY if is_stock(row) or row.rung.is_stock else COLOURS[0]
    axes.barh(place, rate.value, height=0.7, color=colour, alpha=0.5 if row.rung.side else 0.85)
    ends = [[rate.value - rate.low], [rate.high - rate.value]]
    axes.errorbar(rate.value, place, xerr=ends, color="black", capsize=3, linewidth=1.2)
    axes.annotate(
        _label(row, is_left_out=is_left_out),
        (rate.high, place),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
    )


def _label(row: Row, *, is_left_out: bool) -> str:
    assert row.rate is not None
    figure = f"{row.rate.value:.3g}/s"
    if is_left_out:
        return f"{figure}  {row.to_before.value:.2f}× the top" if row.to_before else figure
    return f"{figure}  {row.to_stock.value:.1f}×" if row.to_stock else figure


def _finish(axes: Any, rows: Sequence[Row], rungs: int) -> None:
    places = [-place - (0.6 if place >= rungs else 0) for place in range(len(rows))]
    axes.set_yticks(places, [row.rung.label for row in rows])
    axes.set_xlim(0, ROOM_FOR_WORDS * max(row.rate.high for row in rows if row.rate))
    axes.set_xlabel("requests a second, closed loop, with 95 % interval; × over stock TorchServe")
    axes.margins(y=0.01)
    axes.tick_params(axis="y", length=0)
