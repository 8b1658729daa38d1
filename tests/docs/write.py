"""Writes what the pages have from code: `make docs`."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from config.commands import COMMANDS, GROUPS, describe, list_read
from deploy import observability
from handlers.backends.catalogue import BACKENDS, SETS
from loadtest.plots import COLOURS, GREY, draw_steps
from loadtest.stats import Interval
from models.definition import ModelDefinition, Thresholds
from models.options import OPTIONS, TextOptions
from server.supervisor.metrics import list_metrics
from server.supervisor.requests import REASONS
from server.verify.rows import INSTANCE, MODEL, PROXY, ROWS, WORKER

INTRODUCTION = """# Settings

Made by `make docs` from `config/settings.py`; edits are lost.

A setting comes from, in this order: the command line, as in `make serve PRECISION=bf16 WORKERS=2`; the
environment, as `KIT_PRECISION=bf16`; `kit.toml` in the current folder, or the file that `KIT_FILE` names;
its default, mostly found from the machine. A bare `PORT` of your shell does nothing. The container
([docker.md](docker.md)) reads `KIT_…` and a mounted `kit.toml`.

```toml
# kit.toml: settings in small letters, and a table for each model; these models are served
precision = "int8"
[models.bert]
batch = 8
```

A wrong value, an unknown name, and a setting that the command does not read are rejected with what is
allowed. `BATCH=4` is for all models, `BATCH=bert=8,resnet50=4` for each; a value for all replaces what stands
further down in that order. Paths may hold blanks, quotes and commas, on one line.
"""
DOCS = Path(__file__).resolve().parents[2] / "docs"
PLOT = DOCS / "ablation-resnet50.svg"
BEGIN, END = "<!-- made by `make docs` -->\n", "<!-- end -->"
SCOPES = {PROXY: "the reverse proxy", INSTANCE: "each instance", MODEL: "each model", WORKER: "each worker"}


def render_settings() -> str:
    """By group; its readers are those that read most of it."""
    parts = [INTRODUCTION.strip()]
    for group, title in GROUPS.items():
        described = [*describe(group)]
        names = [name for name, *_ in described]
        readers = [", ".join(one for one in COMMANDS if name in list_read(one)) for name in names]
        usual = max(readers, key=readers.count)
        rows = [(f"`{name}`", values, default, text) for name, text, values, default in described]
        head = f"Read by make {usual}.\n\n" * (readers.count(usual) > 1)
        table = render_table(["setting", "values", "default", "meaning"], rows).rstrip()
        parts.append(f"## {title}\n\n{head}{table}")
    return "\n\n".join(parts) + "\n"


def render_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    cells = [
        [" ".join(cell.split()).replace("|", "/").replace("<", "&lt;") for cell in line] for line in lines
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def render_backends() -> str:
    def list_precisions(name: str) -> str:
        flags = BACKENDS[name].flags
        return ", ".join(
            one.upper() + (f" ({' or '.join(f'`{flag}`' for flag in need)})" if need else "")
            for one, need in flags.items()
        )

    rows = []
    for name, one in BACKENDS.items():
        sets = " or ".join(f"`{key}`" for key, names in SETS.items() if name in names)
        rows.append([f"`{name}`", list_precisions(name), sets, one.reason])
    return render_table(["backend", "precisions, and the CPU flags they need", "package set", "why"], rows)


def list_fields(model: type[BaseModel], prefix: str = "") -> Iterable[tuple[str, str, str]]:
    """Name, default and meaning of each field of the class itself that a person may write; the meaning is the
    first sentence of its docstring."""
    (tree,) = ast.parse(inspect.getsource(model)).body
    for one, after in itertools.pairwise(tree.body):  # type: ignore[attr-defined]
        if isinstance(one, ast.AnnAssign) and (name := one.target.id) != "path":  # type: ignore[union-attr]
            said = after.value.value if isinstance(after, ast.Expr) else ""  # type: ignore[attr-defined]
            default = model.model_fields[name].default
            shown = "required" if default is PydanticUndefined else show(default)
            yield f"`{prefix}{name}`", shown, said.split(". ")[0].rstrip(".")


def show(value: Any) -> str:
    if isinstance(value, BaseModel):
        return "below"
    if value is None or value in ("", (), {}, []):
        return "–"
    return f"`{list(value) if isinstance(value, tuple) else value}`"


def render_fields() -> str:
    rows = [*list_fields(ModelDefinition), *list_fields(Thresholds, "accuracy_gate.")]
    for handler, options in OPTIONS.items():
        label = "all text handlers" if options is TextOptions else handler
        rows += [(f"{name} ({label})", *rest) for name, *rest in list_fields(options, "options.")]
    return render_table(["field", "default", "meaning"], rows)


def render_rows() -> str:
    parts = []
    for scope, title in SCOPES.items():
        rows = [[f"`{row.name}`", row.source] for row in ROWS if row.scope == scope]
        parts.append(render_table([f"of {title}", "where the actual value is read"], rows))
    return "\n".join(parts)


def render_metrics() -> str:
    rows = [(f"`{name}`", kind, ", ".join(labels), text) for name, kind, labels, text in list_metrics()]
    return render_table(["metric", "type", "labels", "meaning"], rows)


def render_reasons() -> str:
    return render_table(["reason", "response"], [(f"`{name}`", text) for name, text in REASONS.items()])


def render_capacity() -> str:
    """Of kept tables: each model's section of CAPACITY, without eager, which nobody plans for."""
    text = (DOCS.parent / "benchmarks/2026-11-24-backends/backends.md").read_text(encoding="utf-8")
    rows = []
    for model, begin in CAPACITY.items():
        for line in text.partition(begin)[2].partition("\n\n")[2].partition("\n\n")[0].splitlines()[2:]:
            named, rate, _, start, memory, *_ = (cell.strip() for cell in line.strip("|").split("|"))
            backend, precision = named.replace("`", "").split()
            if backend != "eager":
                rows.append((model, precision, f"`{backend}`", memory, start, rate))
    head = ["model", "precision", "backend", "memory of a worker", "cold start", "saturated, requests/s"]
    return render_table(head, rows)


