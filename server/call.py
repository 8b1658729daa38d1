"""Prints lines that call the models and can be pasted as they are; the token stays in a file."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from config.plan import Plan
from handlers.definition import Packed
from server.archives import read_archives_left
from server.ports import inference_url
from server.rundir import RunDir
from server.tokens import read_token, write_private


def render_calls(plan: Plan, run: RunDir, *, elsewhere: bool = False) -> str:
    """One curl line per model, and where the token is. `elsewhere`: the lines are pasted where our files are
    not, so they name $TOKEN."""
    archives, lines = read_archives_left(plan), []
    # In curl's arguments everyone could see the token (ps), in a terminal or log whoever reads that.
    write_private(run.authorization, f"Authorization: Bearer {read_token(run.token)}")
    header = f"-H @{shlex.quote(shorten(run.authorization))}"
    if elsewhere:
        header = '-H "Authorization: Bearer $TOKEN"'
    run.samples.mkdir(parents=True, exist_ok=True)
    for name, model in plan.models.items():
        if name in archives:
            body = _render_body(
                archives[name], run.samples / f"{name}-{archives[name].definition.example.file}"
            )
        elif not model.kit:
            lines.append(f"# {name}: its archive has no example; FILE is a request of yours")
            body = "-T FILE"
        elif left := sorted(run.samples.glob(f"{name}-*")):  # of an earlier call: the handler sees what it is
            body = _render_file(left[0])
        else:
            gone = model.archives[model.version]
            lines.append(f"# {name}: no sample, because {gone} is gone from the model store")
            continue
        # A proxy that the shell names would be asked for an address that is only here.
        lines.append(f"curl --noproxy '*' {header} {body} {inference_url(plan)}/predictions/{name}")
    what, where = ("TOKEN", "the container's ") if elsewhere else ("the token", "")
    return "\n".join([*lines, f"# {what} is in {where}{shorten(run.token)}"])


def _render_body(archive: Packed, sample: Path) -> str:
    """The example's input, from a file where it is no text."""
    sample.write_bytes(archive.body)
    kind = archive.definition.example.content_type
    if not kind.startswith(("text/", "application/json")):
        return _render_file(sample)
    text = archive.body.decode("utf-8", errors="replace").strip()
    try:
        body = json.loads(text)
    except ValueError:
        body = text
    if kind.startswith("text/") and not isinstance(body, dict):
        body = {"text": text}
    return f'-H "Content-Type: application/json" -d {shlex.quote(json.dumps(body, ensure_ascii=False))}'


def _render_file(file: Path) -> str:
    path = shorten(file)
    literal = "-g " if set(path) & set("[]{}") else ""  # else curl reads a pattern of names
    return f"{literal}-T {shlex.quote(path)}"


def shorten(path: Path) -> str:
    """Relative to the current folder when it is below it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
