"""Sections as Markdown that also reads well in a terminal: columns are padded, prose is cut into lines."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from loadtest.report.section import Doubt, Section, Table

WIDTH = 110
HOW = "How it was measured"


def render_section(section: Section, pictures: dict[str, str] | None = None, *, level: int = 2) -> str:
    """`pictures` are the files of plots, by title; none of them without."""
    mark = "#" * level
    parts = [f"{mark} {section.title}", *(wrap(note) for note in section.notes)]
    parts += _render_tables(section.tables, mark)
    parts += [f"![{title}]({file})" for title, file in (pictures or {}).items()]
    parts += _render_tables(section.proofs, mark)
    if section.findings:
        parts += [f"{mark}# Doubts", "\n".join(_render_doubt(one) for one in section.findings)]
    if section.closing:
        parts += [f"{mark}# {HOW}", *(wrap(text) for text in section.closing)]
    return "\n\n".join(part for part in parts if part)


def _render_tables(tables: Sequence[Table], mark: str) -> Iterator[str]:
    for table in tables:
        if table.rows:
            yield from (f"{mark}# {table.title}", wrap(table.note), render_table(table))


def render_table(table: Table) -> str:
    """Padded, so that it is a table in a terminal too."""
    rows = [[cell.replace("|", "\\|") for cell in row] for row in (table.header, *table.rows)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(table.header))]
    lines = [
        "| " + " | ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def _render_doubt(doubt: Doubt) -> str:
    """An item of a list: evidence is too long for a column."""
    lines = [wrap(f"- **{doubt.where}**: {'INVALID: ' * doubt.invalid}{doubt.state}", "  ")]
    reasons = (("evidence", doubt.evidence), ("next", doubt.next_step))
    return "\n".join([*lines, *(wrap(f"  - {name}: {text}", "    ") for name, text in reasons if text)])


def wrap(text: str, indent: str = "") -> str:
    """Lines of prose; what follows the first one is indented so far."""
    return textwrap.fill(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
