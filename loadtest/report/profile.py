"""The section of `make profile`: two systems side by side, figure by figure, and what each figure shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from loadtest.experiments.profile.evidence import (
    COLLECTORS,
    PLAIN,
    Evidence,
    compare_rates,
    count_faults,
    count_reorders,
    find_fused,
    find_waiting,
    read_evidence,
    read_seen,
)
from loadtest.experiments.profile.onednn import name_instructions
from loadtest.experiments.profile.threads import ASLEEP, GLANCE_SECONDS, WorkerUse
from loadtest.experiments.profile.tools import COUNTERS, FLAMES
from loadtest.report.measured import make_answers, read_measured
from loadtest.report.plots import COLOURS, STYLED, save_plot
from loadtest.report.section import Drawing, Plot, Section, Table, make_doubts
from loadtest.report.words import INVALID, NONE, describe_host, show_rate, show_ratio
from loadtest.results.figures import summarise
from loadtest.results.kept import Kept
from loadtest.results.ratios import find_ratio

METHOD = (
    "Each system was loaded without and with each collector, in turns: the first table's figures are without "
    "any, and those behind them say what looking cost. Threads were looked at ten times a second in /proc; a "
    "thread's time, wait and moves are the kernel's own counts. PyTorch's profiler and oneDNN's log were on "
    "for a few runs of the model in each live worker, asked for by a call that only the management token "
    "allows; their figures are of those runs alone. Stock TorchServe takes no such call: its log comes from "
    "another start with ONEDNN_VERBOSE=1, and its operators are not shown (AGAINST=off shows them)."
)
VTUNE = (
    "More than two levels of top-down analysis: `toplev --core S0-C0 -l4 -p PID` of pmu-tools or "
    "`vtune -collect uarch-exploration -target-pid PID` where Intel's counters are; operators are named in "
    "VTune while `X-Cpu-Kit-Profile: itt=32` of a describe call is in force (docs/profile.md)."
)
TOOLS = (FLAMES, COUNTERS)
LOOKED_INTO = tuple(f"-{tool.key}" for tool in TOOLS)
WORKS = 0.2
"""Of a core: a thread that computes; what only waits for the network uses less."""
Row = tuple[str, ...]


def make_profile_section(kept: Kept) -> Section:
    """Finished or not; a system in doubt shows no figure."""
    found = read_evidence(kept)
    loads = [one for one in read_measured(kept) if not one.series.scenario.name.endswith(LOOKED_INTO)]
    valid = bool(found) and all(one.valid for one in loads)
    shown = found if valid else []
    model, precision = kept.asked["model"], kept.asked["precision"]
    tables = (
        tabulate_sides(found, valid), tabulate_phases(shown), tabulate_threads(shown),
        tabulate_memory(shown), *([tabulate_counters(kept)] if valid else []),
        *map(tabulate_operators, shown), tabulate_onednn(shown), *map(tabulate_lines, shown),
    )  # fmt: skip
    problems = [
        f"No {tool.what}: {problem}."
        for tool in TOOLS
        for problem in dict.fromkeys(read_seen(kept, tool, tool.problem).values())
    ]
    title = "Flame graph of one process, native frames too: click to enlarge"
    drawn = read_seen(kept, FLAMES).values()
    return Section(
        title=f"Profile of {model}: kit {precision} against {kept.asked['against']}",
        notes=(describe_host(kept), *(f"{one.name}: {one.how}." for one in found)),
        tables=tables,
        plots=tuple(draw_film(one) for one in shown if one.workers),
        drawings=tuple(Drawing(name="flame", title=title, svg=svg.encode()) for svg in drawn),
        proofs=(make_answers(loads),),
        findings=tuple(
            doubt for one in loads for doubt in make_doubts(f"{one.series.system}, {one.name}", one.findings)
        ),
        closing=(METHOD, VTUNE, *problems),
        whole=len(found) == 2,
    )


def tabulate_sides(found: Sequence[Evidence], valid: bool) -> Table:
    return Table(
        title="Side by side",
        note="Requests a second without any collector; behind it the rate with each collector to it, which "
        "is what looking costs.",
        header=("system", "requests/s", "95 % interval", "ratio", *(f"with {one}" for one in COLLECTORS[1:]),
                "looking at threads"),
        rows=tuple(_show_side(one, found[0]) if valid else (one.name, INVALID, *[NONE] * 5) for one in found),
    )  # fmt: skip


def _show_side(one: Evidence, base: Evidence) -> Row:
    rates = {name: series.turn_rates for name, series in one.series.items()}
    ratio = NONE if one is base else show_ratio(compare_rates(base, one))
    costs = [show_ratio(find_ratio(rates, name, PLAIN)) if name in rates else NONE for name in COLLECTORS[1:]]
    cores = NONE if one.cost_cores is None else f"{one.cost_cores:.1%} of a core"
    return (one.name, *show_rate(summarise(one.series[PLAIN]).rate), ratio, *costs, cores)


def tabulate_phases(found: Sequence[Evidence]) -> Table:
    names = list(dict.fromkeys(phase.name for one in found for phase in one.phases))
    rows = []
    for one in found:
        parts = {phase.name: f"{phase.ms:.1f}" for phase in one.phases}
        share = one.server_ms / one.client_ms if one.server_ms and one.client_ms else None
        told = f"{share:.1%}" if share else "keeps no account"
        client = NONE if one.client_ms is None else f"{one.client_ms:.1f}"
        rows.append((one.name, client, *(parts.get(name, NONE) for name in names), told))
    return Table(
        title="A request's way",
        note="Mean milliseconds in a closed loop with full queues. TorchServe's own account, from accepted "
        "to answered, is compared with the client's: between lie the network, the kernel and the client.",
        header=("system", "client", *names, "TorchServe / client"),
        rows=tuple(rows) if names else (),
    )


def tabulate_counters(kept: Kept) -> Table:
    counted = read_seen(kept, COUNTERS)
    names = list(dict.fromkeys(name for one in counted.values() for name in one))
    return Table(
        title="Top-down analysis",
        note="Percent of the pipeline's slots, of the handler in one process without a server, by perf.",
        header=("metric", *counted),
        rows=tuple(
            (name, *(f"{one[name]:.1f}" if name in one else NONE for one in counted.values()))
            for name in names
        ),
    )


def tabulate_threads(found: Sequence[Evidence]) -> Table:
    return Table(
        title="Threads",
        note="Of each worker in a window under load. Waiting is the part of the time in which its busy "
        "threads could have run that they spent in a CPU's queue; migrations and involuntary switches are of "
        "the busy thread that has most of them.",
        header=("system", "worker", "threads", "computing", "cores used", "CPUs", "migrations/s",
                "involuntary/s", "waiting", "throttled", "OpenMP", "intra-op, inter-op"),
        rows=tuple(_show_worker(one, worker) for one in found for worker in one.workers),
    )  # fmt: skip


def _show_worker(one: Evidence, worker: WorkerUse) -> Row:
    told = next((each for each in one.described if each.get("pid") == worker.pid), {})
    waiting = find_waiting(worker)
    pools, mapped = told.get("threads") or {}, [name for name in one.libraries if "omp" in name]
    return (
        one.name, str(worker.pid), str(worker.threads), str(count_working(worker)),
        f"{sum(use.cores for use in worker.busy):.2f}", ",".join(map(str, sorted(worker.cpus))),
        _show_most(worker, "migrations"), _show_most(worker, "involuntary"),
        NONE if waiting is None else f"{waiting:.1f} %",
        NONE if worker.throttled_ms is None else f"{worker.throttled_ms:.2g} ms a period",
        f"{one.name_used('openmp') or 'does not tell'}; mapped: {', '.join(mapped) or 'none'}",
        f"{pools.get('intra_op', NONE)}, {pools.get('inter_op', NONE)}",
    )  # fmt: skip


def count_working(worker: WorkerUse) -> int:
    """Threads that use, or wait for, a good part of a core; who waits would compute if it could."""
    wanted = (use.cores / max(1e-9, 1 - (use.waiting or 0.0)) for use in worker.busy)
    return sum(cores > WORKS for cores in wanted)


def _show_most(worker: WorkerUse, name: str) -> str:
    counted = [value for use in worker.busy if (value := getattr(use, name)) is not None]
    return f"{max(counted):.1f}" if counted else NONE


def tabulate_memory(found: Sequence[Evidence]) -> Table:
    rows = []
    for one in (one for one in found if one.workers):
        faults, mapped = count_faults(one), [name for name in one.libraries if "malloc" in name]
        rows.append((
            one.name, one.name_used("allocator") or ", ".join(mapped) or "system",
            ", ".join(str(worker.resident_mib) for worker in one.workers),
            f"{sum(worker.minor_faults for worker in one.workers):.0f}",
            NONE if faults is None else f"{faults:.1f}",
        ))  # fmt: skip
    return Table(
        title="Memory",
        note="Memory that an allocator gives back after each batch is faulted in again, page by page.",
        header=("system", "allocator", "resident, MiB", "minor faults/s", "minor faults/request"),
        rows=tuple(rows),
    )


TOP = 12
"""Rows of a table; what follows is added up in one."""
LONGEST = 80
"""Characters of an operator's name."""


