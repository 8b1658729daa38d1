"""Fits the comparison into a terminal: asked and got are wrapped; evidence has the room that is left."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence

HEADER = ("who", "item", "state", "asked", "got", "evidence")

_COLUMNS_AT_LEAST = 100  # narrower, a cell would be one word a line
_COLUMNS_IN_A_FILE = 120
# Below this a column of paths and lists cannot be read.
_NARROWEST_VALUE = 26
_NARROWEST_EVIDENCE = 20
_WIDEST_WHO = 24  # three process ids
# The rest of a long value stands below the table if it differs, and in JSON always.
_LINES_PER_ROW = 3
_GAP = "  "


def read_columns() -> int:
    """Columns of the terminal (COLUMNS wins), within reason."""
    return max(_COLUMNS_AT_LEAST, shutil.get_terminal_size(fallback=(_COLUMNS_IN_A_FILE, 24)).columns)


def render_table(rows: Sequence[tuple[str, ...]], columns: int) -> list[str]:
    """Header and rows as lines, none longer than `columns`; cells in the order of HEADER."""
    cells = [HEADER, *rows]
    widths = plan_widths(cells, columns)
    return [line for row in cells for line in _render_row(row, widths)]


def plan_widths(rows: Sequence[tuple[str, ...]], columns: int) -> list[int]:
    """Width of each column; evidence is left out when nothing else would do."""
    who, *others = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    fixed, (asked, got, evidence) = [min(who, _WIDEST_WHO), *others[:2]], others[2:]
    room = columns - sum(len(_GAP) + width for width in fixed)
    with_evidence = room - 2 * len(_GAP)
    least = min(asked, _NARROWEST_VALUE) + min(got, _NARROWEST_VALUE) + min(evidence, _NARROWEST_EVIDENCE)
    if with_evidence < least:
        return [*fixed, *_share(room - len(_GAP), [asked, got])]
    return [*fixed, *_share(with_evidence, [asked, got, evidence])]


def _share(room: int, wanted: list[int]) -> list[int]:
    """The smallest get all they want; the others share the rest evenly."""
    widths = dict.fromkeys(range(len(wanted)), 0)
    for done, number in enumerate(sorted(widths, key=lambda one: wanted[one])):
        widths[number] = min(wanted[number], room // (len(wanted) - done))
        room -= widths[number]
    return list(widths.values())


def _render_row(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    """One line, or more when a cell is wrapped; a cut is marked."""
    wrapped = [_cut(_wrap(text, width), width) for text, width in zip(row, widths, strict=False)]
    height = max(len(lines) for lines in wrapped)
    padded = [lines + [""] * (height - len(lines)) for lines in wrapped]
    lines = zip(*padded, strict=True)
    return [
        _GAP.join(f"{text:{width}}" for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]


def _wrap(text: str, width: int) -> list[str]:
    """Lines of at most `width`, broken behind a blank, comma or slash where there is one."""
    if len(text) <= width:
        return [text]
    lines = [""]
    for piece in re.findall(rf"[^ ,/]{{0,{width - 1}}}[ ,/]|[^ ,/]{{1,{width}}}", text):
        if len(lines[-1] + piece.rstrip()) <= width:
            lines[-1] += piece
        else:
            lines.append(piece)
    return [line.rstrip() for line in lines if line]


def _cut(lines: list[str], width: int) -> list[str]:
    if len(lines) <= _LINES_PER_ROW:
        return lines
    last = lines[_LINES_PER_ROW - 1][: width - 1] + "…"
    return [*lines[: _LINES_PER_ROW - 1], last]
