"""Prints lines that call the models and can be pasted as they are; the token stays in a file."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from config.plan import Plan
from handlers.definition import Packed
from server.api import bearer
from server.archives import read_archives_left, write_samples
from server.ports import inference_url
from server.rundir import RunDir
from server.tokens import read_token, write_private


def render_calls(plan: Plan, run: RunDir, *, elsewhere: bool = False) -> str:
    """One curl line per model, and where the token is. `elsewhere`: the lines are pasted where our files are
    not, so they name $TOKEN."""
    archives = read_archives_left(plan)
    samples = write_samples(plan, archives, run.samples)
    header = f"-H @{shlex.quote(shorten(write_authorization(run)))}"
    if elsewhere:
        header = '-H "Authorization: Bearer $TOKEN"'
    lines = []
    for name, model in plan.models.items():
        if name in samples:
            body = _render_body(archives.get(name), samples[name])
        elif not model.kit:
            lines.append(f"# {name}: its archive has no example; FILE is a request of yours")
            body = "-T FILE"
        else:
            gone = model.archives[model.version]
            lines.append(f"# {name}: no sample, because {gone} is gone from the model store")
            continue
        # A proxy that the shell names would be asked for an address that is only here.
        lines.append(f"curl --noproxy '*' {header} {body} {inference_url(plan)}/predictions/{name}")
    what, where = ("TOKEN", "the container's ") if elsewhere else ("the token", "")
    return "\n".join([*lines, f"# {what} is in {where}{shorten(run.token)}"])


def write_authorization(run: RunDir) -> Path:
    """The file with the header that curl reads, for nobody else to read.

    In curl's arguments everyone could see the token (ps), in a terminal or log whoever reads that.
    """
    header = bearer(read_token(run.token))
    write_private(run.authorization, "\n".join(f"{name}: {value}" for name, value in header.items()))
    return run.authorization


def _render_body(archive: Packed | None, sample: Path) -> str:
    """Without the archive, the sample of an earlier call as it is: the handler sees what it is."""
    kind = archive.definition.example.content_type if archive else ""
    if archive is None or not kind.startswith(("text/", "application/json")):
        path = shorten(sample)
        literal = "-g " if set(path) & set("[]{}") else ""  # else curl reads a pattern of names
        return f"{literal}-T {shlex.quote(path)}"
    text = archive.body.decode("utf-8", errors="replace").strip()
    try:
        body = json.loads(text)
    except ValueError:
        body = text
    if kind.startswith("text/") and not isinstance(body, dict):
        body = {"text": text}
    return f'-H "Content-Type: application/json" -d {shlex.quote(json.dumps(body, ensure_ascii=False))}'


def shorten(path: Path) -> str:
    """Relative to the current folder when it is below it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
