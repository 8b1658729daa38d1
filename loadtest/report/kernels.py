"""The tables of `make profile` on what computes: PyTorch's operators, oneDNN's primitives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from loadtest.experiments.profile.evidence import Evidence
from loadtest.experiments.profile.figures import count_reorders, find_fused
from loadtest.experiments.profile.onednn import name_instructions
from loadtest.report.section import Table
from loadtest.report.words import NONE

TOP = 12
"""Rows of a table; what follows is added up in one."""
LONGEST = 80
"""Characters of an operator's name."""
Row = tuple[str, ...]


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
        cells = (row.calls / one.runs, row.own_ms / one.runs, row.whole_ms / one.runs)
        yield (
            _shorten(row.name),
            f"{cells[0]:.0f}",
            f"{cells[1]:.3f}",
            f"{cells[2]:.3f}",
            f"{row.own_ms / whole:.1%}",
        )
    if rest := one.operators[TOP:]:
        own = sum(row.own_ms for row in rest)
        calls = sum(row.calls for row in rest)
        cells = (calls / one.runs, own / one.runs, own / whole)
        yield (f"{len(rest)} others", f"{cells[0]:.0f}", f"{cells[1]:.3f}", NONE, f"{cells[2]:.1%}")


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
        header=(
            "primitive",
            "shape",
            "types",
            "code",
            "computes with",
            "fused",
            "calls",
            "ms",
            "share of time",
        ),
        rows=tuple(_show_lines(one)),
    )


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
