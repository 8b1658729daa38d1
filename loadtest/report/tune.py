"""The section of `make tune`: every plan raced, and what it reaches within the limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from loadtest.errors import LoadTestError
from loadtest.experiments.tune.candidate import DEFAULT
from loadtest.experiments.tune.curve import ALL_KEPT, CAP, NONE_KEPT, Seen, list_levels
from loadtest.experiments.tune.outcome import Outcome, Row, find_outcome
from loadtest.experiments.tune.race import FINAL, RACE
from loadtest.experiments.tune.windows import Limit
from loadtest.report.measured import make_accuracy, make_answers, read_measured
from loadtest.report.plots import COLOURS, GREY, STYLED, save_plot
from loadtest.report.section import Doubt, Plot, Section, Table
from loadtest.report.words import INVALID, NONE, describe_host, describe_machine, show_interval, show_ratio
from loadtest.results.kept import Kept

WIDTH, HEIGHT = 9.0, 5.2
ENDS = {ALL_KEPT: "above ", NONE_KEPT: "below "}
METHOD = (
    "The default's neighbours were raced: a step of its batch, or of its layout. A round measures every plan "
    "at the same rates with the same arrivals (Poisson, latency from when a request was due); who is slower "
    "than the leader in nearly all pairs is dropped by a one-sided signed-rank test. A peak is where the "
    "share of requests beyond the limit reaches what the percentile allows, in a fit of all its windows "
    "that rises with the rate; its interval, and that of the ratio, draws whole repeats again, the same ones "
    "for both plans. The figures of the two finalists are from the finals alone, which did not choose the "
    "winner; those of the others are from a few windows. Failed requests count as infinitely late. Of a mix "
    "each model must keep the limit: the one that is worst off counts."
)


def make_tune_section(kept: Kept) -> Section:
    """Finished or not; a plan that is INVALID shows no figure."""
    try:
        found = find_outcome(kept)
    except LoadTestError as problem:
        doubt, title = Doubt(where=DEFAULT, state=str(problem)), f"Tuned: {', '.join(kept.asked['models'])}"
        notes = (describe_host(kept),)
        return Section(title=title, notes=notes, tables=(), findings=(doubt,), whole=False)
    loads, variants = read_measured(kept), ", ".join(dict.fromkeys(kept.asked["variants"].values()))
    weights = ", ".join(f"{name} {one}" for name, one in kept.asked["weights"].items())
    return Section(
        title=f"Tuned: {found.what} by {variants}, {found.limit}",
        notes=(describe_host(kept), _describe(found), f"Weights: {weights}."),
        tables=(_tabulate_rows(found), _tabulate_chosen(found)),
        plots=(draw_race(found, kept),),
        proofs=(make_answers(loads), make_accuracy(loads)),
        findings=tuple(list_doubts(found)),
        whole=found.ratio is not None,
        closing=(METHOD,),
    )


def _describe(found: Outcome) -> str:
    best = found.best
    if best.peak is None:
        return "The default plan could not be measured, so nothing can be told."
    if not best.peak.known:
        return f"No figure: {best.peak.boundary} of {best.name}; give more BUDGET_MINUTES."
    told = f"{best.peak.value:.1f} requests/s"
    if found.adopted:
        return f"Chosen: {best.name}, {told}; {show_ratio(found.ratio)} the default's{found.bound}."
    return f"The default is right: {told}; {found.why_not}."


def _tabulate_rows(found: Outcome) -> Table:
    return Table(
        title="Plans",
        note=f"The highest rate that keeps {found.limit}. `w2x1-b4` is two workers of one core, batch 4; "
        "of a mix, each model's workers, and the batches in the order of the models.",
        header=("plan", "requests/s", "95 % interval", "windows", "ends by", "verdict"),
        rows=tuple((_name(row), *_show_row(found, row)) for row in found.rows),
    )


def _name(row: Row) -> str:
    return row.name if row.name == row.candidate.name else f"{row.name} ({row.candidate.name})"


def _show_row(found: Outcome, row: Row) -> tuple[str, ...]:
    """What a few windows of the race say is no figure to compare with those of the finals."""
    if row.peak is None:
        return (INVALID, *[NONE] * 4)
    peak = row.peak
    in_finals = row.name in (DEFAULT, found.winner) and peak.interval is not None and peak.known
    word = "" if in_finals else ENDS.get(peak.boundary, "about ")
    return (
        f"{word}{peak.value:.{1 if in_finals else 0}f}",
        show_interval(peak.interval, 1) if peak.interval else NONE,
        str(row.windows),
        f"{peak.boundary}: {peak.cliff}" if peak.cliff else peak.boundary,
        found.describe_row(row),
    )


def _tabulate_chosen(found: Outcome) -> Table:
    """Every number that the plan decides, with what it was."""
    default, best = (
        {
            "workers": row.candidate.workers,
            "cores per worker": row.candidate.cores_per_worker,
            **{f"batch of {name}": size for name, size in row.candidate.batch.items()},
        }
        for row in (found.find_row(DEFAULT), found.best)
    )
    return Table(
        title="What is served",
        note=f"The winner's peak to the default's: {show_ratio(found.ratio)}{found.bound}."
        if found.ratio
        else "",
        header=("number", "default", "tuned"),
        rows=tuple(
            (name, str(value), "the default is right" if best[name] == value else str(best[name]))
            for name, value in default.items()
        ),
    )


def list_doubts(found: Outcome) -> Iterator[Doubt]:
    """A plan that is out is named; without the default nothing can be told."""
    for row in found.rows:
        if row.invalid:
            named = row.invalid if row.name == DEFAULT else f"INVALID: {row.invalid}"
            yield Doubt(where=row.name, state=named, invalid=row.name == DEFAULT)


@STYLED
def draw_race(found: Outcome, kept: Kept) -> Plot:
    """Rate against latency: windows as dots, fits as lines, the limit, and what is chosen."""
    there = [one for one in found.seen if one.block.startswith((RACE, FINAL))]
    plans = {_name(row): [one for one in there if one.plan == row.name] for row in found.rows if row.peak}
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    axes = figure.subplots()
    limit, best = found.limit, found.best
    limit_ms = 1000 * limit.seconds
    for (label, own), colour in zip(plans.items(), [GREY, *COLOURS], strict=False):
        _draw_plan(axes, own, label, limit, colour)
    axes.axhline(limit_ms, color="black", linewidth=1, linestyle="--", label=f"limit {limit_ms:g} ms")
    if best.peak and best.peak.known:
        label = f"{'chosen' if found.adopted else 'stays'}: {best.name}, {best.peak.value:.1f}/s"
        axes.plot(best.peak.value, limit_ms, "*", color="black", markersize=15, label=label, zorder=5)
    axes.set_yscale("log")
    ticks = [limit_ms * times for times in (0.25, 0.5, 1, 2, CAP)]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
    axes.set_yticks([], minor=True)
    axes.set_xlabel("requests a second that came (open loop)")
    axes.set_ylabel(f"p{limit.percentile:g}, ms (those beyond {CAP:g} times the limit at its end)")
    axes.grid(alpha=0.3)
    axes.set_title(f"{found.what}: plans raced on {describe_machine(kept.host)}", loc="left", fontsize=11)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9)
    return save_plot(kept.name, f"Throughput against p{limit.percentile:g}", figure)


def _draw_plan(axes: Any, own: Sequence[Seen], label: str, limit: Limit, colour: str) -> None:
    limit_ms = 1000 * limit.seconds
    if not own:
        return
    capped = [min(max(one.quoted_ms, limit_ms / CAP), limit_ms * CAP) for one in own]
    axes.plot([one.arrived for one in own], capped, "o", color=colour, markersize=3.5, alpha=0.5)
    rates, levels = list_levels(own, limit)
    axes.plot(rates, limit_ms * np.exp(levels), "-", color=colour, linewidth=1.8, label=label)
