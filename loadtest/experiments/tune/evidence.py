"""What a kept result tells the race: windows that may be quoted, plans that are out and why, time spent."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from loadtest.errors import LoadTestError
from loadtest.experiments.tune.candidate import DEFAULT
from loadtest.experiments.tune.curve import Seen
from loadtest.experiments.tune.race import FINAL, RACE
from loadtest.results.kept import Kept
from loadtest.results.stats import pick
from loadtest.results.trial import KeptBlock, Series
from loadtest.trials.validity import BUSY_GENERATOR, ENDS_OF_A_SEARCH, OF_THE_MACHINE, find_doubts

START = "start"
"""A closed loop of the default, which tells where its peak may lie."""
NO_FAULT = (*ENDS_OF_A_SEARCH, *OF_THE_MACHINE, BUSY_GENERATOR)
"""Rules whose breach costs a window, and says nothing against its plan."""


def find_spent(kept: Kept) -> float:
    """Seconds of all blocks that are kept."""
    return sum(block.seconds for block in kept.blocks)


def read_start(kept: Kept) -> Series:
    """The default's closed loop; LoadTestError where it is in doubt, as all after it would be."""
    block = kept.find(START)
    if block is None:
        raise LoadTestError(f"{kept.folder.name}: nothing was measured yet")
    if DEFAULT in block.refused:
        raise LoadTestError(f"the default plan cannot be served here: {block.refused[DEFAULT]}")
    (series,) = kept.list_series(block)
    if doubts := find_doubts(series, without=ENDS_OF_A_SEARCH):
        raise LoadTestError(f"what the default plan does here cannot be told: {doubts[0]}")
    return series


def list_seen(kept: Kept) -> list[Seen]:
    """Every window of the race and the finals that may be quoted."""
    blocks = [block for block in kept.list_blocks() if block.name != START]
    models = kept.asked["payload_models"]
    return [
        seen
        for block in blocks
        for one in kept.list_series(block)
        for seen in see_windows(block, one, models)
    ]


def see_windows(block: KeptBlock, series: Series, models: Sequence[str] = ()) -> Iterator[Seen]:
    """A rate beyond the peak may fail: that is how a peak is found. `models` has each payload's model, where
    they are several: each must keep the limit, so the worst one counts."""
    latency = series.scenario.latency
    for trial, records in zip(series.trials, series.records, strict=True):
        # Each repeat alone: a disturbed one must not cost the others.
        window = replace(series, trials=(trial,), records=(records,))
        if find_doubts(window, without=ENDS_OF_A_SEARCH):
            continue
        each_ms = [1000 * one for one in split_latencies(window, models) if len(one)]
        yield Seen(
            plan=series.system,
            block=block.name,
            repeat=trial.repeat,
            rate=series.level,
            arrived=trial.arrived,
            quoted_ms=max(pick(one, latency.percentile) for one in each_ms),
            late=max(float((one > (latency.limit_ms or 0.0)).mean()) for one in each_ms),
        )


def split_latencies(series: Series, models: Sequence[str]) -> list[np.ndarray]:
    """Seconds of its first window's requests, by model in the order of their names; infinite where one
    failed."""
    trial, records = series.trials[0], series.records[0]
    window = records.within(trial.begin_s, trial.end_s)
    seconds = np.where(window.good, window.latency, math.inf)
    if not models:
        return [seconds]
    asked = np.array(models)[window.payload]
    return [seconds[asked == model] for model in sorted({*models})]


def list_done(kept: Kept) -> dict[str, tuple[str, ...]]:
    """Each block of the race and the finals → the plans that took part, or could not."""
    blocks = [block for block in kept.list_blocks() if block.name.startswith((RACE, FINAL))]
    return {block.name: (*block.systems, *block.refused) for block in blocks}


def list_out(kept: Kept) -> dict[str, str]:
    """Plan → why no figure of it may be used: refused, unverified, a worker died, wrong answers."""
    out: dict[str, str] = {}
    for block in kept.list_blocks():
        out |= block.refused
        for series in kept.list_series(block):
            if doubts := find_doubts(series, without=NO_FAULT):
                out[series.system] = str(doubts[0]).removeprefix(f"INVALID: {series.system}: ")
    return out
