"""Single figures of a system, for whoever compares them; None where nobody tells."""

from __future__ import annotations

from loadtest.experiments.profile.evidence import PLAIN, THREADS, Evidence
from loadtest.experiments.profile.threads import WorkerUse
from loadtest.results.ratios import find_ratio
from loadtest.results.stats import Interval


def compare_rates(other: Evidence, served: Evidence) -> Interval:
    """Served to other, without any collector."""
    rates = {one.name: one.series[PLAIN].turn_rates for one in (other, served)}
    return find_ratio(rates, served.name, other.name)


def find_waiting(worker: WorkerUse) -> float | None:
    """Percent of the time in which its busy threads could have run, spent in a CPU's queue."""
    told = [(use.cores, use.waiting) for use in worker.busy if use.waiting is not None]
    ready = sum(cores / max(1e-9, 1 - waiting) for cores, waiting in told)
    return 100 * (1 - sum(cores for cores, _ in told) / ready) if ready else None


def count_faults(one: Evidence) -> float | None:
    """Minor faults for each request."""
    series = one.series.get(THREADS)
    rate = sum(series.turn_rates) / len(series.turn_rates) if series else 0.0
    return sum(worker.minor_faults for worker in one.workers) / rate if rate and one.workers else None


def count_reorders(one: Evidence) -> float | None:
    """Of activations, for each convolution or product; without convolutions there is no format to lose, and
    attention has small reorders of its own."""
    if not any(line.kind == "convolution" for line in one.lines):
        return None
    computed = sum(line.calls for line in one.lines if line.computes)
    moved = sum(line.calls for line in one.lines if line.kind == "reorder" and not line.moves_weights)
    return moved / computed if computed else None


def find_fused(one: Evidence) -> float | None:
    """Percent of the convolutions and products with something fused behind them."""
    calls = sum(line.calls for line in one.lines if line.computes)
    fused = sum(line.calls for line in one.lines if line.computes and line.post_ops)
    return 100 * fused / calls if calls else None
