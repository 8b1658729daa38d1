"""The film strip: where each busy thread of a system's workers ran, ten pictures a second."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from loadtest.experiments.profile.evidence import Evidence
from loadtest.experiments.profile.threads import ASLEEP, GLANCE_SECONDS, ThreadUse
from loadtest.report.plots import COLOURS, STYLED, save_plot
from loadtest.report.section import Plot

WIDTH, MARGIN, ROW_HEIGHT = 9.0, 1.6, 0.24
MOST_THREADS = 10
"""Of a worker; the busiest."""
MOST_CPUS = 12
"""In the legend; colours come again after six, and the tables have the numbers."""
BLANK = "#f0f0f0"


@STYLED
def draw_film(one: Evidence) -> Plot:
    """A row for each thread, a colour for each CPU; grey where it slept."""
    rows = [(worker.pid, use) for worker in one.workers for use in worker.busy[:MOST_THREADS]]
    figure = Figure(figsize=(WIDTH, MARGIN + ROW_HEIGHT * max(4, len(rows))), layout="constrained")
    axes = figure.subplots()
    cpus = sorted({cpu for _, use in rows for cpu in use.cpus})
    length = max((len(use.strip) for _, use in rows), default=1)
    places = np.array([_place(use, cpus, length) for _, use in rows] or [[0]])
    colours = [BLANK, *(COLOURS[number % len(COLOURS)] for number in range(len(cpus)))]
    extent = (0, length * GLANCE_SECONDS, len(places), 0)
    axes.imshow(places, cmap=ListedColormap(colours), vmin=0, vmax=len(colours) - 1, aspect="auto",
                interpolation="none", extent=extent)  # fmt: skip
    _label(axes, [f"{pid} {use.name}, {use.cores:.2f} cores" for pid, use in rows], one.name)
    named = [
        Patch(color=colours[place + 1], label=f"CPU {cpu}") for place, cpu in enumerate(cpus[:MOST_CPUS])
    ]
    figure.legend(handles=named, loc="outside lower center", ncols=6, frameon=False)
    name = "film-" + "".join(letter if letter.isalnum() else "-" for letter in one.name)
    return save_plot(name, f"Where the threads of {one.name} ran", figure)


def _place(use: ThreadUse, cpus: list[int], length: int) -> list[int]:
    """0 asleep, else the CPU's place from 1 on."""
    strip = [0 if cpu == ASLEEP else cpus.index(cpu) + 1 for cpu in use.strip]
    return strip + [0] * (length - len(strip))


def _label(axes: Any, names: list[str], title: str) -> None:
    axes.set_yticks([row + 0.5 for row in range(len(names))], names, fontsize=8)
    for row in range(1, len(names)):
        axes.axhline(row, color="white", linewidth=1)
    axes.set_xlabel("seconds")
    axes.set_title(f"{title}: the CPU of each busy thread", loc="left", fontsize=11)
