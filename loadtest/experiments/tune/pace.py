"""The machine's pace in each window: CPU seconds of the workers for a request, to those simulated.

A shared host changes its speed by a fifth within a minute, and counts no stolen time (seen). A server near
its peak then keeps the limit in one window and breaks it in the next, whatever its plan. What its workers
took for a request in that very window tells how slow the machine was; so the rate that came in it counts as
that which would load the machine as much at its usual pace. Simulated seconds stand beside the live ones
because a request's share of a batch is cheaper where batches are larger, which is the plan's doing.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from loadtest.experiments.tune.space import Overheads, Space
from loadtest.results.trial import Trial
from loadtest.simulation.search import try_rate

WORKER = "worker"
"""In the CPU time of a trial, by role."""
ROUNDS = 20
"""Of the polish: the two kinds of medians settle within a few."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one window tells."""

    plan: str
    """What it costs more or less than simulated in all of its windows is its own."""
    group: Hashable
    """Windows that were measured within a minute."""
    ratio: float
    """Seconds to simulated seconds."""


def list_ratios(space: Space, overheads: Overheads, trials: Iterable[Trial]) -> list[float] | None:
    """Of windows of open loops; None where one does not tell."""
    ratios = [find_ratio(space, overheads, trial) for trial in trials]
    known = [ratio for ratio in ratios if ratio is not None]
    return known if len(known) == len(ratios) else None


def find_ratio(space: Space, overheads: Overheads, trial: Trial) -> float | None:
    """Of one window of an open loop; None where the workers' time or no answer was seen."""
    spent = find_cpu_s(trial, WORKER)
    return spent / _simulate(space, overheads, trial.system, float(f"{trial.arrived:.2g}")) if spent else None


def find_cpu_s(trial: Trial, *roles: str) -> float:
    """CPU seconds of these for a request that was answered; 0 where they, or no answer, were seen."""
    if trial.cpu is None or not trial.rate:
        return 0.0
    return sum(trial.cpu.by_role.get(role, 0.0) for role in roles) / (trial.rate * trial.cpu.seconds)


@functools.lru_cache(maxsize=512)
def _simulate(space: Space, overheads: Overheads, name: str, rate: float) -> float:
    """Seconds of a worker for a request; they hardly differ between near rates."""
    one = space.find_candidate(name)
    return try_rate(space.simulate(one), space.find_times(one, overheads), rate, space.limit).worker_s


def find_paces(costs: Sequence[Cost]) -> list[float]:
    """Above 1: the machine was slower than usual; by medians of plans and of groups, in turn, so that a plan
    that met a slow minute is not taken for a dear one."""
    logs = np.log([one.ratio for one in costs])
    plans, groups = [one.plan for one in costs], [one.group for one in costs]
    own, common = np.zeros(len(costs)), np.zeros(len(costs))
    for _ in range(ROUNDS):
        own = take_medians(logs - common, plans)
        common = take_medians(logs - own, groups)
    usual = np.median(logs - own) if len(costs) else 0.0
    return [float(one) for one in np.exp(logs - own - usual)]


def take_medians(values: np.ndarray, keys: Sequence[Hashable]) -> np.ndarray:
    """In place of each value the median of those with its key."""
    places = {key: [place for place, other in enumerate(keys) if other == key] for key in set(keys)}
    medians = {key: float(np.median(values[own])) for key, own in places.items()}
    return np.array([medians[key] for key in keys])
