"""The server under test: the kit's own in a run directory, with plan and verify, or any by its URL."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from config.errors import ConfigError
from config.plan import Plan, read_plan
from loadtest.errors import LoadTestError
from server.api import INFERENCE, Client, read_tokens
from server.archives import read_archive
from server.call import make_client
from server.errors import ServerError
from server.rundir import RunDir

ROOT = Path(__file__).resolve().parent.parent
USERS_WITHOUT_PLAN = 16
"""`auto` users where no plan says how many fill the batches."""
VERIFY_SECONDS = 300


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where requests go, and what is known of who answers."""

    url: str
    """http://host:port of predictions."""
    run: RunDir | None = None
    """None for a server that is not the kit's."""
    plan: Plan | None = None

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(self.plan.models) if self.plan else ()

    @property
    def name(self) -> str:
        return str(self.run.path) if self.run else self.url

    def precision(self, model: str) -> str:
        return str(self.plan.models[model].precision.value) if self.plan else "unknown"

    def archive(self, model: str) -> Path | None:
        """The model's archive, to compute expected answers from."""
        if self.plan is None:
            return None
        return Path(self.plan.inputs.model_store) / str(self.plan.models[model].archive.value)

    def accuracy(self, model: str) -> Mapping[str, Any] | None:
        """What the accuracy gate saw at build of the precision served; None for FP32, its reference."""
        archive = self.archive(model)
        return None if archive is None else read_archive(archive).accuracy.get(self.precision(model))

    def auto_users(self, model: str) -> int:
        """Twice as many as fill a batch in every worker: one is computed while the next one gathers."""
        if self.plan is None:
            return USERS_WITHOUT_PLAN
        plan = self.plan.models[model]
        return 2 * int(plan.workers.value) * int(plan.batch_size.value)

    def token(self, seconds: float) -> str:
        """A token that outlives the run; empty without token authorisation."""
        if self.run is None or self.plan is None:
            return ""
        client = make_client(self.plan, self.run)
        tokens = read_tokens(self.run.key_file)
        if tokens.api and tokens.inference_expires < time.time() + seconds:
            _renew(client, tokens.api)
        return client.token(INFERENCE)

    def verify(self) -> dict[str, Any] | None:
        """What `make verify` finds, as JSON; None where there is no plan to compare with."""
        if self.run is None:
            return None
        command = [
            sys.executable,
            "-m",
            "server",
            "verify",
            "--format",
            "json",
            "--run-dir",
            str(self.run.path),
        ]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=VERIFY_SECONDS, check=False
        )
        try:
            return dict(json.loads(done.stdout))
        except ValueError:
            return {"good": False, "findings": [], "error": done.stderr.strip()[-500:]}


def _renew(client: Client, api_key: str) -> None:
    """A new inference token before the old one ends (TokenAuthorization.java)."""
    client._call(f"{client.management_url}/token?type={INFERENCE}", api_key, timeout_s=5.0)


def find_endpoint(*, run_dir: str, url: str) -> Endpoint:
    """By URL when one is given, else the server of the run directory, which must be up."""
    if url:
        return Endpoint(url=url.rstrip("/"))
    run = RunDir.at(run_dir)
    try:
        plan = read_plan(run.plan)
        client = make_client(plan, run)
        client.describe(next(iter(plan.models)))
    except (ConfigError, ServerError) as problem:
        raise LoadTestError(
            f"no server answers from {run.path}: {problem}; run `make serve` first"
        ) from problem
    return Endpoint(url=client.inference_url, run=run, plan=plan)
