"""Reports: made from kept results alone, so that they can be made again from a folder a colleague sends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.kept import make_folder, read_host_of, read_summary
from loadtest.pages.html import Extra, render_html
from loadtest.pages.markdown import render_markdown
from loadtest.pages.plots import draw_plots


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was written."""

    folder: Path
    text: str
    """The Markdown, for the terminal."""
    valid: bool
    """Whether every run in it may be quoted."""


def write_report(folders: list[Path], results: Path, extras: Sequence[Extra] = ()) -> Report:
    """report.md, report.html and the plots as PNG in a folder of their own; `extras` go to the page only."""
    summaries = [read_summary(folder) for folder in folders]
    host = read_host_of(folders[-1])
    target = make_folder("report", results)
    plots = draw_plots(summaries)
    for plot in plots:
        (target / f"{plot.name}.png").write_bytes(plot.png)
    text = render_markdown(summaries, host)
    images = "\n\n".join(f"![{plot.title}]({plot.name}.png)" for plot in plots)
    sources = "\n".join(f"- `{folder.name}`" for folder in folders)
    (target / "report.md").write_text(f"{text}\n\n{images}\n\nMade from\n\n{sources}\n", encoding="utf-8")
    (target / "report.html").write_text(
        render_html(summaries, host, plots, folders, extras), encoding="utf-8"
    )
    return Report(folder=target, text=text, valid=all(one.is_valid() for one in summaries))
