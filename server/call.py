"""Calls a server, and prints lines that do and can be pasted as they are; the token stays in a file."""

from __future__ import annotations

import json
import random
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from config.folders import write_text_atomically
from config.plan import Plan, read_plan
from config.rules.network import SOCKETS
from server.api import Client
from server.ports import inference_url
from server.rundir import RunDir

if TYPE_CHECKING:  # pydantic, which a Python without the environment has not
    from handlers.definition import Packed


@dataclass(frozen=True, kw_only=True)
class ServerClient(Client):
    """Predictions through HAProxy, questions to the instances behind it, whose workers it shows together."""

    parts: tuple[Client, ...]
    """Of the instances."""
    models: tuple[tuple[str, ...], ...]
    """What each of them serves."""
    token_file: Path
    """What HAProxy asks for."""

    def describe(
        self, model: str, *, customized: bool = False, profile: str = "", timeout_s: float = 5.0
    ) -> dict[str, Any]:
        """Of the instances that serve it, all workers together; one of the workers when customized."""
        parts = [part for part, served in zip(self.parts, self.models, strict=True) if model in served]
        if customized:  # whoever asks for a certain worker asks until it has answered
            parts = [random.choice(parts)]
        how: dict[str, Any] = {"customized": customized, "profile": profile, "timeout_s": timeout_s}
        described = [part.describe(model, **how) for part in parts]
        workers = [worker for one in described for worker in one.get("workers", [])]
        return {**described[0], "workers": workers}

    def metrics(self) -> str:
        """Of all instances."""
        return "\n".join(part.metrics() for part in self.parts)


def make_client(plan: Plan, run: RunDir) -> ServerClient:
    """Of the whole server."""
    instances = read_instances(run, plan)
    return ServerClient(
        inference_url=inference_url(plan),
        management_url=inference_url(plan),
        certificate=plan.inputs.tls_cert,
        parts=tuple(make_instance_client(own) for _, own in instances.values()),
        models=tuple(tuple(own.models) for _, own in instances.values()),
        token_file=run.token,
    )


def make_instance_client(plan: Plan) -> Client:
    """Of one TorchServe, past HAProxy."""
    inference, management, metrics = (str(plan.properties[f"{name}_address"].value) for name in SOCKETS)
    return Client(inference_url=inference, management_url=management, metrics_url=metrics)


def read_instances(run: RunDir, plan: Plan) -> dict[str, tuple[RunDir, Plan]]:
    """Instance → its run directory and its own plan."""
    runs = {name: run.instance(name) for name in plan.instances}
    return {name: (instance, read_plan(instance.plan)) for name, instance in runs.items()}


def write_authorization(run: RunDir, client: Client) -> Path:
    """The file with the header that curl reads, for nobody else to read.

    In curl's arguments everyone could see the token (ps), in a terminal or log whoever reads that.
    """
    header = f"Authorization: Bearer {client.token()}\n"
    write_text_atomically(run.authorization, header, mode=0o600)
    return run.authorization


def render_calls(
    plan: Plan,
    archives: Mapping[str, Packed],
    samples: Mapping[str, Path],
    client: ServerClient,
    authorization: Path,
    *,
    elsewhere: bool = False,
) -> str:
    """One curl line per model, and where the token is; `elsewhere`, where our files are not, by name."""
    header = f"-H @{shlex.quote(_shorten(authorization))}"
    if elsewhere:
        header = '-H "Authorization: Bearer $TOKEN"'
    lines = []
    for name, model in plan.models.items():
        if name in samples:
            body = _render_body(archives.get(name), samples[name])
            # A proxy that the shell names would be asked for an address that is only here.
            lines.append(f"curl --noproxy '*' {header} {body} {client.inference_url}/predictions/{name}")
        else:
            lines.append(f"# {name}: no sample, because {model.archive.value} is gone from the model store")
    what, where = ("TOKEN", "the container's ") if elsewhere else ("the token", "")
    return "\n".join([*lines, f"# {what} is in {where}{_shorten(client.token_file)}"])


def _render_body(archive: Packed | None, sample: Path) -> str:
    """Without the archive, the sample of an earlier call as it is: the handler sees what it is."""
    kind = archive.definition.example.content_type if archive else ""
    if archive is None or not kind.startswith(("text/", "application/json")):
        path = _shorten(sample)
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


def _shorten(path: Path) -> str:
    """Relative to the current folder when it is below it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
