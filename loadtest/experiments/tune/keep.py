"""Writes what was found as tuned.json, which `make serve` goes by from then on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from config.plan import Inputs
from config.rules.requests import list_auto
from config.topology import read_topology
from config.tuned import TUNED_FILE, Tuned, describe_present, write_tuned
from handlers.engines import name_variant
from loadtest.experiments.tune.outcome import choose, describe_gain, find_outcome
from loadtest.results.kept import Kept


def keep_tuned(kepts: Sequence[Kept], inputs: Inputs, run_dir: Path) -> Path:
    """One file for all models that were tuned; `inputs` are what was planned for all of them."""
    found = [(find_outcome(kept), kept) for kept in kepts]
    chosen: dict[str, Any] = {}
    for outcome, kept in found:
        numbers = choose(outcome, alone=len(inputs.models) == 1)
        if numbers and list_auto(inputs):
            numbers["variant"] = {outcome.model: name_variant(kept.asked["engine"], kept.asked["precision"])}
        for name, value in numbers.items():
            chosen[name] = {**chosen.get(name, {}), **value} if isinstance(value, dict) else value
    limit = kepts[0].asked["limit"]
    tuned = Tuned(
        made_for=describe_present(read_topology(), inputs),
        limit={"percentile": limit["percentile"], "ms": limit["ms"]},
        chosen=chosen,
        evidence={one.model: describe_gain(one, f"results/{kept.folder.name}") for one, kept in found},
    )
    file = run_dir / TUNED_FILE
    write_tuned(file, tuned)
    return file
