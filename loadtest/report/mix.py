"""The section of `make tune MIX=`: all models on all cores, beside each on cores of its own."""

from __future__ import annotations

from loadtest.experiments.tune.candidate import DEFAULT
from loadtest.experiments.tune.mix import Outcome, find_outcome, name_shares
from loadtest.experiments.tune.raced import RacedPlan
from loadtest.report.measured import make_accuracy, make_answers, read_measured
from loadtest.report.section import Doubt, Plot, Section, Table
from loadtest.report.tune import ENDS, draw_windows
from loadtest.report.words import INVALID, NONE, describe_host, show_interval, show_ratio
from loadtest.results.kept import Kept

METHOD = (
    "One open loop (Poisson, latency from when a request was due) asks the models in the shares of the mix; "
    "a window keeps the limit where each model does, so the one that is worst off counts. Splits of the "
    "cores were simulated, each model alone on its part; the best were raced, and the finals are of windows "
    "that chose nobody. Rates are of all requests together."
)


def make_mix_section(kept: Kept) -> Section:
    """Finished or not."""
    found, loads = find_outcome(kept), read_measured(kept)
    return Section(
        title=f"Tuned: {name_shares(found.shares)}, {found.limit}",
        notes=(describe_host(kept), _describe(found)),
        tables=(_tabulate(found),),
        plots=(_draw(found, kept),),
        proofs=(make_answers(loads), make_accuracy(loads)),
        findings=tuple(
            Doubt(where=row.name, state=row.invalid, invalid=row.name == DEFAULT)
            for row in found.rows
            if row.invalid
        ),
        whole=found.ratio is not None,
        closing=(METHOD,),
    )


def _describe(found: Outcome) -> str:
    if found.ratio is None:
        return "No finals yet, so nothing can be told."
    if found.best.peak is None or not found.best.peak.known:
        why = found.best.invalid or (found.best.peak.boundary if found.best.peak else "")
        return f"No figure of {found.best.name}: {why}; give more BUDGET_MINUTES."
    ratio = show_ratio(found.ratio)
    if found.adopted:
        return f"Chosen: CORES={found.winner}, {ratio} of what all models on all cores serve{found.bound}."
    return f"All models on all cores are right: {found.winner} serves {ratio} of that."


def _draw(found: Outcome, kept: Kept) -> Plot:
    plans = {row.name: [one for one in found.seen if one.plan == row.name] for row in found.rows if row.peak}
    return draw_windows(kept, plans, found, name=kept.kind, title=name_shares(found.shares))


def _tabulate(found: Outcome) -> Table:
    return Table(
        title="Plans",
        note="`default`: all models on all cores. The others as CORES is given.",
        header=("plan", "requests/s", "95 % interval", "windows", "ends by", "simulated"),
        rows=tuple((row.name, *_show(row)) for row in found.rows),
    )


def _show(row: RacedPlan) -> tuple[str, ...]:
    if row.peak is None:
        return (INVALID, NONE, NONE, NONE, f"{row.predicted:.1f}")
    return (
        f"{ENDS.get(row.peak.boundary, '')}{row.peak.value:.1f}",
        show_interval(row.peak.interval, 1) if row.peak.interval else NONE,
        str(row.windows),
        f"{row.peak.boundary}: {row.peak.cliff}" if row.peak.cliff else row.peak.boundary,
        f"{row.predicted:.1f}",
    )
