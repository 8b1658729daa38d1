"""Writes what the pages have from code: `make docs`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from config.commands import COMMANDS, GROUPS, describe, list_read
from handlers.backends.catalogue import BACKENDS, SETS
from models.definition import ModelDefinition, Thresholds
from models.options import OPTIONS, TextOptions
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
SCOPES = {PROXY: "the reverse proxy", INSTANCE: "each instance", MODEL: "each model", WORKER: "each worker"}


def render_settings() -> str:
    """By group; its readers are those that read most of it."""
    parts = [INTRODUCTION.strip()]
    for group, title in GROUPS.items():
        described = [*describe(group)]
        readers = [
            ", ".join(command for command in COMMANDS if name in list_read(command)) for name, *_ in described
        ]
        usual = max(readers, key=readers.count)
        rows = [(f"`{name}`", values, default, text) for name, text, values, default in described]
        head = f"Read by make {usual}.\n\n" * (readers.count(usual) > 1)
        parts.append(
            f"## {title}\n\n{head}" + render_table(["setting", "values", "default", "meaning"], rows).rstrip()
        )
    return "\n\n".join(parts) + "\n"


def render_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(
        f"| {' | '.join(' '.join(cell.split()).replace('|', '/').replace('<', '&lt;') for cell in line)} |\n"
        for line in lines
    )


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
    """Name, default and meaning of each field that a person may write."""
    for name, one in model.model_fields.items():
        if name == "path":
            continue
        default = "required" if one.default is PydanticUndefined else show(one.default)
        yield f"`{prefix}{name}`", default, (one.description or "").split(". ")[0].rstrip(".")


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
        own = [
            row
            for row in list_fields(options, "options.")
            if row[0].strip("`")[8:] in vars(options)["__annotations__"]
        ]
        rows += [(f"{name} ({label})", *rest) for name, *rest in own]
    return render_table(["field", "default", "meaning"], rows)


def render_rows() -> str:
    parts = []
    for scope, title in SCOPES.items():
        rows = [[f"`{row.name}`", row.source] for row in ROWS if row.scope == scope]
        parts.append(render_table([f"of {title}", "where the actual value is read"], rows))
    return "\n".join(parts)


PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "backends.md": {"backends": render_backends},
    "models.md": {"model-yaml": render_fields},
    "verify.md": {"verify": render_rows},
}
"""Page → its parts between two comments, and what renders each; settings.md is made as a whole."""


def render(page: str) -> str:
    """The page as it should be."""
    if page == "settings.md":
        return render_settings()
    text = (DOCS / page).read_text(encoding="utf-8")
    for name, make in PARTS[page].items():
        head, tail = f"<!-- made by `make docs`: {name} -->\n", "<!-- end -->"
        before, found, rest = text.partition(head)
        assert found, f"{page}: {name}"
        text = f"{before}{head}\n{make()}\n{tail}{rest.partition(tail)[2]}"
    return text


if __name__ == "__main__":
    for page in ("settings.md", *PARTS):
        (DOCS / page).write_text(render(page), encoding="utf-8")