def tabulate_operators(one: Evidence) -> Table:
    share = one.operators_share
    told = f"; they add up to {share:.1%} of the runs' own time" if share else ""
    batches = [phase.ms for phase in one.phases if phase.name == "model"]
    plain = f", a batch {batches[0]:.1f} ms without it" if batches else ""
    return Table(
        title=f"Operators of {one.name}",
        note=f"PyTorch's profiler, {one.runs} runs of the model in the live workers, {one.run_ms or 0:.1f} "
        f"ms each with the profiler on{plain}{told}.",
        header=("operator", "calls a run", "own ms a run", "whole ms a run", "share"),
        rows=tuple(_show_operators(one)) if one.runs else (),
    )


def _show_operators(one: Evidence) -> Iterator[Row]:
    whole = sum(row.own_ms for row in one.operators) or 1.0
    for row in one.operators[:TOP]:
        calls, own, every = (each / one.runs for each in (row.calls, row.own_ms, row.whole_ms))
        yield _shorten(row.name), f"{calls:.0f}", f"{own:.3f}", f"{every:.3f}", f"{row.own_ms / whole:.1%}"
    if rest := one.operators[TOP:]:
        calls, own = sum(row.calls for row in rest) / one.runs, sum(row.own_ms for row in rest)
        yield f"{len(rest)} others", f"{calls:.0f}", f"{own / one.runs:.3f}", NONE, f"{own / whole:.1%}"


