"""The report as Markdown that also reads well in a terminal: columns are padded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadtest.pages.tables import Table, describe_host, make_findings, make_proofs, make_tables
from loadtest.summary import Summary


def render_markdown(summaries: Sequence[Summary], host: Mapping[str, Any]) -> str:
    """Host, tables, answers, doubts."""
    parts = ["# Load test", *describe_host(summaries, host)]
    for table in [*make_tables(summaries), *make_proofs(summaries)]:
        parts += [f"## {table.title}", render_table(table), table.note]
    findings = make_findings(summaries)
    if findings.rows:
        parts += ["## Doubts", _render_findings(findings)]
    return "\n\n".join(part for part in parts if part)


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


def _render_findings(table: Table) -> str:
    """A list: evidence is too long for a column."""
    return "\n".join(
        f"- **{scenario}** ({where}): {state}\n  - evidence: {evidence}\n  - next: {following}"
        for scenario, where, state, evidence, following in table.rows
    )
