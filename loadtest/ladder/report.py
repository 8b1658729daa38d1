"""The report of a ladder, made from its folder alone: lines for the terminal, Markdown and a picture."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.errors import LoadTestError
from loadtest.ladder.figures import METHOD
from loadtest.ladder.keep import Header, list_ladders, read_blocks, read_header, read_targets
from loadtest.ladder.plot import draw_ladder
from loadtest.ladder.rows import MISSING, Row, make_rows
from loadtest.ladder.rungs import BERT, MODELS, list_rungs
from loadtest.ladder.side import BATCH_USERS, SINGLE_USERS, STOCK_USERS
from loadtest.ladder.words import (
    NAMES,
    PUBLISHED,
    describe_machine,
    describe_targets,
    list_findings,
    make_cpu_table,
    make_ladder_table,
    make_left_out_table,
    make_settings_table,
)
from loadtest.pages.html import Extra
from loadtest.pages.markdown import render_table
from loadtest.pages.plots import Plot
from loadtest.pages.tables import Table

PAGE_TITLE = "# What each setting is worth: "
TUTORIAL = "https://pytorch.org/tutorials/intermediate/torchserve_with_ipex.html"
LOAD = (
    "Locust sends real payloads over REST in a closed loop, with the load generator on the same cores: "
    f"{SINGLE_USERS} users to servers that answer requests one by one, {STOCK_USERS} to stock with batch "
    f"size 32, {BATCH_USERS} to the kit's batches. A closed loop's rate is throughput; its response times "
    "are no latency under load. Servers that do not have their turn are halted. Every kit server was "
    "verified by its start, and what is listed above was read from the live processes."
)
LENGTHS = (
    "Servers without buckets are sent a text of each length before they are measured, so that compiling for "
    "lengths that are new to them is not in their figures, as it would be in production."
)


@dataclass(frozen=True, kw_only=True)
class Result:
    """A ladder that was read."""

    folder: Path
    header: Header
    ladder: tuple[Row, ...]
    left_out: tuple[Row, ...]

    @property
    def rows(self) -> tuple[Row, ...]:
        return (*self.ladder, *self.left_out)

    @property
    def is_valid(self) -> bool:
        return not any(row.doubts for row in self.rows)

    @property
    def is_finished(self) -> bool:
        return not any(row.state == MISSING for row in self.rows)


def read_result(folder: Path) -> Result:
    """Finished or not."""
    header = read_header(folder)
    ladder, left_out = make_rows(header, read_blocks(folder, header))
    return Result(folder=folder, header=header, ladder=tuple(ladder), left_out=tuple(left_out))


def make_ladder_tables(result: Result) -> list[Table]:
    """Those that have rows."""
    tables = [make_ladder_table(result.header, result.ladder), make_left_out_table(result.left_out)]
    return [table for table in tables if table.rows]


def list_extras(results: Path) -> list[Extra]:
    """The latest whole ladder of each model, for the suite's page."""
    found = [find_latest_whole(results, model) for model in MODELS]
    return [make_extra(result) for result in found if result]


def find_latest_whole(results: Path, model: str) -> Result | None:
    """No trial, and nothing that was cut off; what another version of the kit wrote is passed over."""
    for folder in reversed(list_ladders(results, model)):
        with contextlib.suppress(LoadTestError):
            result = read_result(folder)
            if result.is_finished and len(result.header.rungs) == len(list_rungs(model)):
                return result
    return None


def make_extra(result: Result) -> Extra:
    return Extra(
        source=result.folder.name,
        note=describe_run(result),
        tables=tuple(make_ladder_tables(result)),
        plot=draw_ladder(result.header, result.ladder, result.left_out),
    )


def render_text(result: Result) -> str:
    """For the terminal."""
    parts = [describe_run(result)]
    for table in make_ladder_tables(result):
        parts += [f"{table.title}: {table.note}", render_table(table)]
    parts += ["\n".join(list_findings(result.ladder, result.left_out))]
    parts += ["\n".join(describe_targets(read_targets(result.folder)))]
    return "\n\n".join(part for part in parts if part)


def describe_run(result: Result) -> str:
    """One sentence on host, time and length."""
    header, timing = result.header, result.header.inputs["timing"]
    versions = {name: number for name, number in header.inputs["versions"].items() if number}
    listed = ", ".join(f"{name} {number}" for name, number in versions.items())
    return (
        f"{NAMES[header.model]} on {describe_machine(header.inputs['host'])}, {header.time[:10]}; "
        f"{timing['repeats']} repeats of {timing['seconds']:g} s in turns; "
        f"weights {header.facts['weights']}; {listed}."
    )


def write_report(result: Result, output: Path) -> list[Path]:
    """ladder-<model>.md and .png; what was written."""
    name = f"ladder-{result.header.model}"
    _check_own(output / f"{name}.md")
    output.mkdir(parents=True, exist_ok=True)
    plot = draw_ladder(result.header, result.ladder, result.left_out)
    files = [output / f"{name}.md"]
    files[0].write_text(render_markdown(result, plot), encoding="utf-8")
    if plot:
        files.append(output / f"{name}.png")
        files[-1].write_bytes(plot.png)
    return files


def _check_own(page: Path) -> None:
    """Raise when a page of that name is not one of ours: beside other files it may lie, as in docs/."""
    if page.exists() and not page.read_text(encoding="utf-8", errors="replace").startswith(PAGE_TITLE):
        raise LoadTestError(
            f"OUTPUT: {page} is no report of a ladder and would be overwritten; move it away, or give "
            "another folder"
        )


def render_markdown(result: Result, plot: Plot | None) -> str:
    """The whole page."""
    model = result.header.model
    parts = [f"{PAGE_TITLE}{NAMES[model]}", describe_run(result), _introduce(model)]
    parts += [f"![{plot.title}]({plot.name}.png)"] if plot else []
    for table in make_ladder_tables(result):
        parts += [f"## {table.title}", table.note, render_table(table)]
    findings = list(list_findings(result.ladder, result.left_out))
    parts += _list("Refused and doubtful", findings)
    for table in (make_settings_table(result.rows), make_cpu_table(result.rows)):
        parts += [f"## {table.title}", table.note, render_table(table)] if table.rows else []
    parts += _list("Beside the speed targets", describe_targets(read_targets(result.folder)))
    parts += ["## How it was measured", _explain(result)]
    return "\n\n".join(parts) + "\n"


def _introduce(model: str) -> str:
    return (
        f"The published figure for TorchServe with IPEX is {PUBLISHED[model]:.2f}× for {NAMES[model]} "
        f"([tutorial]({TUTORIAL})), from single iterations on other hardware. This is what is left of such a "
        "figure when every setting is put on by itself, seen in the live workers, and measured in turns with "
        "the one before."
    )


def _list(title: str, lines: Sequence[str]) -> list[str]:
    return [f"## {title}", "\n".join(f"- {line}" for line in lines)] if lines else []


def _explain(result: Result) -> str:
    notes = [f"Weights: {note}." for note in result.header.facts["notes"]]
    lengths = [LENGTHS] if result.header.model == BERT else []
    return "\n\n".join((LOAD, *lengths, METHOD, *notes))
