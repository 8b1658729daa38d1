"""A ladder's folder with known figures, as a run would have left it."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from config.plan import Setting
from loadtest.experiments.ladder.experiment import cut_groups
from loadtest.experiments.ladder.rungs import (
    KINDS,
    SETTINGS,
    TIMING,
    Rung,
    count_users,
    find_rung,
    list_all,
    make_scenario,
)
from loadtest.results.kept import Kept
from loadtest.results.trial import Series
from tests.loadtest.making import QUIET, change_facts, make_kept, make_rows, make_series

LAYOUT: Any = SimpleNamespace(
    workers_per_model=Setting(value=2, reason="test"), cores_per_worker=Setting(value=1, reason="test")
)
"""What of a plan's layout the ladder looks at."""
REFUSED = {"without-ipex": "PRECISION=int8 needs BACKEND=ipex or openvino: eager has no int8"}
NOISE = (1.0, 1.01, 0.99)
FEW = make_rows(1.0)
"""Rates are the trials' own, and thousands of rows take seconds to write."""
BUSY = replace(QUIET, others=0.5 * QUIET.cpus * QUIET.seconds)


def disturb(series: Series) -> Series:
    """By other programs."""
    return replace(series, trials=tuple(replace(one, cpu=BUSY) for one in series.trials))


def plant_restarted(series: Series) -> Series:
    """A worker died and was started again, so that no figure of it counts."""
    return change_facts(series, pids_after=(1, 3))


def find_rate(rungs: list[Rung], name: str) -> float:
    """10 requests/s for the first rung, 1.5 × with each that follows; OpenMP changes nothing."""
    rung = find_rung(rungs, name)
    if rung.before is None:
        return 10.0
    factor = 1.0 if name in ("openmp", "with-gnu") else 1.5
    below = find_rate(rungs, rung.before)
    return below / factor if rung.left_out else below * factor


def make_rung_series(rungs: list[Rung], name: str, model: str) -> Series:
    """Three repeats; each rung has its own noise, in another order."""
    rung, rate, shift = find_rung(rungs, name), find_rate(rungs, name), len(name) % len(NOISE)
    rates = [rate * one for one in (*NOISE[shift:], *NOISE[:shift])]
    scenario = make_scenario(rung, model, TIMING)
    made = make_series(name, rates, scenario=scenario, level=float(count_users(rung)))
    few = replace(made, records=(FEW,) * len(rates))
    return change_facts(few, is_kit=not rung.is_stock)


def make_asked(model: str, rungs: list[Rung]) -> dict[str, Any]:
    return {
        "model": model,
        "archive": {"id": "abc", "weights": "random (seed 0)", "notes": ["random weights"]},
        "timing": asdict(TIMING),
        "rungs": {rung.name: asdict(rung) for rung in rungs},
    }


def write_ladder(
    results: Path,
    model: str = "resnet50",
    *,
    blocks: int | None = None,
    change: dict[str, Any] | None = None,
    kind: str = KINDS[SETTINGS],
    rungs: list[Rung] | None = None,
) -> Kept:
    """With so many blocks finished (all); `change` has other series for some rungs, by name."""
    rungs = rungs or list_all(model)
    series: dict[str, list[Series]] = {}
    refused: dict[str, dict[str, str]] = {}
    for group in cut_groups(rungs, lambda _: 1, 1e6)[:blocks]:
        up = [make_rung_series(rungs, name, model) for name in group.members if name not in REFUSED]
        series[group.name] = [(change or {}).get(one.system, lambda same: same)(one) for one in up]
        refused[group.name] = {name: why for name, why in REFUSED.items() if name in group.members}
    asked = make_asked(model, rungs)
    return make_kept(results, series, kind=kind, name=f"{kind}-{model}", asked=asked, refused=refused)