def _shorten(name: str) -> str:
    """Engines name a fusion by all that is in it, which may be hundreds."""
    parts = name.split("+")
    return name if len(name) <= LONGEST else f"{'+'.join(parts[:3])}+… ({len(parts)} fused)"


def tabulate_onednn(found: Sequence[Evidence]) -> Table:
    return Table(
        title="oneDNN in sum",
        note="Reorders of activations are copies into another order of the dimensions; those of weights "
        "belong to the load, and a warm worker should have none. Lines that could not be read are counted.",
        header=("system", "oneDNN", "calls", "ms", "in convolutions and products", "reorders of activations",
                "for each", "reorders of weights", "with post-ops", "not read"),
        rows=tuple(_show_sum(one) for one in found if one.lines or one.log.unknown),
    )  # fmt: skip


def _show_sum(one: Evidence) -> Row:
    every = sum(line.ms for line in one.lines) or 1.0
    moved = [line for line in one.lines if line.kind == "reorder" and not line.moves_weights]
    weights = sum(line.calls for line in one.lines if line.kind == "reorder" and line.moves_weights)
    each, fused = count_reorders(one), find_fused(one)
    unread = ", ".join(f"{count} × {words}" for words, count in one.log.unknown.most_common(3))
    return (
        one.name, ", ".join(dict.fromkeys(one.log.versions)) or NONE,
        str(sum(line.calls for line in one.lines)),
        f"{every:.1f}", f"{sum(line.ms for line in one.lines if line.computes) / every:.1%}",
        str(sum(line.calls for line in moved)), NONE if each is None else f"{each:.2f}",
        str(weights),
        NONE if fused is None else f"{fused:.0f} %", unread or "0",
    )  # fmt: skip


