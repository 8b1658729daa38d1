"""The section of `make tune`: every plan raced, what it reaches within the limit, and what none can beat."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from loadtest.errors import LoadTestError
from loadtest.experiments.tune.candidate import DEFAULT
from loadtest.experiments.tune.curve import ALL_KEPT, CAP, NONE_KEPT, Seen, list_levels
from loadtest.experiments.tune.evidence import SATURATED
from loadtest.experiments.tune.outcome import Outcome, Row, find_outcome
from loadtest.experiments.tune.race import RACE
from loadtest.experiments.tune.raced import FINAL, Raced
from loadtest.report.measured import make_accuracy, make_answers, read_measured
from loadtest.report.plots import COLOURS, GREY, STYLED, save_plot
from loadtest.report.section import Doubt, Plot, Section, Table
from loadtest.report.words import INVALID, NONE, describe_host, describe_machine, show_interval, show_ratio
from loadtest.results.kept import Kept
from loadtest.simulation.search import Limit

WIDTH, HEIGHT = 9.0, 5.2
ENDS = {ALL_KEPT: "above ", NONE_KEPT: "below "}
METHOD = (
    "All plans were simulated with the times of batches that were taken in process, with all workers busy "
    "alike, and with the overheads that the default plan showed live; the best of them were raced. A round "
    "measures every plan at the same rates with the same arrivals (Poisson, latency from when a request was "
    "due); who is slower than the leader in nearly all pairs is dropped by a one-sided signed-rank test. A "
    "peak is where the share of requests beyond the limit reaches what the percentile allows, in a fit of "
    "all windows of a plan that rises with the rate; its interval, and that of the ratio, draws whole "
    "repeats again, the same ones for both plans. A window stands at the rate that came in it, times the "
    "machine's pace: the CPU time of the workers for a request, to what they take at the usual one. The "
    "figures of the two finalists are from the finals alone, which did not choose the winner; those of the "
    "others are from a few windows. Failed requests count as infinitely late."
)
LIMIT_METHOD = (
    "The queueing limit is the highest rate at which any server with these times of batches could keep the "
    "latency limit: all workers as one that never idles while anything waits, every request at the cost of "
    "the best batch, no waiting for batches, no overhead. What is reached is a share of it. TorchServe "
    "answers in order, and whole batches at once: where requests cost as differently as texts do, that alone "
    "keeps it far below. A host that has become faster since batches were timed comes nearer to both."
)


def make_tune_section(kept: Kept) -> Section:
    """Finished or not; a plan that is INVALID shows no figure."""
    model, precision = kept.asked["model"], kept.asked["precision"]
    try:
        found = find_outcome(kept)
    except LoadTestError as problem:
        doubt = Doubt(where=DEFAULT, state=str(problem))
        return Section(
            title=f"Tuned: {model}", notes=(describe_host(kept),), tables=(), findings=(doubt,), whole=False
        )
    loads = read_measured(kept)
    return Section(
        title=f"Tuned: {model} in {precision}, {found.limit}",
        notes=(describe_host(kept), _describe(found), f"Weights: {kept.asked['archive']['weights']}."),
        tables=(_tabulate_rows(found), _tabulate_chosen(found), _tabulate_changes(found)),
        plots=(draw_race(found, kept),),
        proofs=(make_answers(loads), make_accuracy(loads)),
        findings=tuple(list_doubts(found)),
        whole=kept.find(SATURATED) is not None or found.reached > 0,
        closing=(METHOD, LIMIT_METHOD),
    )


def _describe(found: Outcome) -> str:
    best = found.best
    if best.peak is None:
        return "The default plan could not be measured, so nothing can be told."
    if not best.peak.known:
        return f"No figure: {best.peak.boundary} of {best.name}; give more BUDGET_MINUTES."
    told = f"{best.peak.value:.1f} requests/s, {found.reached:.0%} of the queueing limit"
    if found.adopted:
        return f"Chosen: {best.name}, {told}; {show_ratio(found.ratio)} the default's{found.bound}."
    return f"The default is right: {told}; nothing that was raced is better beyond its interval."


def _tabulate_rows(found: Outcome) -> Table:
    return Table(
        title="Plans",
        note=f"The highest rate that keeps {found.limit}; no server with these times of batches could "
        f"keep it beyond {found.queueing_limit:.1f} requests/s, {found.limit_here:.1f} with what TorchServe, "
        "the door and the load generator were seen to take from the same cores; TorchServe that took nothing "
        f"could keep it to {found.ideal:.1f} (simulated). `w2x1-b4-d1` is two workers of one core, batch 4, "
        "delay 1 ms.",
        header=("plan", "requests/s", "95 % interval", "windows", "ends by", "of the queueing limit",
                "simulated", "saturated (closed loop)", "verdict"),
        rows=tuple((_name(row), *_show_row(found, row)) for row in found.rows),
    )  # fmt: skip


def _name(row: Row) -> str:
    return row.name if row.name == row.candidate.name else f"{row.name} ({row.candidate.name})"


def _show_row(found: Outcome, row: Row) -> tuple[str, ...]:
    """What a few windows of the race say is no figure to compare with those of the finals."""
    if row.peak is None:
        return (INVALID, *[NONE] * 7)
    peak, saturated = row.peak, found.saturated.get(row.name)
    in_finals = row.name in (DEFAULT, found.winner) and peak.interval is not None and peak.known
    word = "" if in_finals else ENDS.get(peak.boundary, "about ")
    return (
        f"{word}{peak.value:.{1 if in_finals else 0}f}",
        show_interval(peak.interval, 1) if peak.interval else NONE,
        str(row.windows),
        f"{peak.boundary}: {peak.cliff}" if peak.cliff else peak.boundary,
        f"{peak.value / found.queueing_limit:.0%}" if in_finals else NONE,
        f"{row.predicted:.1f}",
        f"{saturated:.1f}" if saturated else NONE,
        found.describe_row(row),
    )


def _tabulate_chosen(found: Outcome) -> Table:
    """Every number that the plan decides, with what it was."""
    default, best = found.find_row(DEFAULT).candidate, found.best.candidate
    names = ("workers", "cores_per_worker", "batch", "delay_ms")
    return Table(
        title="What is served",
        note=f"The winner's peak to the default's: {show_ratio(found.ratio)}{found.bound}."
        if found.ratio
        else "",
        header=("number", "default", "tuned"),
        rows=tuple(
            (name.replace("_", " "), str(getattr(default, name)), _show_number(default, best, name))
            for name in names
        ),
    )


def _show_number(default: object, best: object, name: str) -> str:
    same = getattr(best, name) == getattr(default, name)
    return "the default is right" if same else str(getattr(best, name))


def _tabulate_changes(found: Outcome) -> Table:
    return Table(
        title="Libraries",
        note="The best plan with another library against itself, in turns: the ratio of the peaks.",
        header=("library", "ratio (95 % interval)", "verdict"),
        rows=tuple(
            (
                f"{one.item} {one.value}",
                show_ratio(one.ratio),
                "better" if one.better else "the default is right",
            )
            for one in found.changes
        ),
    )


def list_doubts(found: Outcome) -> Iterator[Doubt]:
    """A plan that is out is named; without the default nothing can be told."""
    for row in found.rows:
        if row.invalid:
            named = row.invalid if row.name == DEFAULT else f"INVALID: {row.invalid}"
            yield Doubt(where=row.name, state=named, invalid=row.name == DEFAULT)
    if found.reached > 1:
        yield Doubt(
            where="queueing limit",
            state="more is served than these times of batches allow",
            evidence=f"{found.reached:.0%} of {found.queueing_limit:.1f} requests/s",
            next_step="they were taken on a busier machine: remove profile-*.json in RUN_DIR, and tune again",
            invalid=False,
        )


def draw_race(found: Outcome, kept: Kept) -> Plot:
    """With the queueing limit, and what is chosen."""
    there = [one for one in found.seen if one.block.startswith((RACE, FINAL))]
    plans = {_name(row): [one for one in there if one.plan == row.name] for row in found.rows if row.peak}
    name = f"tune-{found.model}"
    return draw_windows(kept, plans, found, name=name, title=found.model, most=found.queueing_limit)


@STYLED
def draw_windows(
    kept: Kept, plans: Mapping[str, Sequence[Seen]], found: Raced[Any], *,
    name: str, title: str, most: float | None = None,
) -> Plot:  # fmt: skip
    """Rate against latency: windows as dots, fits as lines, the limits, and what is chosen."""
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    axes = figure.subplots()
    limit, best = found.limit, found.best
    limit_ms = 1000 * limit.seconds
    for (label, own), colour in zip(plans.items(), [GREY, *COLOURS], strict=False):
        _draw_plan(axes, own, label, limit, colour)
    axes.axhline(limit_ms, color="black", linewidth=1, linestyle="--", label=f"limit {limit_ms:g} ms")
    if most is not None:
        axes.axvline(most, color="black", linewidth=1.5, linestyle=":", label=f"queueing limit {most:.1f}/s")
    if best.peak and best.peak.known:
        label = f"{'chosen' if found.adopted else 'stays'}: {best.name}, {best.peak.value:.1f}/s"
        axes.plot(best.peak.value, limit_ms, "*", color="black", markersize=15, label=label, zorder=5)
    axes.set_yscale("log")
    ticks = [limit_ms * times for times in (0.25, 0.5, 1, 2, CAP)]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
    axes.set_yticks([], minor=True)
    axes.set_xlabel("requests a second that came (open loop), at the machine's usual pace")
    axes.set_ylabel(f"p{limit.percentile:g}, ms (those beyond {CAP:g} times the limit at its end)")
    axes.grid(alpha=0.3)
    axes.set_title(f"{title}: plans raced on {describe_machine(kept.host)}", loc="left", fontsize=11)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9)
    return save_plot(name, f"Throughput against p{limit.percentile:g}", figure)


def _draw_plan(axes: Any, own: Sequence[Seen], label: str, limit: Limit, colour: str) -> None:
    limit_ms = 1000 * limit.seconds
    if not own:
        return
    capped = [min(max(one.quoted_ms, limit_ms / CAP), limit_ms * CAP) for one in own]
    axes.plot([one.load for one in own], capped, "o", color=colour, markersize=3.5, alpha=0.5)
    rates, levels = list_levels(own, limit)
    axes.plot(rates, limit_ms * np.exp(levels), "-", color=colour, linewidth=1.8, label=label)