CAPACITY = {"ResNet50": "ResNet50 again, 2026-11-24", "BERT": "BERT over REST, 2026-11-23"}
"""Model → how the section of its quiet run begins."""
PARTS = {
    "backends.md": [render_backends],
    "models.md": [render_fields],
    "operations.md": [render_metrics, render_reasons, render_capacity],
    "verify.md": [render_rows],
}
"""Page → what renders its parts, each between two comments; settings.md is made as a whole."""


def read_ablation() -> tuple[str, list[tuple[str, Interval, str, str]]]:
    """Of the newest raw table: the title, and (step, rate, ratio to plain TorchServe, colour) of each bar."""
    table = max((DOCS.parent / "benchmarks").glob("*/ablation-resnet50.md"))
    steps, _, _ = table.read_text(encoding="utf-8").partition("## Leave-one-out")
    rows = []
    for line in steps.splitlines():
        _, label, quoted, _, ratio, *_ = (cell.strip() for cell in f"{line}|||||".split("|"))
        numbers = re.fullmatch(r"([\d.]+) \(([\d.]+)-([\d.]+)\)", quoted)
        if numbers and not label.startswith("("):
            colour = GREY if label.startswith("plain") else COLOURS[0]
            value, low, high = map(float, numbers.groups())
            rate = Interval(value=value, low=low, high=high)
            rows.append((label, rate, ratio.partition(" ")[0].strip("–"), colour))
    return f"ResNet50: each bar has one setting more ({table.parent.name})", rows


def render_source() -> str:
    """What the README's plot is of, at its end: the bytes of a drawing are those of one matplotlib."""
    title, rows = read_ablation()
    lines = [f"{label}: {rate.low:g} {rate.value:g} {rate.high:g} {ratio}" for label, rate, ratio, _ in rows]
    return "\n".join(("<!--", title, *lines, "-->\n"))


def draw_ablation() -> bytes:
    title, rows = read_ablation()
    plot = draw_steps(rows, title=title)
    assert plot
    return plot.svg + render_source().encode()


def render(page: str) -> str:
    """The page as it should be."""
    if page == "settings.md":
        return render_settings()
    first, *rest = (DOCS / page).read_text(encoding="utf-8").split(BEGIN)
    parts = [(make(), part.partition(END)[2]) for make, part in zip(PARTS[page], rest, strict=True)]
    return first + "".join(f"{BEGIN}\n{made}\n{END}{after}" for made, after in parts)


def list_files() -> dict[Path, str]:
    """All that is made, with what it must hold."""
    pages = {DOCS / page: render(page) for page in ("settings.md", *PARTS)}
    return {**pages, **observability.list_files()}


if __name__ == "__main__":
    for file, text in list_files().items():
        file.write_text(text, encoding="utf-8")
    PLOT.write_bytes(draw_ablation())
