"""The plots, as SVG: throughput, latency distributions, the throughput-latency curve, steps with ratios."""

from __future__ import annotations

import io
from collections.abc import Sequence
from math import log10
from typing import Any

import matplotlib
import numpy as np

from loadtest.bench import list_latencies_ms
from loadtest.report import Plot
from loadtest.results import Series
from loadtest.stats import Interval, least_requests, pick
from loadtest.tables import find_rate, name_precision

matplotlib.use("Agg")
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

# Okabe and Ito's palette: told apart by colour-blind readers too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
GREY = "#666666"
WIDTH = 8.0
STYLE: Any = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "kit",
}
STYLED = matplotlib.rc_context(STYLE)
TICKS = (0.0, 50.0, 90.0, 95.0, 99.0, 99.9)
CURVE = tuple(round(float(p), 1) for p in [*np.arange(0.0, 99.0, 1.0), *np.arange(99.0, 99.91, 0.1)])
"""Percentiles of a distribution's plot; the far ends of few requests are drawn, not quoted."""
FARTHEST = 99.95
"""The right end: the scale has no 100 %."""


def save_plot(name: str, title: str, figure: Figure) -> Plot:
    """Without a date the same result gives the same bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return Plot(name=name, title=title, svg=buffer.getvalue())


def _label(one: Series) -> str:
    return f"{one.load.name}, {name_precision(one)}\n{one.load.place}"


@STYLED
def draw_throughput(every: Sequence[Series]) -> Plot | None:
    """A bar for each closed load, its interval, and its repeats as dots."""
    if not every:
        return None
    figure = Figure(figsize=(WIDTH, 1.5 + 0.75 * len(every)), layout="constrained")
    axes = figure.subplots()
    for row, one in enumerate(every):
        rate = find_rate(one)
        axes.barh(row, rate.value, height=0.6, color=COLOURS[row % len(COLOURS)], alpha=0.85)
        ends = [[rate.value - rate.low], [rate.high - rate.value]]
        axes.errorbar(rate.value, row - 0.12, xerr=ends, color="black", capsize=5, linewidth=1.8)
        dots = [row + 0.15] * len(one.rates)
        axes.plot(one.rates, dots, "o", color="white", markeredgecolor="black", markersize=5)
        end = (max(rate.high, *one.rates), row)
        axes.annotate(f"{rate.value:.1f}", end, xytext=(8, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(every)), [_label(one) for one in every])
    axes.invert_yaxis()
    axes.set_xlabel("requests a second (closed loop)")
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    axes.set_title("Throughput: mean, 95 % interval, repeats", loc="left")
    return save_plot("throughput", "Throughput", figure)


@STYLED
def draw_distribution(every: Sequence[Series]) -> Plot | None:
    """Latency by percentile of open loads; each nine takes as much room as the one before."""
    every = [one for one in every if one.requests > one.errors]
    if not every:
        return None
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    axes = figure.subplots()
    for number, one in enumerate(every):
        values = np.concatenate(list_latencies_ms(one))
        colour = COLOURS[number % len(COLOURS)]
        points = [(p, pick(values, p)) for p in CURVE if p <= 100 * (1 - 1 / max(len(values), 2))]
        solid = [point for point in points if least_requests(max(point[0], 50)) <= len(values)]
        for drawn, style, label in ((solid, "-", _label(one).replace("\n", ", ")),
                                    (points[max(0, len(solid) - 1) :], ":", None)):  # fmt: skip
            xs, ys = [_stretch(p) for p, _ in drawn], [ms for _, ms in drawn]
            axes.plot(xs, ys, color=colour, linestyle=style, label=label)
    axes.xaxis.set_major_locator(FixedLocator([_stretch(p) for p in TICKS]))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{p:g}" for p in TICKS]))
    axes.set_xlim(0, _stretch(FARTHEST))
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.set_ylabel("latency, ms")
    axes.set_xlabel("percentile of requests (tail stretched; dotted: too few requests to quote)")
    axes.set_title("Latency under load (open loop, from when a request was due)", loc="left")
    figure.legend(loc="outside lower center", ncols=1 if len(every) < 3 else 2, frameon=False)
    return save_plot("latency", "Latency distribution under load", figure)


def _stretch(percentile: float) -> float:
    return -log10(1 - percentile / 100)


Points = Sequence[tuple[float, dict[str, Interval | None] | None]]
"""Rates in rising order with latencies in ms by percentile ("50" …); None where a rate gave none."""


@STYLED
def draw_curve(points: Points, *, title: str, limit_ms: float, peak: float | None) -> Plot | None:
    """The throughput-latency curve of a search, with the limit and the highest rate that kept it."""
    if not any(found for _, found in points):
        return None
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    axes = figure.subplots()
    for percentile, colour in (("50", COLOURS[2]), ("95", COLOURS[4]), ("99", COLOURS[1])):
        found = [(rate, one[percentile]) for rate, one in points if one and one[percentile]]
        xs, shown = [rate for rate, _ in found], [value for _, value in found if value]
        axes.plot(xs, [one.value for one in shown], "o-", color=colour, label=f"p{percentile}")
        band = [one.low for one in shown], [one.high for one in shown]
        axes.fill_between(xs, *band, color=colour, alpha=0.15, linewidth=0)
    axes.set_yscale("log")
    for number, rate in enumerate(rate for rate, one in points if one is None):
        axes.axvline(rate, color=GREY, linestyle=":", label="no valid figure" if number == 0 else None)
    axes.axhline(limit_ms, color="black", linewidth=1, linestyle="--", label=f"limit {limit_ms:g} ms")
    if peak:
        axes.axvline(peak, color=COLOURS[0], linewidth=1.5, label=f"highest {peak:.1f}/s")
    axes.set_xlim(left=0)
    label_decades(axes)
    axes.set_xlabel("requests a second (open loop)")
    axes.set_ylabel("latency, ms")
    axes.grid(alpha=0.3)
    axes.set_title(f"{title}: latency by rate", loc="left")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    return save_plot("curve", "Latency by rate", figure)


def label_decades(axes: Any) -> None:
    """1, 2, 5, 10 …: powers of ten alone would leave most plots with one label."""
    low, high = axes.get_ylim()
    marks = [digit * 10**power for power in range(-1, 7) for digit in (1, 2, 5)]
    shown = [mark for mark in marks if low <= mark <= high]
    axes.yaxis.set_major_locator(FixedLocator(shown))
    axes.yaxis.set_major_formatter(FixedFormatter([f"{mark:g}" for mark in shown]))
    axes.yaxis.set_minor_locator(NullLocator())


@STYLED
def draw_steps(rows: Sequence[tuple[str, Interval, str, str]], *, title: str) -> Plot | None:
    """A bar for each (label, rate, words behind it, colour), with its interval."""
    if not rows:
        return None
    figure = Figure(figsize=(9.0, 1.6 + 0.42 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for place, (_, rate, words, colour) in enumerate(rows):
        axes.barh(place, rate.value, height=0.7, color=colour, alpha=0.85)
        ends = [[rate.value - rate.low], [rate.high - rate.value]]
        axes.errorbar(rate.value, place, xerr=ends, color="black", capsize=3, linewidth=1.2)
        text = f"{rate.value:.3g}/s  {words}"
        axes.annotate(text, (rate.high, place), xytext=(6, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(rows)), [label for label, *_ in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.5 * max(rate.high for _, rate, *_ in rows))
    axes.set_xlabel("requests a second (closed loop), 95 % interval")
    axes.margins(y=0.01)
    axes.tick_params(axis="y", length=0)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return save_plot("steps", title, figure)
