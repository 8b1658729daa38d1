"""Renders a result: a line per model, a table as wide as the terminal, or JSON with everything."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections import Counter
from collections.abc import Sequence

from config.plan import Plan
from config.write import name_computing
from server.verify.evidence import DIFFERS, NO_ANSWER, NOT_CHECKABLE
from server.verify.registry import Judged, Result

# More do not fit into the column; a row of some workers only is a difference, and that names them below.
_PIDS_NAMED = 2


def render(result: Result, style: str = "text") -> str:
    """`text`: a table as wide as the terminal, each difference in full with its cure, and one line in sum;
    `json`: every finding in full."""
    if style == "json":
        found = [
            {"instance": one.instance, "model": one.model, "pid": one.pid, **dataclasses.asdict(one.finding)}
            for one in result.judged
        ]
        return json.dumps({"good": result.good, "findings": found}, indent=1, ensure_ascii=False)
    rows = [_make_row(judged) for judged in _group(result.judged)]
    # COLUMNS wins over what the terminal says.
    columns = shutil.get_terminal_size(fallback=(_COLUMNS_IN_A_FILE, 24)).columns
    lines = render_table(rows, max(_COLUMNS_AT_LEAST, columns))
    return "\n".join([*lines, *_render_differences(result), "", _render_sum(result)])


def render_summary(plan: Plan, result: Result) -> str:
    """A line per model, one for the server, and what differs."""
    lines = [f"{name}: {_describe_model(plan, name)}: {_count(result, name)}" for name in plan.models]
    return "\n".join([*lines, f"server: {_count(result, None)}", *_render_differences(result)])


def _describe_model(plan: Plan, name: str) -> str:
    model, layout, libraries = plan.models[name], plan.layout, plan.libraries
    workers, cores = int(model.workers.value), int(layout.cores_per_worker.value)
    size = f"{workers} worker{'s' * (workers != 1)} × {cores} core{'s' * (cores != 1)}"
    return f"{size}, {name_computing(model)}, {libraries.allocator.value}, {libraries.openmp.value} OpenMP"


def _count(result: Result, model: str | None) -> str:
    """Of one model with its workers, or of the server as a whole."""
    states = Counter(one.finding.state for one in result.judged if one.model == model)
    differing, unchecked = states[DIFFERS], states[NOT_CHECKABLE]
    note = f", {unchecked} not checkable" if unchecked else ""
    if differing:
        return f"{differing} of {states.total()} checks DIFFER{note}"
    return f"{states.total() - unchecked} checks as asked{note}"


def _render_differences(result: Result) -> list[str]:
    """Each in full with its cure."""
    lines = []
    for differing in result.differences:
        finding = differing.finding
        if finding.got == NO_ANSWER:  # the table has them; `describe` itself comes with its cure
            continue
        what = differing.model or "server"
        where = " ".join(str(part) for part in (differing.instance, what, differing.pid) if part)
        lines += [
            "",
            f"{where}: {finding.item} DIFFERS",
            f"  asked: {finding.asked}",
            f"  got:   {finding.got}",
            f"  cure:  {finding.cure}",
        ]
    return lines


def _group(judged: Sequence[Judged]) -> list[list[Judged]]:
    """Workers of one model that show the same, in one row; it stands where the first one's does."""
    groups: dict[tuple[object, ...], list[Judged]] = {}
    for one in judged:
        finding = one.finding
        shown = (finding.item, finding.asked, finding.got, finding.state)
        groups.setdefault((one.instance, one.model, one.pid is None, *shown), []).append(one)
    order = {one.finding.item: number for number, one in reversed(list(enumerate(judged)))} if groups else {}
    parts = list(dict.fromkeys((one.instance, one.model) for one in judged))
    return sorted(
        groups.values(),
        key=lambda rows: (parts.index((rows[0].instance, rows[0].model)), order[rows[0].finding.item]),
    )


def _name(rows: list[Judged]) -> str:
    first = rows[0]
    if first.pid is None:
        return " ".join(part for part in (first.instance, first.model or "server") if part)
    if len(rows) > _PIDS_NAMED:
        return f"  {len(rows)} workers"
    return f"  {', '.join(str(one.pid) for one in rows)}"


def _make_row(rows: list[Judged]) -> tuple[str, ...]:
    one = rows[0].finding
    return _name(rows), one.item, one.state, one.asked, one.got, one.evidence


def _render_sum(result: Result) -> str:
    workers = len({one.pid for one in result.judged if one.pid})
    unchecked = sum(one.finding.state == NOT_CHECKABLE for one in result.judged)
    note = f", {unchecked} not checkable" if unchecked else ""
    if result.good:
        return f"verify: all {len(result.judged) - unchecked} checks of {workers} workers as asked{note}"
    return (
        f"verify: {len(result.differences)} of {len(result.judged)} checks of {workers} workers DIFFER{note}"
    )


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