def tabulate_lines(one: Evidence) -> Table:
    return Table(
        title=f"oneDNN's primitives of {one.name}",
        note="The dearest shapes.",
        header=("primitive", "shape", "types", "code", "computes with", "fused", "calls", "ms",
                "share of time"),
        rows=tuple(_show_lines(one)),
    )  # fmt: skip


def _show_lines(one: Evidence) -> Iterator[Row]:
    every = sum(line.ms for line in one.lines) or 1.0
    for line in one.lines[:TOP]:
        yield (
            line.kind, line.shape, line.types, line.implementation, name_instructions(line.implementation),
            " + ".join(line.post_ops) or NONE, str(line.calls), f"{line.ms:.2f}", f"{line.ms / every:.1%}",
        )  # fmt: skip
    if rest := one.lines[TOP:]:
        ms = sum(line.ms for line in rest)
        calls = str(sum(line.calls for line in rest))
        yield (f"{len(rest)} others", *[NONE] * 5, calls, f"{ms:.2f}", f"{ms / every:.1%}")


FILM_WIDTH, MARGIN, ROW_HEIGHT = 9.0, 1.6, 0.24
MOST_THREADS = 10
"""Of a worker; the busiest."""
MOST_CPUS = 12
"""In the legend; colours come again after six, and the tables have the numbers."""
BLANK = "#f0f0f0"


@STYLED
def draw_film(one: Evidence) -> Plot:
    """A row for each thread, a colour for each CPU; grey where it slept."""
    rows = [(worker.pid, use) for worker in one.workers for use in worker.busy[:MOST_THREADS]]
    figure = Figure(figsize=(FILM_WIDTH, MARGIN + ROW_HEIGHT * max(4, len(rows))), layout="constrained")
    axes = figure.subplots()
    cpus = sorted({cpu for _, use in rows for cpu in use.cpus})
    length = max((len(use.strip) for _, use in rows), default=1)
    # 0 asleep, else the CPU's place from 1 on.
    number = {ASLEEP: 0, **{cpu: place for place, cpu in enumerate(cpus, start=1)}}
    strips = [[number[cpu] for cpu in use.strip] for _, use in rows] or [[0]]
    places = np.array([strip + [0] * (length - len(strip)) for strip in strips])
    colours = [BLANK, *(COLOURS[place % len(COLOURS)] for place in range(len(cpus)))]
    extent = (0, length * GLANCE_SECONDS, len(places), 0)
    axes.imshow(places, cmap=ListedColormap(colours), vmin=0, vmax=len(colours) - 1, aspect="auto",
                interpolation="none", extent=extent)  # fmt: skip
    names = [f"{pid} {use.name}, {use.cores:.2f} cores" for pid, use in rows]
    axes.set_yticks([row + 0.5 for row in range(len(names))], names, fontsize=8)
    axes.hlines(range(1, len(names)), 0, length * GLANCE_SECONDS, color="white", linewidth=1)
    axes.set_xlabel("seconds")
    axes.set_title(f"{one.name}: the CPU of each busy thread", loc="left", fontsize=11)
    named = [
        Patch(color=colours[place + 1], label=f"CPU {cpu}") for place, cpu in enumerate(cpus[:MOST_CPUS])
    ]
    figure.legend(handles=named, loc="outside lower center", ncols=6, frameon=False)
    name = "film-" + "".join(letter if letter.isalnum() else "-" for letter in one.name)
    return save_plot(name, f"Where the threads of {one.name} ran", figure)
