"""What an experiment gives, and how it is shown: one page that holds everything, and the same as Markdown."""

from __future__ import annotations

import base64
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup, escape

from loadtest.results import Kept
from loadtest.stats import Interval
from loadtest.validity import Finding

FOLDER = Path(__file__).parent
INVALID, NONE = "INVALID", "–"
BAD = (INVALID, "WRONG", "FAILED", "MISSED", "BROKEN", "REGRESSION", "INCONCLUSIVE")
"""Words of a cell that is shown in red."""
WIDTH = 110
VENDORS = {"AuthenticAMD": "AMD", "GenuineIntel": "Intel"}
SIMD = (("amx_int8", "AMX"), ("avx512f", "AVX-512"), ("avx2", "AVX2"))
"""The widest first: what a core multiplies in a cycle differs by as much as what the kit gains."""
SHOWN_VERSIONS = ("torch", "intel_extension_for_pytorch", "openvino", "torchserve", "transformers", "locust")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One figure that an experiment gives, or why it gives none."""

    what: str
    figure: Interval | None = None
    """None: INVALID, or nothing was measured; then `why` says so."""
    unit: str = ""
    limit: float | None = None
    """None: the figure is told and not validated."""
    at_least: bool = True
    """False: at most."""
    why: str = ""
    """INVALID: state, evidence and next step; else where the limit comes from, and notes."""
    failed: bool = False
    """For another reason than the figure."""

    @property
    def passed(self) -> bool:
        """Written so that NaN has not, and INVALID neither."""
        if self.failed or self.figure is None:
            return False
        if self.limit is None:
            return True
        return self.figure.value >= self.limit if self.at_least else self.figure.value <= self.limit

    def __str__(self) -> str:
        """One line with the figure, its interval and the limit; no figure where it is INVALID."""
        if self.figure is None:
            return f"{self.what}: {INVALID}: {self.why}"
        low, high = (f"{end:.4g}" for end in (self.figure.low, self.figure.high))
        interval = "" if low == high else f" ({low}-{high})"
        note = f" ({self.why})" if self.why else ""
        shown = f"{self.figure.value:.4g}{self.unit}{interval}"
        if self.limit is None and not self.failed:
            return f"{self.what}: {shown}{note}"
        sign = "≥" if self.at_least else "≤"
        limit = "" if self.limit is None else f", limit {sign} {self.limit:.4g}{self.unit}"
        return f"{self.what}: {shown}{limit}: {'passed' if self.passed else 'MISSED'}{note}"


@dataclass(frozen=True, kw_only=True)
class Table:
    """A DataFrame whose cells are texts, numbers, intervals or None; the column's name says the format."""

    title: str
    frame: pd.DataFrame
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A plot, or a drawing that is looked into: an SVG with a program of its own."""

    name: str
    """Of its file, without a suffix."""
    title: str
    svg: bytes
    interactive: bool = False


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came out of an experiment."""

    title: str
    verdicts: Sequence[Verdict]
    tables: Sequence[Table] = ()
    plots: Sequence[Plot | None] = ()
    findings: Sequence[tuple[str, Finding]] = ()
    """Where, and what is in doubt or worth a remark."""
    notes: Sequence[str] = ()
    """Above the figures: servers, weights."""
    method: Sequence[str] = ()
    """Below all else: how it was measured."""
    text: Mapping[str, str] = field(default_factory=dict)
    """Title → a report of another program, as it printed it."""

    @property
    def valid(self) -> bool:
        """Whether every figure in it may be quoted."""
        return not any(finding.invalid for _, finding in self.findings)

    @property
    def passed(self) -> bool:
        return bool(self.verdicts) and all(one.passed for one in self.verdicts)


def make_table(title: str, rows: Iterable[Mapping[str, Any]], note: str = "") -> Table:
    """Columns in the order of the first row; None is an empty cell."""
    return Table(title=title, frame=pd.DataFrame(list(rows), dtype=object), note=note)


