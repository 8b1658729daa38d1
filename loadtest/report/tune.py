"""The section of `make tune`: every plan that was measured, and what it reaches within the limit."""

from __future__ import annotations

import math

from matplotlib.figure import Figure

from loadtest.errors import LoadTestError
from loadtest.experiments.tune.candidate import DEFAULT
from loadtest.experiments.tune.curve import ALL_KEPT, CAP, NONE_KEPT, find_level
from loadtest.experiments.tune.outcome import LEFT_OUT, Outcome, Row, find_outcome
from loadtest.report.measured import make_accuracy, make_answers, read_measured
from loadtest.report.plots import COLOURS, GREY, STYLED, save_plot
from loadtest.report.section import Doubt, Plot, Section, Table
from loadtest.report.words import INVALID, NONE, describe_host, describe_machine, show_interval, show_ratio
from loadtest.results.kept import Kept

ENDS = {ALL_KEPT: "above ", NONE_KEPT: "below "}
METHOD = (
    "The default and its neighbours were measured at the same rates with the same arrivals (Poisson, latency "
    "from when a request was due); the best of them met the default in the final A/B, each about its own "
    "peak, whose windows alone give the figures of the two. A peak is where the share of requests beyond the "
    "limit reaches what the percentile allows, in a fit of all windows that rises with the rate; its "
    "interval, and that of the ratio, draws whole repeats again, the same ones for both plans. Failed "
    "requests count as infinitely late. Of a mix each model must keep the limit."
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
    table = Table(
        title="Plans",
        note=f"The highest rate that keeps {found.limit}. `w2x1-b4` is two workers of one core, batch 4; "
        "of a mix, each model's workers, and the batches in the order of the models.",
        header=("plan", "requests/s", "95 % interval", "windows", "ends by", "verdict"),
        rows=tuple((_name(row), *_show_row(found, row)) for row in found.rows),
    )
    return Section(
        title=f"Tuned: {found.what} by {variants}, {found.limit}",
        notes=(describe_host(kept), _describe(found), f"Weights: {weights}."),
        tables=(table,),
        plots=(draw_plans(found, kept),),
        proofs=(make_answers(loads), make_accuracy(loads)),
        findings=tuple(
            Doubt(
                where=row.name,
                state=f"{'INVALID: ' * (row.name != DEFAULT)}{row.invalid}",
                invalid=row.name == DEFAULT,
            )
            for row in found.rows
            if row.invalid
        ),
        whole=found.ratio is not None,
        closing=(METHOD,),
    )


def _describe(found: Outcome) -> str:
    served = found.served
    if served.peak is None:
        return "The default plan could not be measured, so nothing can be told."
    if not served.peak.known:
        return f"No figure: {served.peak.boundary} of {served.name}; give more BUDGET_MINUTES."
    ratio = f"{found.best}'s peak to the default's: {show_ratio(found.ratio)}{found.bound}."
    told = f"{served.peak.value:.1f} requests/s"
    if found.adopted:
        return f"Chosen: {served.name}, {told}; {ratio}"
    return f"The default is right: {told}; {found.why_not}. {ratio if found.ratio else ''}".strip()


def _name(row: Row) -> str:
    return row.name if row.name == row.candidate.name else f"{row.name} ({row.candidate.name})"


def _show_row(found: Outcome, row: Row) -> tuple[str, ...]:
    """What three windows say is no figure to compare with those of the final A/B."""
    peak = row.peak
    if peak is None:
        return (INVALID, *[NONE] * 4) if row.invalid else (*[NONE] * 4, LEFT_OUT)
    quoted = peak.interval is not None and peak.known
    word = "" if quoted else ENDS.get(peak.boundary, "about ")
    verdict = "not the best of them"
    if row.name == DEFAULT:
        verdict = "replaced" if found.adopted else "stays"
    elif row.name == found.best:
        verdict = "chosen" if found.adopted else "not better"
    return (
        f"{word}{peak.value:.{1 if quoted else 0}f}",
        show_interval(peak.interval, 1) if peak.interval else NONE,
        str(row.windows),
        peak.boundary,
        verdict,
    )


@STYLED
def draw_plans(found: Outcome, kept: Kept) -> Plot:
    """Rate against latency: windows as dots, the limit, what is served."""
    limit, served, limit_ms = found.limit, found.served, 1000 * found.limit.seconds
    figure = Figure(figsize=(9.0, 5.2), layout="constrained")
    axes = figure.subplots()
    for row, colour in zip([row for row in found.rows if row.peak], [GREY, *COLOURS], strict=False):
        own = [one for one in found.seen if one.plan == row.name]
        ms = [limit_ms * math.exp(find_level(one, limit)) for one in own]
        axes.plot([one.rate for one in own], ms, "o", color=colour, markersize=5, alpha=0.7, label=_name(row))
    axes.axhline(limit_ms, color="black", linewidth=1, linestyle="--", label=f"limit {limit_ms:g} ms")
    if served.peak and served.peak.known:
        label = f"{'chosen' if found.adopted else 'stays'}: {served.name}, {served.peak.value:.1f}/s"
        axes.plot(served.peak.value, limit_ms, "*", color="black", markersize=15, label=label, zorder=5)
    axes.set_yscale("log")
    ticks = [limit_ms * times for times in (0.25, 0.5, 1, 2, CAP)]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
    axes.set_yticks([], minor=True)
    axes.set_xlabel("requests a second that were asked for (open loop)")
    axes.set_ylabel(f"p{limit.percentile:g}, ms (those beyond {CAP:g} times the limit at its end)")
    axes.grid(alpha=0.3)
    axes.set_title(f"{found.what}: plans on {describe_machine(kept.host)}", loc="left", fontsize=11)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9)
    return save_plot(kept.name, f"Throughput against p{limit.percentile:g}", figure)
