"""Prints lines that call the models and can be pasted as they are."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping
from pathlib import Path

from config.plan import Plan
from server.api import INFERENCE, MANAGEMENT, Client, read_tokens
from server.archives import Archive
from server.ports import inference_url, management_url
from server.rundir import RunDir


def make_client(plan: Plan, run: RunDir) -> Client:
    """A client of the plan's server."""
    return Client(
        inference_url=inference_url(plan), management_url=management_url(plan), key_file=run.key_file
    )


def render_calls(
    plan: Plan,
    archives: Mapping[str, Archive],
    samples: Mapping[str, Path],
    client: Client,
    *,
    hide_token: bool = False,
) -> str:
    """One curl line per model, and how to get a new token; hidden, a token stays out of a container's log."""
    token = client.token(INFERENCE)
    client.token(MANAGEMENT)  # renewed here too, so that the key file a person reads is fresh
    shown = "$TOKEN" if hide_token else token
    header = f'-H "Authorization: Bearer {shown}" ' if token else ""
    bodies = {name: _render_body(archives[name], samples[name]) for name in plan.models}
    lines = [
        f"curl {header}{body} {client.inference_url}/predictions/{name}" for name, body in bodies.items()
    ]
    note = ["# TOKEN is the one you gave"] if hide_token else _render_token_note(client)
    return "\n".join([*lines, *note])


def _render_body(archive: Archive, sample: Path) -> str:
    if archive.canary.content_type.startswith("image/"):
        return f"-T {shlex.quote(_shorten(sample))}"
    body = json.dumps({"text": _read_text(archive)}, ensure_ascii=False)
    return f'-H "Content-Type: application/json" -d {shlex.quote(body)}'


def _read_text(archive: Archive) -> str:
    """The canary's text, whether it is sent as plain text or as JSON."""
    text = archive.canary.body.decode("utf-8", errors="replace")
    try:
        parsed = json.loads(text)
    except ValueError:
        return text.strip()
    found = parsed.get("text", text) if isinstance(parsed, dict) else text
    return str(found[0] if isinstance(found, list) else found)


def _shorten(path: Path) -> str:
    """Relative to the current folder when it is below it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _render_token_note(client: Client) -> list[str]:
    tokens = read_tokens(client.key_file)
    if not tokens.api:
        return []
    until = time.strftime("%Y-%m-%d %H:%M", time.localtime(tokens.inference_expires))
    return [f"# the token is good until {until} or the next start; a new one: make curl"]
