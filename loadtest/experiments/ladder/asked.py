"""Everything a ladder's figures depend on, as plain values: it is resumed where all of it is the same."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import cattrs

from config.plan import Layout, Plan, Setting
from loadtest.experiments.ladder.load import count_users
from loadtest.experiments.ladder.rungs import Rung
from loadtest.experiments.ladder.settings import make_arguments
from loadtest.payloads import Payload
from loadtest.results.host import read_host
from loadtest.results.kept import Kept
from loadtest.trials.block import Timing
from server.archives import read_archive


def make_asked(
    model: str,
    plan: Plan,
    archive: Path,
    *,
    payloads: Sequence[Payload],
    rungs: Sequence[Rung],
    timing: Timing,
) -> dict[str, Any]:
    """Without paths: the same machine may hold them elsewhere."""
    known = read_archive(archive)
    return {
        "model": model,
        "host": {name: value for name, value in read_host().items() if name != "load_average"},
        "archive": {"id": known.archive_id, "weights": known.weights, "notes": list(known.notes)},
        "payloads": hashlib.sha256("".join(one.digest for one in payloads).encode()).hexdigest()[:16],
        "plan": read_values({**vars(plan.models[model]), **vars(plan.layout)}),
        "environment": read_values({**plan.environment, **plan.worker_environment}),
        "timing": asdict(timing),
        "arguments": {
            rung.name: f"{describe_how(rung, plan.layout, model)}; {count_users(rung)} users"
            for rung in rungs
            if not rung.reason
        },
        "rungs": {rung.name: asdict(rung) for rung in rungs},
    }


def list_asked_rungs(kept: Kept) -> list[Rung]:
    """As they were when the ladder began."""
    return [cattrs.structure(raw, Rung) for raw in kept.asked["rungs"].values()]


def describe_how(rung: Rung, layout: Layout, model: str) -> str:
    """Its arguments."""
    return rung.label if rung.is_stock else " ".join(make_arguments(rung.settings, layout, model))


def read_values(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What was decided, without its reasons; where the preloaded libraries lie does not matter."""
    decided = {name: one for name, one in settings.items() if isinstance(one, Setting)}
    return {name: one.value for name, one in decided.items() if name != "LD_PRELOAD"}
