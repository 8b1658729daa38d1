"""The sections of `make ladder`, of settings and of engines; a doubtful rung shows no figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from matplotlib.figure import Figure

from handlers.engines import ENGINES
from loadtest.answers.check import add_checks
from loadtest.experiments.ladder.experiment import OWN_MIB
from loadtest.experiments.ladder.rows import MEASURED, MISSING, NOT_APPLICABLE, REFUSED, Row, make_rows
from loadtest.experiments.ladder.rungs import BERT, DENSENET121, RESNET50, STOCK_RUNG, list_all
from loadtest.report.plots import COLOURS, GREY, STYLED, save_plot
from loadtest.report.section import Doubt, Plot, Section, Table, make_doubts
from loadtest.report.targets import ROLES, find_shares
from loadtest.report.words import INVALID, NONE, describe_host, describe_machine, show_rate, show_ratio
from loadtest.results.kept import Kept
from loadtest.results.ratios import METHOD

NAMES = {RESNET50: "ResNet50", BERT: "BERT", DENSENET121: "DenseNet121"}
LOAD = (
    "Locust sends real payloads over REST in a closed loop, with the load generator on the same cores: more "
    "users to servers that batch, so that their batches fill. A closed loop's rate is throughput; its "
    "response times are no latency under load. Servers that do not have their turn are halted."
)
WIDTH, ROW_HEIGHT, MARGIN, GAP = 9.0, 0.42, 1.6, 0.6
ROOM_FOR_WORDS = 1.5
"""Of the longest bar: the ratio stands behind it."""
TUTORIAL = "[tutorial](https://pytorch.org/tutorials/intermediate/torchserve_with_ipex.html)"
PUBLISHED = {
    RESNET50: f"ResNet50 7.71× by TorchServe with IPEX ({TUTORIAL})",
    BERT: f"BERT 2.20× by TorchServe with IPEX ({TUTORIAL})",
    DENSENET121: "in training 1.56× by GNU's OpenMP with placement, 1.1× more by Intel's, 1.4× by IPEX, and "
    "torch.compile slower on a small network",
}
WORTH = (
    "Published: {published}; from single runs on other hardware. This is what is left of such a figure when "
    "every setting is put on by itself, verified in the live workers, and measured in turns with the one "
    "before."
)
CHAIN = "Ratios to stock are multiplied over blocks, by the rungs that were carried over."
LENGTHS = (
    "Servers without buckets are sent a text of each length before they are measured, so that compiling for "
    "lengths that are new to them is not in their figures, as it would be in production."
)
HEADER = ("rung", "requests/s", "95 % interval", "to the rung before", "to stock", "verdict",
          "labels as FP32", "largest difference", "users")  # fmt: skip
LEFT_OUT_HEADER = ("the top …", "requests/s", "95 % interval", "to the top", "verdict", "labels as FP32",
                   "largest difference")  # fmt: skip
ENGINES_NOTE = (
    "Compared with the first engine in the same precision, and that one with its FP32. Start to ready is "
    "from the birth of the first worker's process to the last right answer. Memory is the largest worker's: "
    "its own of all that is resident. Accuracy is against eager FP32, as the gate judged it at build."
)


def make_ladder_section(kept: Kept) -> Section:
    """Finished or not."""
    rows, model = make_rows(kept), kept.asked["model"]
    name = NAMES[model]
    plot = draw_rungs(kept, rows, name=f"Ladder of {name}", title=f"{name}: each setting", over="stock")
    worth = WORTH.format(published=PUBLISHED[model])
    return Section(
        title=f"Ladder of {name}",
        notes=(describe_host(kept), describe_run(kept), worth),
        tables=(_tabulate(rows), _tabulate_left_out(rows)),
        plots=(plot,) if plot else (),
        proofs=(tabulate_cpu(rows),),
        findings=tuple(list_doubts(rows)),
        whole=len(rows) == len(list_all(model)) and all(row.state != MISSING for row in rows),
        closing=(LOAD, *([LENGTHS] if model == BERT else []), METHOD, CHAIN, *list_weights(kept)),
    )


def _tabulate(rows: Sequence[Row]) -> Table:
    return Table(
        title="What each setting adds",
        note="Each rung is one server with one setting more than the rung before, over REST. "
        "Ratios come from turns seconds apart in one block. A rung in brackets has none standing on it.",
        header=HEADER,
        rows=tuple(_make_cells(row) for row in rows if not row.rung.left_out),
    )


def _make_cells(row: Row) -> tuple[str, ...]:
    label = f"({row.rung.label})" if row.rung.side else row.rung.label
    to_stock = "1" if row.rung.name == STOCK_RUNG else show_ratio(row.to_bottom)
    users = f"{row.series.level:.0f}" if row.series else NONE
    return (label, *show_figures(row, to_stock), *_show_agreement(row), users)


def _tabulate_left_out(rows: Sequence[Row]) -> Table:
    shown = [row for row in rows if row.rung.left_out and row.state != NOT_APPLICABLE]
    return Table(
        title="Left out",
        note="The top with one setting taken away; below 1 the setting is worth having.",
        header=LEFT_OUT_HEADER,
        rows=tuple((row.rung.label, *show_figures(row), *_show_agreement(row)) for row in shown),
    )


def _show_agreement(row: Row) -> tuple[str, str]:
    found = add_checks([one.answers for one in row.series.trials]) if row.series else None
    if found is None or not found.labels_judged or found.largest_difference is None:
        return NONE, NONE
    return f"{found.labels_same / found.labels_judged:.1%}", f"{found.largest_difference:.4f}"


def make_engines_section(kept: Kept) -> Section:
    """Finished or not."""
    rows, name = make_rows(kept), NAMES[kept.asked["model"]]
    bottom = next(row.rung.label for row in rows if row.state != NOT_APPLICABLE)
    plot = draw_rungs(kept, rows, name=f"Engines of {name}", title=f"{name}: each engine", over=bottom)
    return Section(
        title=f"Engines of {name}",
        notes=(describe_host(kept), describe_run(kept)),
        tables=(_tabulate_engines(kept, rows, bottom),),
        plots=(plot,) if plot else (),
        proofs=(tabulate_cpu(rows),),
        findings=tuple(list_doubts(rows)),
        whole=len(rows) == sum(len(engine.flags) for engine in ENGINES.values())
        and all(row.state != MISSING for row in rows),
        closing=(LOAD, METHOD, *list_weights(kept)),
    )


def _tabulate_engines(kept: Kept, rows: Sequence[Row], bottom: str) -> Table:
    return Table(
        title="Each engine in each precision it offers",
        note=ENGINES_NOTE,
        header=("engine", "requests/s", "95 % interval", "compared", f"to {bottom}", "verdict",
                "start to ready", "a worker's memory", "labels as FP32", "largest difference"),
        rows=tuple(_make_engine_cells(kept, row, bottom) for row in rows),
    )  # fmt: skip


def _make_engine_cells(kept: Kept, row: Row, bottom: str) -> tuple[str, ...]:
    label = row.rung.label
    figures = show_figures(row, "1" if label == bottom else show_ratio(row.to_bottom))
    if row.series is None or row.doubts:
        return (label, *figures, *[NONE] * 4)
    facts = row.series.facts
    own = [mib for mib in facts.seen.get(OWN_MIB, ()) if mib is not None]
    resident = [mib for trial in row.series.trials for mib in trial.memory_mib.values()]
    seen = facts.accuracy.get(kept.asked["model"])
    return (
        label, *figures, f"{facts.start['worker_seconds']:.0f} s" if facts.start else NONE,
        f"{max(own)} of {max(resident):.0f} MiB" if own and resident else NONE,
        f"{seen['agreement']:.1%}" if seen else NONE,
        f"{seen['largest_probability_difference']:.4f}" if seen else NONE,
    )  # fmt: skip


def list_weights(kept: Kept) -> list[str]:
    """What the archive says of them."""
    return [f"Weights: {note}." for note in kept.asked["archive"]["notes"]]


def describe_run(kept: Kept) -> str:
    """How long, and of which weights."""
    timing, weights = kept.asked["timing"], kept.asked["archive"]["weights"]
    return f"{timing['repeats']} repeats of {timing['seconds']:g} s in turns; weights {weights}."


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


def tabulate_cpu(rows: Sequence[Row]) -> Table:
    return Table(
        title="Where the CPU time went",
        note="Shares of all CPUs while under load.",
        header=("rung", *ROLES.values(), "others and the host", "idle"),
        rows=tuple(
            (row.rung.label, *([f"{share:.1%}" for share in shares] or [NONE] * (len(ROLES) + 2)))
            for row in rows
            if row.series
            for shares in [find_shares([trial.cpu for trial in row.series.trials if trial.cpu])]
        ),
    )


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
