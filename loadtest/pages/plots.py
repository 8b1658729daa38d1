"""The plots: throughput bars, latency distributions, rate-latency curve; as PNG and SVG."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log10
from typing import Any

import matplotlib

from loadtest.stats import least_requests
from loadtest.summary import CURVE, StepSummary, Summary

matplotlib.use("Agg")
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

# Okabe and Ito's palette: told apart by colour-blind readers too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
GREY = "#666666"
WIDTH = 8.0
DPI = 120
STYLE: Any = {"font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "svg.fonttype": "path"}
TICKS = (0.0, 50.0, 90.0, 95.0, 99.0, 99.9)
FARTHEST = 99.95
"""The right end: the scale has no 100 %."""


@dataclass(frozen=True, kw_only=True)
class Plot:
    """One picture, twice."""

    name: str
    title: str
    png: bytes
    svg: bytes


def draw_plots(summaries: Sequence[Summary]) -> list[Plot]:
    """Those that have something to show; figures of invalid steps are not drawn."""
    with matplotlib.rc_context(STYLE):
        found = [(name, title, draw(summaries)) for name, title, draw in PLOTS]
        return [save_plot(name, title, figure) for name, title, figure in found if figure is not None]


def save_plot(name: str, title: str, figure: Figure) -> Plot:
    """As both kinds."""
    pictures = []
    for kind in ("png", "svg"):
        buffer = io.BytesIO()
        # Without a date the same result gives the same bytes.
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(buffer, format=kind, dpi=DPI, metadata=metadata)
        pictures.append(buffer.getvalue())
    return Plot(name=name, title=title, png=pictures[0], svg=pictures[1])


def _valid_steps(summaries: Sequence[Summary], *, is_open: bool) -> list[tuple[str, Summary, StepSummary]]:
    """(label, run, step), with the level in the label where a run has several."""
    found = []
    for one in summaries:
        if one.scenario.is_open != is_open:
            continue
        for number, step in enumerate(one.steps):
            unit = "/s" if is_open else " users"
            level = f"{step.level:.3g}{unit}"
            if one.is_valid(number):
                found.append((f"{one.scenario.name}, {one.precision}\n{level}", one, step))
    return found


def draw_throughput(summaries: Sequence[Summary]) -> Figure | None:
    """A bar for each closed-loop step, its interval, and its repeats as dots."""
    steps = _valid_steps(summaries, is_open=False)
    if not steps:
        return None
    figure = Figure(figsize=(WIDTH, 1.5 + 0.75 * len(steps)), layout="constrained")
    axes = figure.subplots()
    for row, (_, _, step) in enumerate(steps):
        rate = step.rate
        axes.barh(row, rate.value, height=0.6, color=COLOURS[row % len(COLOURS)], alpha=0.85)
        ends = [[rate.value - rate.low], [rate.high - rate.value]]
        axes.errorbar(rate.value, row - 0.12, xerr=ends, color="black", capsize=5, linewidth=1.8)
        dots = [one.rate for one in step.repeats]
        axes.plot(dots, [row + 0.15] * len(dots), "o", color="white", markeredgecolor="black", markersize=5)
        farthest = max(rate.high, *(one.rate for one in step.repeats))
        axes.annotate(
            f"{rate.value:.1f}", (farthest, row), xytext=(8, 0), textcoords="offset points", va="center"
        )
    axes.set_yticks(range(len(steps)), [label for label, _, _ in steps])
    axes.invert_yaxis()
    axes.set_xlabel("requests a second (closed loop)")
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    axes.set_title("Throughput: mean, 95 % interval, repeats", loc="left")
    return figure


def draw_open_distribution(summaries: Sequence[Summary]) -> Figure | None:
    """Latency by percentile, the tail stretched."""
    steps = [one for one in _valid_steps(summaries, is_open=True) if not one[1].searched]
    return _draw_distribution(
        steps, "Latency under load (open loop, from when a request was due)", "latency, ms"
    )


def draw_closed_distribution(summaries: Sequence[Summary]) -> Figure | None:
    """Response times of closed loops, labelled as what they are."""
    steps = [one for one in _valid_steps(summaries, is_open=False) if one[2].percentiles_ms["50"]]
    return _draw_distribution(
        steps, "Closed-loop response times (no latency under load)", "response time, ms"
    )


def _draw_distribution(steps: list[tuple[str, Summary, StepSummary]], title: str, unit: str) -> Figure | None:
    if not steps:
        return None
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    axes = figure.subplots()
    for number, (label, _, step) in enumerate(steps):
        _draw_tail(axes, step, COLOURS[number % len(COLOURS)], label.replace("\n", ", "))
    _scale_percentiles(axes)
    _scale_milliseconds(axes, unit)
    axes.set_xlabel("percentile of requests (tail stretched; dotted: too few requests to quote)")
    axes.set_title(title, loc="left")
    figure.legend(loc="outside lower center", ncols=1 if len(steps) < 3 else 2, frameon=False)
    return figure


def _draw_tail(axes: Any, step: StepSummary, colour: str, label: str) -> None:
    """Solid as far as a percentile can be quoted, dotted as far as any request reaches."""
    good = step.requests - step.errors
    points = [(p, y) for p, y in zip(CURVE, step.curve_ms, strict=True) if p <= 100 * (1 - 1 / max(good, 2))]
    solid = [(p, y) for p, y in points if p == 0 or least_requests(max(p, 50)) <= good]
    axes.plot([_stretch(p) for p, _ in solid], [y for _, y in solid], color=colour, label=label)
    rest = points[max(0, len(solid) - 1) :]
    axes.plot([_stretch(p) for p, _ in rest], [y for _, y in rest], color=colour, linestyle=":")


def _stretch(percentile: float) -> float:
    """Each nine takes as much room as the one before."""
    return -log10(1 - percentile / 100)


def _scale_percentiles(axes: Any) -> None:
    axes.xaxis.set_major_locator(FixedLocator([_stretch(p) for p in TICKS]))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{p:g}" for p in TICKS]))
    axes.set_xlim(0, _stretch(FARTHEST))
    axes.grid(axis="x", alpha=0.3)


def _scale_milliseconds(axes: Any, unit: str) -> None:
    axes.set_ylabel(unit)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.3)


def draw_curve(summaries: Sequence[Summary]) -> Figure | None:
    """Rate against p50, p95 and p99, for searches and for scenarios with several rates."""
    runs = [one for one in summaries if one.scenario.is_open and len(one.steps) > 1]
    if not runs:
        return None
    figure = Figure(figsize=(WIDTH, 0.6 + 3.6 * len(runs)), layout="constrained")
    rows = figure.subplots(len(runs), squeeze=False, gridspec_kw={"hspace": 0.15})
    for one, axes in zip(runs, rows[:, 0], strict=True):
        _draw_one_curve(one, axes)
    return figure


def _draw_one_curve(summary: Summary, axes: Any) -> None:
    good = sorted(
        (step for number, step in enumerate(summary.steps) if summary.is_valid(number)),
        key=lambda step: step.level,
    )
    bad = [step.level for number, step in enumerate(summary.steps) if not summary.is_valid(number)]
    for percentile, colour in (("50", COLOURS[2]), ("95", COLOURS[4]), ("99", COLOURS[1])):
        found = [(step.level, step.percentiles_ms[percentile]) for step in good]
        points = [(level, value) for level, value in found if value]
        levels = [level for level, _ in points]
        axes.plot(levels, [one.value for _, one in points], "o-", color=colour, label=f"p{percentile}")
        band = [one.low for _, one in points], [one.high for _, one in points]
        axes.fill_between(levels, *band, color=colour, alpha=0.15, linewidth=0)
    axes.set_yscale("log")
    for number, level in enumerate(bad):
        axes.axvline(level, color=GREY, linestyle=":", label="no valid figure" if number == 0 else None)
    limit = summary.scenario.latency.limit_ms
    if limit:
        axes.axhline(limit, color="black", linewidth=1, linestyle="--", label=f"limit {limit:g} ms")
    if summary.peak:
        axes.axvline(summary.peak, color=COLOURS[0], linewidth=1.5, label=f"peak {summary.peak:.1f}/s")
    axes.set_xlim(left=0)
    _label_decades(axes)
    axes.set_xlabel("requests a second (open loop)")
    axes.set_ylabel("latency, ms")
    axes.grid(alpha=0.3)
    axes.set_title(f"{summary.scenario.model}, {summary.precision}: latency by rate", loc="left")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)


def _label_decades(axes: Any) -> None:
    """1, 2, 5, 10 …: powers of ten alone would leave most plots with one label."""
    low, high = axes.get_ylim()
    marks = [digit * 10**power for power in range(-1, 7) for digit in (1, 2, 5)]
    shown = [mark for mark in marks if low <= mark <= high]
    axes.yaxis.set_major_locator(FixedLocator(shown))
    axes.yaxis.set_major_formatter(FixedFormatter([f"{mark:g}" for mark in shown]))
    axes.yaxis.set_minor_locator(NullLocator())


Draw = Callable[[Sequence[Summary]], "Figure | None"]
# In the order of the page.
PLOTS: tuple[tuple[str, str, Draw], ...] = (
    ("throughput", "Throughput", draw_throughput),
    ("curve", "Latency by rate", draw_curve),
    ("latency", "Latency distribution under load", draw_open_distribution),
    ("response-times", "Closed-loop response times", draw_closed_distribution),
)