def show(column: str, value: Any) -> str:
    """A cell: an interval as `value (low-high)`, numbers by what the column is of."""
    if value is None or (isinstance(value, float) and value != value):
        return NONE
    if isinstance(value, Interval):
        middle, low, high = (show(column, one) for one in (value.value, value.low, value.high))
        digits = len(middle.rstrip("×").partition(".")[2])
        if low == high:
            return middle
        return f"{middle} ({value.low:.{digits}f}-{value.high:.{digits}f})"
    if isinstance(value, (bool, str)):
        return str(value)
    if isinstance(value, int):
        return f"{value}"
    if "ratio" in column.split():
        digits = 3 if 0.8 < value < 1.25 else 2 if value < 10 else 1
        return f"{value:.{digits}f}×"
    if "%" in column:
        return f"{100 * value:.1f}"
    if column.endswith(("ms", "MiB")):
        return f"{value:.0f}" if value >= 10 else f"{value:.2g}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def describe_machine(host: Mapping[str, Any]) -> str:
    """`a 2-core AVX-512 virtual machine (AMD, 23 GiB)`; no name of the machine itself."""
    width = next((name for flag, name in SIMD if flag in host["flags"]), "x86-64")
    kind = "virtual machine" if host["virtual"] else "machine"
    vendor = VENDORS.get(host["vendor"], host["vendor"])
    return f"a {host['usable_cores']}-core {width} {kind} ({vendor}, {host['memory_gib']} GiB)"


def describe_host(kept: Kept) -> str:
    """Where and when a result was measured, with the versions that decide its speed."""
    known = kept.host.get("versions", {})
    listed = ", ".join(f"{name} {known[name]}" for name in SHOWN_VERSIONS if known.get(name))
    commit = f", commit {kept.commit}" * bool(kept.commit)
    return f"Measured on {describe_machine(kept.host)}, {kept.began[:10]}{commit}; {listed}."


def write_report(result: Result, kept: Kept) -> Path:
    """report.html, report.md and the plots, in the result's own folder; the page."""
    plots = [one for one in result.plots if one]
    for one in plots:
        (kept.folder / f"{one.name}.svg").write_bytes(one.svg)
    (kept.folder / "report.md").write_text(render_markdown(result, kept) + "\n", encoding="utf-8")
    page = kept.folder / "report.html"
    page.write_text(render_html(result, kept), encoding="utf-8")
    return page


def render_html(result: Result, kept: Kept) -> str:
    """One page that loads nothing."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["cell"] = lambda value, column: show(column, value)
    environment.filters["links"] = lambda text: Markup(
        re.sub(r"\[(.+?)\]\((https://\S+?)\)", r'<a href="\2">\1</a>', str(escape(text)))
    )
    environment.tests["bad"] = lambda text: any(word in str(text) for word in BAD)
    plots = [
        (one, f"data:image/svg+xml;base64,{base64.b64encode(one.svg).decode()}")
        for one in result.plots
        if one
    ]
    tables = [one for one in result.tables if len(one.frame)]
    style = (FOLDER / "page.css").read_text(encoding="utf-8")
    return environment.get_template("page.html.j2").render(
        result=result, tables=tables, plots=plots, host=describe_host(kept), source=kept.folder.name,
        style=Markup(style),
    )  # fmt: skip


def render_markdown(result: Result, kept: Kept, *, plots: bool = True) -> str:
    """Reads well in a terminal, too: columns are padded, prose is cut into lines."""
    parts = [f"# {result.title}", wrap(describe_host(kept)), *map(wrap, result.notes)]
    parts += ["\n".join(wrap(f"- {one}", "  ") for one in result.verdicts)]
    for table in (one for one in result.tables if len(one.frame)):
        parts += [f"## {table.title}", wrap(table.note), _render_table(table.frame)]
    parts += [f"![{one.title}]({one.name}.svg)" for one in result.plots if one and plots]
    parts += [f"## {title}\n\n```\n{text}\n```" for title, text in result.text.items()]
    if result.findings:
        listed = (wrap(f"- **{where}**: {one}", "  ") for where, one in result.findings)
        parts += ["## Doubts and remarks", "\n".join(listed)]
    if result.method:
        parts += ["## How it was measured", *map(wrap, result.method)]
    return "\n\n".join(part for part in parts if part)


def _render_table(frame: pd.DataFrame) -> str:
    columns = [str(name) for name in frame.columns]
    rows = [columns, *([show(*pair).replace("|", "\\|") for pair in zip(columns, row, strict=True)]
                       for row in frame.itertuples(index=False))]  # fmt: skip
    widths = [max(len(row[place]) for row in rows) for place in range(len(columns))]
    lines = [
        "| " + " | ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def wrap(text: str, indent: str = "") -> str:
    """Lines of prose; what follows the first one is indented so far."""
    return textwrap.fill(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
