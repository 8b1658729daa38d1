"""What each rung is loaded with: a closed loop, long enough for a slow server, its rate free of bursts."""

from __future__ import annotations

from loadtest.experiments.ladder.rungs import BERT, DENSENET121, RESNET50, Rung
from loadtest.experiments.ladder.settings import FILLED, UNPINNED
from loadtest.scenarios.scenario import Arrival, Scenario
from loadtest.trials.block import Timing

PAYLOADS = {RESNET50: "cuts", DENSENET121: "cuts", BERT: "texts-grouped"}
SINGLE_USERS = 8
"""Of servers without batches: each worker has requests waiting; more would only wait longer."""
STOCK_USERS = 32
"""A full batch of stock's one worker."""
BATCH_USERS = 64
"""Two full batches of 16 for each of two workers, as in `make targets`: one is computed, one waits."""
RAMP_S = 1.0
"""Queues fill, beside the first round, which is left out."""
ROUNDS = 2
"""Answers of each user in a window, at least."""
UNSTEADY_STRETCH = 4
"""Stock as it comes has more threads than CPUs, which wait for each other spinning: for seconds at a time it
gives a fifth of its rate (seen), so it takes longer to tell its mean."""
PARTS = 2
"""Of such a window, each long enough to hold several of those seconds."""
TIMEOUT_S = 120.0


TIMING = Timing(seconds=3.75, warm_up_s=1.5, repeats=3)
"""BERT's servers need half a minute each to start: with this its ladder takes 30 minutes on two cores."""


def count_users(rung: Rung) -> int:
    """Requests under way at any time."""
    if rung.settings.batches != FILLED:
        return SINGLE_USERS
    return STOCK_USERS if rung.is_stock else BATCH_USERS


def is_unsteady(rung: Rung) -> bool:
    """More threads than CPUs."""
    return rung.is_stock and rung.settings.workers == UNPINNED


def make_scenario(rung: Rung, model: str, timing: Timing) -> Scenario:
    """The first payloads come first, each time, so that all servers are sent the same."""
    stretch, parts = (UNSTEADY_STRETCH, PARTS) if is_unsteady(rung) else (1, 1)
    return Scenario(
        name=f"ladder-{model}",
        model=model,
        payloads=PAYLOADS[model],
        arrival=Arrival(loop="closed"),
        steps=(count_users(rung),),
        warm_up_s=RAMP_S,
        duration_s=stretch * timing.seconds,
        repeats=timing.repeats,
        timeout_s=TIMEOUT_S,
        shuffled=False,
        leave_out_first_round=True,
        least_rounds=ROUNDS,
        parts=parts,
    )
