"""What a kept result tells the race: windows that may be quoted, plans that are out and why, time spent."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from loadtest.errors import LoadTestError
from loadtest.experiments.tune.candidate import DEFAULT, Layout
from loadtest.experiments.tune.curve import Seen
from loadtest.experiments.tune.pace import WORKER, Cost, find_cpu_s, find_paces, list_ratios
from loadtest.experiments.tune.race import GRID, RACE
from loadtest.experiments.tune.raced import FINAL
from loadtest.experiments.tune.space import Points, Space, find_overheads, read_space
from loadtest.results.kept import Kept
from loadtest.results.stats import pick
from loadtest.results.trial import KeptBlock, Series, Trial
from loadtest.simulation.overhead import LivePoint
from loadtest.trials.validity import BUSY_GENERATOR, COUNT, ENDS_OF_A_SEARCH, OF_THE_MACHINE, find_doubts

START, SATURATED = "start", "saturated"
"""Blocks that are no part of the race."""
NO_FAULT = (*ENDS_OF_A_SEARCH, *OF_THE_MACHINE, BUSY_GENERATOR)
"""Rules whose breach costs a window, and says nothing against its plan."""


def find_spent(kept: Kept) -> float:
    """Seconds of all blocks that are kept."""
    return sum(block.seconds for block in kept.blocks)


def list_points(space: Space, kept: Kept) -> Points:
    """What `start` measured, by layout; LoadTestError where the default is in doubt, as all after it would
    be."""
    block = kept.find(START)
    assert block is not None  # measured first
    if DEFAULT in block.refused:
        raise LoadTestError(f"the default plan cannot be served here: {block.refused[DEFAULT]}")
    every = [(series, _find_doubt(series)) for series in kept.list_series(block)]
    for series, doubt in every:
        if doubt and series.system == DEFAULT:
            raise LoadTestError(f"what the default plan does here cannot be told: {doubt}")
    good = {(series.system, series.scenario.is_open): series for series, doubt in every if not doubt}
    return tuple(
        _make_point(space, opened, good[name, False])
        for (name, is_open), opened in good.items()
        if is_open and (name, False) in good
    )


def _find_doubt(series: Series) -> str:
    if doubts := find_doubts(series, without=(COUNT,)):
        return str(doubts[0])
    seen = find_cpu_s(series.trials[0], WORKER)
    return "" if seen else f"the CPU time of its workers was not seen ({series.system})"


def _make_point(space: Space, opened: Series, closed: Series) -> tuple[Layout, LivePoint]:
    one, trial, saturated = space.find_candidate(opened.system), opened.trials[0], closed.trials[0]
    assert saturated.cpu  # looked at before
    roles = [role for role in saturated.cpu.by_role if role != WORKER]
    point = space.make_point(
        one,
        due=tuple(opened.records[0].begun.tolist()),
        begin_s=trial.begin_s,
        end_s=trial.end_s,
        p50_s=pick(list_latencies(opened), 50),
        worker_s=find_cpu_s(trial, WORKER) / one.cores_per_worker,
        other_s=find_cpu_s(saturated, *roles),
    )
    return one.layout, point


def list_latencies(series: Series) -> np.ndarray:
    """Seconds of its first window's requests; infinite where one failed."""
    return split_latencies(series)[0]


def split_latencies(series: Series, models: Sequence[str] = ()) -> list[np.ndarray]:
    """The same by model, in the order of their names; `models` has each payload's."""
    trial, records = series.trials[0], series.records[0]
    window = records.within(trial.begin_s, trial.end_s)
    seconds = np.where(window.good, window.latency, math.inf)
    if not models:
        return [seconds]
    asked = np.array(models)[window.payload]
    return [seconds[asked == model] for model in sorted({*models})]


def list_seen(kept: Kept) -> list[Seen]:
    """Every window of the race, the finals and the libraries that may be quoted, each with the machine's
    pace; as if it were always the same where a window does not tell."""
    blocks = [block for block in kept.list_blocks() if block.name not in (START, SATURATED)]
    found = [pair for block in blocks for one in kept.list_series(block) for pair in see_windows(block, one)]
    if not found:
        return []
    space = read_space(kept.asked)
    overheads = find_overheads(space, list_points(space, kept))
    ratios = list_ratios(space, overheads, (trial for _, trial in found))
    seen = [one for one, _ in found]
    if ratios is None:
        return seen
    costs = [
        Cost(plan=one.plan, group=one.group, ratio=ratio) for one, ratio in zip(seen, ratios, strict=True)
    ]
    return [replace(one, pace=pace) for one, pace in zip(seen, find_paces(costs), strict=True)]


def see_windows(block: KeptBlock, series: Series, models: Sequence[str] = ()) -> Iterator[tuple[Seen, Trial]]:
    """A rate beyond the peak may fail: that is how a peak is found. `models` has each payload's model, where
    they are several: each must keep the limit, so the worst one counts."""
    latency = series.scenario.latency
    for window in list_windows(series):
        if find_doubts(window, without=ENDS_OF_A_SEARCH):
            continue
        each_ms = [1000 * one for one in split_latencies(window, models) if len(one)]
        (trial,) = window.trials
        seen = Seen(
            plan=series.system,
            block=block.name,
            repeat=trial.repeat,
            rate=series.level,
            arrived=trial.arrived,
            quoted_ms=max(pick(one, latency.percentile) for one in each_ms),
            late=max(float((one > (latency.limit_ms or 0.0)).mean()) for one in each_ms),
        )
        yield seen, trial


def list_windows(series: Series) -> list[Series]:
    """Each repeat alone: a disturbed one must not cost the others."""
    pairs = zip(series.trials, series.records, strict=True)
    return [replace(series, trials=(trial,), records=(rows,)) for trial, rows in pairs]


def list_done(kept: Kept) -> dict[str, tuple[str, ...]]:
    """Each block of the race or the grid, and the finals → the plans that took part, or could not."""
    blocks = [block for block in kept.list_blocks() if block.name.startswith((RACE, GRID, FINAL))]
    return {block.name: (*block.systems, *block.refused) for block in blocks}


def list_tried(kept: Kept) -> list[str]:
    """Every plan that took part, or could not, each once."""
    return list(dict.fromkeys(name for plans in list_done(kept).values() for name in plans))


def list_out(kept: Kept) -> dict[str, str]:
    """Plan → why no figure of it may be used: refused, unverified, a worker died, wrong answers."""
    out: dict[str, str] = {}
    for block in kept.list_blocks():
        out |= block.refused
        for series in kept.list_series(block):
            if doubts := find_doubts(series, without=NO_FAULT):
                out[series.system] = str(doubts[0]).removeprefix(f"INVALID: {series.system}: ")
    return out
