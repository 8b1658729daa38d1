"""The pages of figures that README and documents quote: of each experiment the latest whole, valid result."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from loadtest.errors import LoadTestError
from loadtest.experiments.targets.judge import look_at
from loadtest.experiments.targets.rows import RATIO, Goal, Row, list_rows
from loadtest.report import SECTIONS, ladder, make_section, profile
from loadtest.report.markdown import check_own, render_section, render_table, wrap
from loadtest.report.section import Section, Table
from loadtest.report.words import NONE, describe_host, show_rate, show_ratio
from loadtest.results.kept import Kept
from loadtest.results.ratios import find_rate_interval, find_ratio, take_parts, take_rates
from loadtest.results.trial import Series

PAGE = "results.md"
MARK = "<!-- Written by `make report OUTPUT=docs` from kept results. What is changed by hand is lost. -->"
INTRODUCTION = (
    "Every figure here comes from a kept result, the latest of its experiment that is whole and valid. Below "
    "each title stand the machine and the day; elsewhere expect other figures, and measure them. Options and "
    "targets are those of that day, and may have other names or values now."
)
COMMANDS = {
    "targets": "make targets",
    "ladder": "make ladder",
    "engines": "make ladder RUNGS=engines",
    "measure": "make loadtest",
    "peak": "make loadtest-peak",
    "gate": "make loadtest-gate",
    "tune": "make tune",
    "profile": "make profile",
    "soak": "make soak",
}
"""In the order of the page."""
PAGES: Mapping[str, Callable[[Kept, Path], list[Path]]] = {
    "ladder": ladder.write_pages,
    "profile": profile.write_page,
}
"""Experiments with pages of their own beside this one."""


def write_docs(kepts: Sequence[Kept], output: Path) -> list[Path]:
    """What was written. LoadTestError when there is nothing to tell, or a page of that name is not ours."""
    chosen = choose_latest(kepts)
    if not chosen:
        raise LoadTestError("no result is whole and valid; measure first (`make targets`, `make ladder`)")
    check_own(output / PAGE, MARK)
    output.mkdir(parents=True, exist_ok=True)
    written = {id(kept): PAGES[kept.kind](kept, output) for kept, _ in chosen if kept.kind in PAGES}
    glance = [render_glance(kept) for kept, _ in chosen if kept.kind == "targets"]
    parts = [MARK, "# What was measured", wrap(INTRODUCTION), *glance]
    parts += [_render(kept, section, written.get(id(kept), [])) for kept, section in chosen]
    (output / PAGE).write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return list(dict.fromkeys((output / PAGE, *(page for pages in written.values() for page in pages))))


def choose_latest(kepts: Sequence[Kept]) -> list[tuple[Kept, Section]]:
    """One of each kind and name that is whole and valid, in the order of the page."""
    found: dict[tuple[str, str], tuple[Kept, Section]] = {}
    for kept in sorted(kepts, key=lambda one: one.began, reverse=True):
        if kept.kind not in SECTIONS or (kept.kind, kept.name) in found:
            continue
        with contextlib.suppress(LoadTestError):  # one that another version of the kit wrote
            section = make_section(kept)
            if section.whole and section.valid:
                found[kept.kind, kept.name] = (kept, section)
    order = list(COMMANDS)
    return sorted(found.values(), key=lambda one: (order.index(one[0].kind), one[0].name))


def _render(kept: Kept, section: Section, pages: Sequence[Path]) -> str:
    source = f"By `{COMMANDS[kept.kind]}`."
    if not pages:
        return render_section(replace(section, notes=(source, *section.notes), plots=()))
    links = ", ".join(f"[{page.name}]({page.name})" for page in pages if page.suffix == ".md")
    return "\n\n".join((f"## {section.title}", *(wrap(note) for note in (source, *section.notes)), links))


def render_glance(kept: Kept) -> str:
    """What the kit gains, a row for each pair of systems: narrow enough for the README too."""
    rows = tuple(
        _make_row(row, goal, look_at(kept, kept.find(row.name)).valid)
        for row in list_rows(kept.asked["rows"])
        for goal in row.goals
        if goal.kind == RATIO
    )
    header = ("target", "baseline", "its requests/s", "the kit's", "ratio")
    table = Table(title="What it gains", note=describe_host(kept), header=header, rows=rows)
    return "\n\n".join((f"## {table.title}", wrap(table.note), render_table(table)))


def _make_row(row: Row, goal: Goal, valid: Mapping[str, Series]) -> tuple[str, ...]:
    if not {goal.other, goal.system} <= set(valid):
        return (row.name, goal.other, *[NONE] * 3)
    rates, parts = take_rates(list(valid.values())), take_parts(list(valid.values()))
    sides = (show_rate(find_rate_interval(rates, one, parts)) for one in (goal.other, goal.system))
    ratio = find_ratio(rates, goal.system, goal.other, parts)
    return (row.name, goal.other, *(f"{rate} ({interval})" for rate, interval in sides), show_ratio(ratio))
