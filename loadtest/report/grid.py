"""The section of `make tune GRID=1`: every plan of the grid live, beside what was simulated."""

from __future__ import annotations

from loadtest.experiments.tune.curve import Peak
from loadtest.experiments.tune.evidence import START, list_done, list_out, list_points, list_tried
from loadtest.experiments.tune.grid import Met, compare_with_tuned, find_peaks, list_met, list_names
from loadtest.experiments.tune.raced import FINAL
from loadtest.experiments.tune.space import find_limit, predict, read_space
from loadtest.report.measured import make_accuracy, make_answers, read_measured
from loadtest.report.section import Doubt, Section, Table
from loadtest.report.words import INVALID, NONE, describe_host, show_ratio
from loadtest.results.kept import Kept

METHOD = (
    "`start` measured the default plan; with it all plans were simulated. Then each was served alone and "
    "measured at four rates about its simulated peak, and at two more where the peak was not between them "
    "(Poisson arrivals, latency from when a request was due). Latencies beside simulated ones are those of "
    "one of the two lowest rates, whichever met the machine nearer to its pace of `start`, simulated with "
    "the very arrivals of that window. The grid took its time, in which a machine drifts: the best of it and "
    "the tuned plan took turns after it, and only these ratios compare plans."
)


def make_grid_section(kept: Kept) -> Section:
    """Finished or not; a plan that is INVALID shows no figure."""
    space, loads = read_space(kept.asked), read_measured(kept)
    model, precision = kept.asked["model"], kept.asked["precision"]
    notes = (describe_host(kept), f"Weights: {kept.asked['archive']['weights']}.")
    title = f"Grid: {model} in {precision}, {space.limit}"
    if kept.find(START) is None:
        return Section(title=title, notes=notes, tables=(), whole=False)
    return Section(
        title=title,
        notes=notes,
        tables=(_tabulate_plans(kept), _tabulate_finals(kept)),
        proofs=(make_answers(loads), make_accuracy(loads)),
        findings=tuple(
            Doubt(where=name, state=f"INVALID: {why}", invalid=False) for name, why in list_out(kept).items()
        ),
        whole=any(name.startswith(FINAL) for name in list_done(kept)),
        closing=(METHOD,),
    )


def _tabulate_plans(kept: Kept) -> Table:
    space = read_space(kept.asked)
    points, peaks = list_points(space, kept), find_peaks(space, kept)
    met = {one.plan: one for one in list_met(space, kept)}
    tried = list_tried(kept)
    names = sorted(
        list_names(space, kept.asked), key=lambda name: -(peaks[name].value if name in peaks else 0)
    )
    rows = []
    for name in names:
        one = met.get(name)
        rows.append((
            f"{name} (default)" if name == space.default.name else name,
            _show_peak(peaks.get(name)) if name in tried else "not measured yet",
            f"{predict(space, points, name):.1f}",
            f"{one.rate:.1f}" if one else NONE,
            *(_show_met(one) if one else [NONE] * 5),
        ))  # fmt: skip
    percentile = f"p{space.limit.percentile:g}"
    return Table(
        title="Plans",
        note=f"The highest rate that keeps {space.limit}; the queueing limit is {find_limit(space):.1f} "
        "requests/s. Latencies in ms: simulated / live (how far the simulated one is off). Pace: what the "
        "workers took for a request in that window, to what they were simulated to take and took in `start`; "
        "behind it the latencies simulated with all times as much longer.",
        header=("plan", "requests/s", "simulated", "at", "p50", percentile, "pace", "p50 at it",
                f"{percentile} at it"),
        rows=tuple(rows),
    )  # fmt: skip


def _show_peak(peak: Peak | None) -> str:
    if peak is None:
        return INVALID
    return f"{peak.value:.1f}" if peak.known else f"{peak.value:.1f}: {peak.boundary}"


def _show_met(one: Met) -> tuple[str, ...]:
    p50, quoted = one.paced
    return (
        _show_pair(one.p50), _show_pair(one.quoted), f"{one.pace:.2f}",
        _show_pair((p50, one.p50[1])), _show_pair((quoted, one.quoted[1])),
    )  # fmt: skip


def _show_pair(pair: tuple[float, float]) -> str:
    simulated, live = pair
    return f"{1000 * simulated:.0f} / {1000 * live:.0f} ({simulated / live - 1:+.0%})"


def _tabulate_finals(kept: Kept) -> Table:
    """The tuned plan against each of the best."""
    ratios = compare_with_tuned(kept, read_space(kept.asked))
    return Table(
        title="In turns",
        note=f"The tuned plan is {kept.asked['tuned']}, of {kept.asked['tune']}.",
        header=("the grid's", "peak of the tuned plan / its own"),
        rows=tuple((name, show_ratio(ratio)) for name, ratio in ratios.items()),
    )
