"""Reports: made from kept results alone, so that they can be made again from a folder a colleague sends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.errors import LoadTestError
from loadtest.report.html import render_html
from loadtest.report.ladder import make_engines_section, make_ladder_section
from loadtest.report.markdown import render_section
from loadtest.report.measured import make_gate_section, make_measure_section, make_peak_section
from loadtest.report.profile import make_profile_section
from loadtest.report.section import Section
from loadtest.report.targets import make_soak_section, make_targets_section
from loadtest.report.tune import make_tune_section
from loadtest.results.kept import Kept, make_folder

TITLE = "What was measured"
SECTIONS: Mapping[str, Callable[[Kept], Section]] = {
    "measure": make_measure_section,
    "peak": make_peak_section,
    "gate": make_gate_section,
    "targets": make_targets_section,
    "ladder": make_ladder_section,
    "engines": make_engines_section,
    "tune": make_tune_section,
    "soak": make_soak_section,
    "profile": make_profile_section,
}
"""One for each kind of experiment that keeps results."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was written."""

    folder: Path
    text: str
    """The Markdown, for the terminal."""
    valid: bool
    """Whether every result in it may be quoted."""


def make_section(kept: Kept) -> Section:
    """LoadTestError for a kind without one."""
    if kept.kind not in SECTIONS:
        known = ", ".join(SECTIONS)
        raise LoadTestError(f"{kept.folder}: the kind must be one of {known}: got {kept.kind}")
    return SECTIONS[kept.kind](kept)


def write_report(kepts: Sequence[Kept], results: Path) -> Report:
    """report.md, report.html and the plots as PNG in a folder of their own."""
    sections = [make_section(kept) for kept in kepts]
    sources = [kept.folder.name for kept in kepts]
    target = make_folder("report", results)
    pages = [_write_pictures(target, section, number) for number, section in enumerate(sections, start=1)]
    listed = "\n".join(f"- `{source}`" for source in sources)
    _write(target / "report.md", "\n\n".join([f"# {TITLE}", *pages, "Made from", listed]))
    _write(target / "report.html", render_html(TITLE, sections, sources))
    text = "\n\n".join(render_section(one) for one in sections)
    return Report(folder=target, text=text, valid=all(one.valid for one in sections))


def _write_pictures(target: Path, section: Section, number: int) -> str:
    """The section's page; sections may have plots of one name, so their files are numbered."""
    pictures = {plot.title: f"{number}-{plot.name}.png" for plot in section.plots}
    for plot in section.plots:
        (target / pictures[plot.title]).write_bytes(plot.png)
    for drawing in section.drawings:
        (target / f"{number}-{drawing.name}.svg").write_bytes(drawing.svg)
    return render_section(section, pictures)


def _write(file: Path, text: str) -> None:
    file.write_text(f"{text}\n", encoding="utf-8")
