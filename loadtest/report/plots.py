"""The plots: throughput bars, latency distributions, rate-latency curve; as PNG and SVG."""

from __future__ import annotations

import io
from collections.abc import Sequence
from math import log10
from typing import Any

import matplotlib

from loadtest.report.section import Plot
from loadtest.results.figures import CURVE, Figures
from loadtest.results.stats import least_requests
from loadtest.results.trial import Series

matplotlib.use("Agg")
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

# Okabe and Ito's palette: told apart by colour-blind readers too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
GREY = "#666666"
WIDTH = 8.0
DPI = 120
STYLE: Any = {"font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "svg.fonttype": "path"}
STYLED = matplotlib.rc_context(STYLE)
TICKS = (0.0, 50.0, 90.0, 95.0, 99.0, 99.9)
FARTHEST = 99.95
"""The right end: the scale has no 100 %."""
Point = tuple[str, Series, Figures]
"""A valid load: its label in two lines, what was measured, its figures."""
Rates = Sequence[tuple[float, Figures | None]]
"""Rates in rising order; None where a rate gave no figure."""


def save_plot(name: str, title: str, figure: Figure) -> Plot:
    """A figure as PNG and as SVG."""
    pictures = []
    for kind in ("png", "svg"):
        buffer = io.BytesIO()
        # Without a date the same result gives the same bytes.
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(buffer, format=kind, dpi=DPI, metadata=metadata)
        pictures.append(buffer.getvalue())
    return Plot(name=name, title=title, png=pictures[0], svg=pictures[1])


@STYLED
def draw_throughput(points: Sequence[Point]) -> Plot | None:
    """A bar for each load, its interval, and its repeats as dots."""
    if not points:
        return None
    figure = Figure(figsize=(WIDTH, 1.5 + 0.75 * len(points)), layout="constrained")
    axes = figure.subplots()
    for row, (_, series, figures) in enumerate(points):
        _draw_bar(axes, row, figures.rate, series.turn_rates)
    axes.set_yticks(range(len(points)), [label for label, _, _ in points])
    axes.invert_yaxis()
    axes.set_xlabel("requests a second (closed loop)")
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    axes.set_title("Throughput: mean, 95 % interval, repeats", loc="left")
    return save_plot("throughput", "Throughput", figure)


def _draw_bar(axes: Any, row: int, rate: Any, repeats: Sequence[float]) -> None:
    axes.barh(row, rate.value, height=0.6, color=COLOURS[row % len(COLOURS)], alpha=0.85)
    ends = [[rate.value - rate.low], [rate.high - rate.value]]
    axes.errorbar(rate.value, row - 0.12, xerr=ends, color="black", capsize=5, linewidth=1.8)
    axes.plot(repeats, [row + 0.15] * len(repeats), "o", color="white", markeredgecolor="black", markersize=5)
    end = (max(rate.high, *repeats), row)
    axes.annotate(f"{rate.value:.1f}", end, xytext=(8, 0), textcoords="offset points", va="center")


@STYLED
def draw_distribution(points: Sequence[Point], *, is_open: bool) -> Plot | None:
    """Times by percentile, the tail stretched; those of closed loops are labelled as what they are."""
    points = [one for one in points if one[2].percentiles_ms["50"]]
    if not points:
        return None
    name, title, short, unit = DISTRIBUTIONS[is_open]
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    axes = figure.subplots()
    for number, (label, _, figures) in enumerate(points):
        _draw_tail(axes, figures, COLOURS[number % len(COLOURS)], label.replace("\n", ", "))
    axes.xaxis.set_major_locator(FixedLocator([_stretch(p) for p in TICKS]))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{p:g}" for p in TICKS]))
    axes.set_xlim(0, _stretch(FARTHEST))
    axes.grid(axis="x", alpha=0.3)
    axes.set_ylabel(unit)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.3)
    axes.set_xlabel("percentile of requests (tail stretched; dotted: too few requests to quote)")
    axes.set_title(title, loc="left")
    figure.legend(loc="outside lower center", ncols=1 if len(points) < 3 else 2, frameon=False)
    return save_plot(name, short, figure)


DISTRIBUTIONS = {
    True: ("latency", "Latency under load (open loop, from when a request was due)",
           "Latency distribution under load", "latency, ms"),
    False: ("response-times", "Closed-loop response times (no latency under load)",
            "Closed-loop response times", "response time, ms"),
}  # fmt: skip


def _draw_tail(axes: Any, figures: Figures, colour: str, label: str) -> None:
    """Solid as far as a percentile can be quoted, dotted as far as any request reaches."""
    good = figures.good
    points = [
        (p, y) for p, y in zip(CURVE, figures.curve_ms, strict=True) if p <= 100 * (1 - 1 / max(good, 2))
    ]
    solid = [(p, y) for p, y in points if p == 0 or least_requests(max(p, 50)) <= good]
    axes.plot([_stretch(p) for p, _ in solid], [y for _, y in solid], color=colour, label=label)
    rest = points[max(0, len(solid) - 1) :]
    axes.plot([_stretch(p) for p, _ in rest], [y for _, y in rest], color=colour, linestyle=":")


def _stretch(percentile: float) -> float:
    """Each nine takes as much room as the one before."""
    return -log10(1 - percentile / 100)


@STYLED
def draw_curve(rates: Rates, *, title: str, limit_ms: float, peak: float | None) -> Plot | None:
    """Rate against p50, p95 and p99 of a search."""
    if not any(one for _, one in rates):
        return None
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    axes = figure.subplots()
    for percentile, colour in (("50", COLOURS[2]), ("95", COLOURS[4]), ("99", COLOURS[1])):
        found = [(rate, one.percentiles_ms[percentile]) for rate, one in rates if one]
        xs, shown = [rate for rate, value in found if value], [value for _, value in found if value]
        axes.plot(xs, [one.value for one in shown], "o-", color=colour, label=f"p{percentile}")
        band = [one.low for one in shown], [one.high for one in shown]
        axes.fill_between(xs, *band, color=colour, alpha=0.15, linewidth=0)
    axes.set_yscale("log")
    for number, rate in enumerate(rate for rate, one in rates if one is None):
        axes.axvline(rate, color=GREY, linestyle=":", label="no valid figure" if number == 0 else None)
    axes.axhline(limit_ms, color="black", linewidth=1, linestyle="--", label=f"limit {limit_ms:g} ms")
    if peak:
        axes.axvline(peak, color=COLOURS[0], linewidth=1.5, label=f"peak {peak:.1f}/s")
    axes.set_xlim(left=0)
    _label_decades(axes)
    axes.set_xlabel("requests a second (open loop)")
    axes.set_ylabel("latency, ms")
    axes.grid(alpha=0.3)
    axes.set_title(f"{title}: latency by rate", loc="left")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    return save_plot("curve", "Latency by rate", figure)


def _label_decades(axes: Any) -> None:
    """1, 2, 5, 10 …: powers of ten alone would leave most plots with one label."""
    low, high = axes.get_ylim()
    marks = [digit * 10**power for power in range(-1, 7) for digit in (1, 2, 5)]
    shown = [mark for mark in marks if low <= mark <= high]
    axes.yaxis.set_major_locator(FixedLocator(shown))
    axes.yaxis.set_major_formatter(FixedFormatter([f"{mark:g}" for mark in shown]))
    axes.yaxis.set_minor_locator(NullLocator())
