"""Prints lines that call the models and can be pasted as they are; the token stays in a file."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping
from pathlib import Path

from config.atomic import write_text_atomically
from config.plan import Plan, read_plan
from server.api import INFERENCE, MANAGEMENT, Client, read_tokens
from server.archives import Archive
from server.front import DoorClient
from server.ports import inference_url, management_url
from server.rundir import RunDir


def make_client(plan: Plan, run: RunDir) -> Client:
    """A client of the plan's server: through its door, where it has one."""
    if plan.instances:
        return _make_door_client(plan, run)
    return Client(
        inference_url=inference_url(plan), management_url=management_url(plan), key_file=run.key_file
    )


def _make_door_client(plan: Plan, run: RunDir) -> DoorClient:
    instances = read_instances(run, plan)
    return DoorClient(
        inference_url=inference_url(plan),
        management_url=inference_url(plan),
        key_file=run.key_file,
        certificate=plan.inputs.tls_cert,
        parts=tuple(make_client(own, folder) for folder, own in instances.values()),
        models=tuple(tuple(own.models) for _, own in instances.values()),
        token_file=run.token,
    )


def read_instances(run: RunDir, plan: Plan) -> dict[str, tuple[RunDir, Plan]]:
    """Instance → its run directory and its own plan."""
    runs = {name: run.instance(name) for name in plan.instances}
    return {name: (instance, read_plan(instance.plan)) for name, instance in runs.items()}


def write_authorization(run: RunDir, client: Client) -> Path | None:
    """The file with the header that curl reads, for nobody else to read; None when tokens are off.

    In curl's arguments everyone could see the token (ps), in a terminal or log whoever reads that.
    """
    token = client.token(INFERENCE)
    client.token(MANAGEMENT)  # renewed here too, so that the key file a person reads is fresh
    if not token:
        return None
    write_text_atomically(run.authorization, f"Authorization: Bearer {token}\n", mode=0o600)
    return run.authorization


def render_calls(
    plan: Plan,
    archives: Mapping[str, Archive],
    samples: Mapping[str, Path],
    client: Client,
    authorization: Path | None,
    *,
    elsewhere: bool = False,
) -> str:
    """One curl line per model, and where the token is; `elsewhere`, where our files are not, by name."""
    header = f"-H @{shlex.quote(_shorten(authorization))} " if authorization else ""
    if elsewhere and authorization:
        header = '-H "Authorization: Bearer $TOKEN" '
    lines = []
    for name, model in plan.models.items():
        if name in samples:
            body = _render_body(archives.get(name), samples[name])
            # A proxy that the shell names would be asked for an address that is only here.
            lines.append(f"curl --noproxy '*' {header}{body} {client.inference_url}/predictions/{name}")
        else:
            lines.append(f"# {name}: no sample, because {model.archive.value} is gone from the model store")
    note = _render_token_note(client, elsewhere=elsewhere)
    return "\n".join([*lines, *note])


def _render_body(archive: Archive | None, sample: Path) -> str:
    """Without the archive, the sample of an earlier call as it is: the handler sees what it is."""
    if archive is None or archive.canary.content_type.startswith("image/"):
        path = _shorten(sample)
        literal = "-g " if set(path) & set("[]{}") else ""  # else curl reads a pattern of names
        return f"{literal}-T {shlex.quote(path)}"
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


def _render_token_note(client: Client, *, elsewhere: bool) -> list[str]:
    if isinstance(client, DoorClient):
        what, where = ("TOKEN", "the container's ") if elsewhere else ("the token", "")
        return [f"# {what} is in {where}{_shorten(client.token_file)}"]
    tokens = read_tokens(client.key_file)
    if not tokens.api:
        return []
    until = time.strftime("%Y-%m-%d %H:%M", time.localtime(tokens.inference_expires))
    return [f"# the token is good until {until} or the next start; a new one: make status"]
