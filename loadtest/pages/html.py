"""The report as one page that holds everything: style, tables, pictures; nothing is loaded."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from loadtest.pages.plots import Plot
from loadtest.pages.tables import INVALID, Table, describe_host, make_findings, make_proofs, make_tables
from loadtest.summary import Summary

STYLE = Path(__file__).with_name("page.css")
BAD = (INVALID, "WRONG", "FAILED", "BROKEN")
LONG = ("state", "evidence", "next step")


@dataclass(frozen=True, kw_only=True)
class Extra:
    """What another kind of result adds to the page."""

    source: str
    """Its folder's name."""
    note: str
    """Host, time and length."""
    tables: tuple[Table, ...]
    plot: Plot | None


def render_html(
    summaries: Sequence[Summary],
    host: Mapping[str, Any],
    plots: Sequence[Plot],
    folders: Sequence[Path],
    extras: Sequence[Extra] = (),
) -> str:
    """Banner when anything is invalid, tables, plots, answers, doubts, sources."""
    findings = make_findings(summaries)
    parts = [
        "<h1>Load test</h1>",
        *(f'<p class="host">{escape(line)}</p>' for line in describe_host(summaries, host)),
    ]
    invalid = [f"{one.scenario.name} {one.precision}" for one in summaries if not one.is_valid()]
    if invalid:
        names = escape(", ".join(invalid))
        parts.append(
            f'<p class="banner"><b>INVALID:</b> {names}. See the doubts; no figure of theirs is shown.</p>'
        )
    parts += [_render_table(table) for table in make_tables(summaries)]
    parts += [_render_plot(plot) for plot in plots]
    parts += [_render_table(table) for table in make_proofs(summaries)]
    if findings.rows:
        parts.append(_render_table(findings))
    for extra in extras:
        parts += _render_extra(extra)
    names = ", ".join(escape(name) for name in [*(f.name for f in folders), *(e.source for e in extras)])
    parts.append(f"<footer>Made from {names}.</footer>")
    return _PAGE.format(style=STYLE.read_text(encoding="utf-8"), body="\n".join(parts))


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Load test</title><style>{style}</style></head>
<body>
{body}
</body></html>
"""


def _render_extra(extra: Extra) -> list[str]:
    first, *others = [_render_table(table) for table in extra.tables]
    plot = [_render_plot(extra.plot)] if extra.plot else []
    return [first, f'<p class="note">{escape(extra.note)}</p>', *plot, *others]


def _render_table(table: Table) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table.header)
    rows = "".join(_render_row(table.header, row) for row in table.rows)
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return (
        f"<h2>{escape(table.title)}</h2>{note}"
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _render_row(header: Sequence[str], row: Sequence[str]) -> str:
    return (
        "<tr>" + "".join(_render_cell(name, cell) for name, cell in zip(header, row, strict=True)) + "</tr>"
    )


def _render_cell(name: str, cell: str) -> str:
    classes = [
        word for word, true in (("bad", any(one in cell for one in BAD)), ("long", name in LONG)) if true
    ]
    attribute = f' class="{" ".join(classes)}"' if classes else ""
    return f"<td{attribute}>{escape(cell)}</td>"


def _render_plot(plot: Plot) -> str:
    data = base64.b64encode(plot.svg).decode()
    return f'<figure><img alt="{escape(plot.title)}" src="data:image/svg+xml;base64,{data}"></figure>'
