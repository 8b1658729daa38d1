"""Renders a result: a line per model and what differs, all rows as a table, or JSON with everything."""

from __future__ import annotations

import dataclasses
import json
import shutil
import textwrap
from collections import Counter
from collections.abc import Sequence

from config.plan import Plan
from handlers.backends.catalogue import DEFAULT, name_variant
from server.verify.compare import DIFFERS, NO_ANSWER, NOT_CHECKABLE, PASSED, Finding, Result


def render(result: Result, plan: Plan, format: str = "text", verbose: bool = False) -> str:  # noqa: A002
    """`text`: a line a model, one of the server, and each difference with its fix; `verbose`: before them a
    table of all rows, as wide as the terminal. `json`: all rows in full."""
    if format == "json":
        rows = [dataclasses.asdict(one) for one in result.rows]
        return json.dumps({"passed": result.good, "rows": rows}, indent=1, ensure_ascii=False)
    names = sorted({one.instance for one in result.rows if one.instance})
    models = dict.fromkeys(model for name in names for model in plan.instances[name].models)
    lines = [f"{model}: {_describe(plan, names, model)}: {_count(result, model)}" for model in models]
    lines += [f"server: {_count(result, None)}", *_render_differences(result)]
    return "\n".join([*_render_table(result.rows), "", *lines] if verbose else lines)


def _describe(plan: Plan, names: Sequence[str], model: str) -> str:
    """Of these instances together."""
    serving = [plan.instances[name] for name in names if model in plan.instances[name].models]
    one, cores, libraries = serving[0].models[model], serving[0].cores_per_worker, plan.libraries
    workers = sum(len(each.models[model].archives) * each.models[model].workers for each in serving)
    computing = one.precision if one.backend == DEFAULT else name_variant(one.backend, one.precision)
    computing = computing if one.kit else "an archive that others made"
    openmp = "Intel" if libraries.openmp == "intel" else "GNU"
    size = f"{workers} worker{'s' * (workers != 1)} × {cores} core{'s' * (cores != 1)}"
    return f"{size}, {computing}, {libraries.allocator}, {openmp} OpenMP"


def _count(result: Result, model: str | None) -> str:
    """Of one model with its workers, or of all that is of no model."""
    of = [one for one in result.rows if (one.model and one.model.partition("/")[0]) == model]
    states = Counter(one.state for one in of)
    note = f", {states[NOT_CHECKABLE]} not checkable" if states[NOT_CHECKABLE] else ""
    if states[DIFFERS]:
        return f"{states[DIFFERS]} of {states.total()} checks DIFFER{note}"
    return (
        f"{states[PASSED]} checks passed{note}" if states else "not checkable while TorchServe does not run"
    )


def _render_differences(result: Result) -> list[str]:
    """Where a worker gives no answer, its row `describe` says so for all that need one."""
    lines = []
    for one in result.differences:
        if one.actual != NO_ANSWER:
            who = " ".join(str(part) for part in (one.instance, one.model or "server", one.pid) if part)
            lines += ["", f"{who}: {one.name} DIFFERS", f"  expected: {one.expected}"]
            lines += [f"  actual:   {one.actual}", f"  fix:      {one.fix}"]
    return lines


_COLUMNS_AT_LEAST, _COLUMNS_IN_A_FILE = 100, 120  # narrower, a cell would be one word a line
_PIDS_NAMED = 2  # more do not fit; a row of some workers only is a difference, which names them
_NARROWEST = 24  # of expected, actual and source: below it paths and lists cannot be read
_LINES_PER_ROW = 3  # the rest stands below the table if it differs, and in JSON always
_GAP = "  "


def _render_table(rows: Sequence[Finding]) -> list[str]:
    """Workers that show the same share a row; sources are left out where they do not fit."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for one in rows:
        key = (one.instance, one.model, one.pid is None, one.name, one.state, one.expected, one.actual)
        groups.setdefault(key, []).append(one)
    cells = [("who", "row", "state", "expected", "actual", "source")]
    for same in groups.values():
        one = same[0]
        who = " ".join(part for part in (one.instance, one.model or "server") if part)
        if one.pid is not None:
            pids = ", ".join(str(each.pid) for each in same)
            who = f"  {pids}" if len(same) <= _PIDS_NAMED else f"  {len(same)} workers"
        cells.append((who, one.name, one.state, one.expected, one.actual, one.source))
    columns = max(_COLUMNS_AT_LEAST, shutil.get_terminal_size((_COLUMNS_IN_A_FILE, 24)).columns)
    widths = [min(24, max(len(row[i]) for row in cells)) for i in range(3)]
    room = columns - sum(widths) - len(_GAP) * 5
    widths += [room // 3] * 3 if room // 3 >= _NARROWEST else [(room + len(_GAP)) // 2] * 2
    return [line for row in cells for line in _render_row(row, widths)]


def _render_row(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    how = {"max_lines": _LINES_PER_ROW, "placeholder": " …", "initial_indent": "", "break_on_hyphens": False}
    wrapped = [
        textwrap.wrap(text, width, **how) if len(text) > width else [text]  # type: ignore[arg-type]
        for text, width in zip(row, widths, strict=False)
    ]
    padded = [lines + [""] * (max(map(len, wrapped)) - len(lines)) for lines in wrapped]
    lines = zip(*padded, strict=True)
    return [_GAP.join(f"{t:{w}}" for t, w in zip(line, widths, strict=True)).rstrip() for line in lines]
