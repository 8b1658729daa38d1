"""The report as one page that holds everything: style, tables, pictures; nothing is loaded."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from loadtest.report.markdown import HOW
from loadtest.report.section import Doubt, Drawing, Plot, Section, Table
from loadtest.report.words import INVALID

STYLE = Path(__file__).with_name("page.css")
BAD = (INVALID, "WRONG", "FAILED", "BROKEN", "MISSED", "NO FIGURE", "REGRESSION")
LONG = (
    *("state", "evidence", "next step", "seen", "CPU time", "how", "what it is"),
    *("claim", "OpenMP", "operator"),
)


def render_html(title: str, sections: Sequence[Section], sources: Sequence[str]) -> str:
    """Banner when anything is invalid, then section by section."""
    invalid = ", ".join(section.title for section in sections if not section.valid)
    banner = f"<b>INVALID:</b> {escape(invalid)}. See the doubts; no figure in doubt is shown."
    parts = [f"<h1>{escape(title)}</h1>"]
    parts += [f'<p class="banner">{banner}</p>'] if invalid else []
    parts += [part for section in sections for part in _render_section(section)]
    parts.append(f"<footer>Made from {escape(', '.join(sources))}.</footer>")
    return _PAGE.format(title=escape(title), style=STYLE.read_text(encoding="utf-8"), body="\n".join(parts))


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{style}</style></head>
<body>
{body}
</body></html>
"""


def _render_section(section: Section) -> Iterator[str]:
    yield f"<h2>{escape(section.title)}</h2>"
    yield from (f'<p class="host">{_link(escape(note))}</p>' for note in section.notes)
    yield from (_render_table(table) for table in section.tables if table.rows)
    yield from (_render_plot(plot) for plot in section.plots)
    yield from (_render_drawing(drawing) for drawing in section.drawings)
    yield from (_render_table(table) for table in section.proofs if table.rows)
    if section.findings:
        yield _render_table(_tabulate(section.findings))
    if section.closing:
        yield f"<h3>{HOW}</h3>"
    yield from (f'<p class="note">{_link(escape(text))}</p>' for text in section.closing)


def _link(text: str) -> str:
    """Notes are written as Markdown; links are all of it that they use."""
    return re.sub(r"\[(.+?)\]\((https://\S+?)\)", r'<a href="\2">\1</a>', text)


def _tabulate(doubts: Sequence[Doubt]) -> Table:
    return Table(
        title="Doubts",
        note="",
        header=("where", "state", "evidence", "next step"),
        rows=tuple(
            (one.where, f"{INVALID}: {one.state}" if one.invalid else one.state, one.evidence, one.next_step)
            for one in doubts
        ),
    )


def _render_table(table: Table) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table.header)
    rows = "".join(f"<tr>{''.join(map(_render_cell, table.header, row))}</tr>" for row in table.rows)
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return (
        f"<h3>{escape(table.title)}</h3>{note}"
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _render_cell(name: str, cell: str) -> str:
    bad, long = "bad " * any(word in cell for word in BAD), "long" * (name in LONG)
    return f'<td class="{bad}{long}">{escape(cell)}</td>'


def _render_plot(plot: Plot) -> str:
    return f'<figure><img alt="{escape(plot.title)}" src="{_embed(plot.svg)}"></figure>'


def _render_drawing(drawing: Drawing) -> str:
    """As an object: an image would not run its program."""
    svg = f'<object type="image/svg+xml" data="{_embed(drawing.svg)}"></object>'
    return f"<h3>{escape(drawing.title)}</h3>{svg}"


def _embed(svg: bytes) -> str:
    """As an address that holds it."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
