"""`make tune MIX=`: several models on one machine, on all cores together or each on cores of its own.

Every split of the cores is simulated, each model alone on its part with the times of its batches; the best
few meet the default, where all models have all cores, under one open loop that holds the mix. A rate keeps
the limit where each model does. Rounds and finals are the race's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from config.plan import Inputs
from config.rules.cores import render_cores
from config.topology import Core, read_topology
from config.tuned import Tuned, describe_present
from loadtest.errors import LoadTestError
from loadtest.experiments.tune.candidate import DEFAULT
from loadtest.experiments.tune.curve import Seen, find_peak
from loadtest.experiments.tune.evidence import find_spent, list_done, list_out, list_tried, see_windows
from loadtest.experiments.tune.experiment import find_cost, find_final_cost, make_turns
from loadtest.experiments.tune.race import (
    FIRST_RATES,
    RACE,
    Race,
    Stage,
    scale_rates,
)  # fmt: skip
from loadtest.experiments.tune.raced import FINAL, Raced, RacedPlan, compare_finals, list_finals
from loadtest.experiments.tune.windows import Windows
from loadtest.results.kept import Kept
from loadtest.results.stats import Interval
from loadtest.simulation.search import Limit
from loadtest.systems.fleet import Member
from loadtest.trials.block import Block, Experiment, Verdict

KIND = "tune-mix"
MOST_SPLITS = 3
"""That meet the default."""
EXAMPLE = "resnet50:0.7,bert:0.3"


def parse_mix(text: str, models: Sequence[str]) -> dict[str, float]:
    """Model → share of the requests, 1 in sum; LoadTestError for what is none."""
    pairs = [part.partition(":") for part in text.replace(",", " ").split()]
    named = [name for name, _, _ in pairs]
    if len(models) < 2 or sorted(named) != sorted(models):
        raise LoadTestError(
            f"MIX must give each of MODELS its share, two or more, as {EXAMPLE}: got {text} for "
            f"{', '.join(models)}"
        )
    parts = {name: _parse_share(share, text) for name, _, share in pairs}
    return {name: part / sum(parts.values()) for name, part in sorted(parts.items())}


def _parse_share(share: str, text: str) -> float:
    try:
        part = float(share)
    except ValueError:
        part = 0.0
    if not 0 < part < float("inf"):
        raise LoadTestError(f"MIX must be numbers above 0 by model, as {EXAMPLE}: got {text}")
    return part


def list_splits(cores: Sequence[Core], models: Sequence[str]) -> list[dict[str, tuple[Core, ...]]]:
    """Each way to give every model at least one core, neighbours together."""
    borders = itertools.combinations(range(1, len(cores)), len(models) - 1)
    runs = ([0, *inner, len(cores)] for inner in borders)
    return [
        {name: tuple(cores[a:b]) for name, (a, b) in zip(models, itertools.pairwise(run), strict=True)}
        for run in runs
    ]


def name_split(split: Mapping[str, Sequence[Core]]) -> str:
    """As CORES is given."""
    return render_cores({name: [cpu for core in own for cpu in core.siblings] for name, own in split.items()})


def predict_shared(peaks: Mapping[str, float], shares: Mapping[str, float]) -> float:
    """From each model's peak alone on all cores, as if each request took its part of the machine for itself:
    what models take from each other while both compute, nobody has timed."""
    return 1 / sum(shares[name] / peak if peak else math.inf for name, peak in peaks.items())


def predict_split(peaks: Mapping[str, float], shares: Mapping[str, float]) -> float:
    """From each model's peak on its own cores: the mix at which the first of them has reached it."""
    return min(peak / shares[name] for name, peak in peaks.items())


def choose_splits(predicted: Mapping[str, float]) -> dict[str, float]:
    """The best few that can keep the limit at all."""
    ranked = sorted(predicted.items(), key=lambda item: -item[1])
    return {name: peak for name, peak in ranked[:MOST_SPLITS] if peak}


@dataclass(frozen=True, kw_only=True)
class Course:
    """What is measured next follows from what is kept."""

    windows: Windows
    predicted: Mapping[str, float]
    """Plan → simulated peak of the mix, requests a second; the default among them."""
    payload_models: Sequence[str]
    """Of each payload."""
    budget_s: float
    most_up: int
    """Servers that the memory holds."""
    make_member: Callable[[str], Member]

    def next_block(self, kept: Kept) -> Block | None:
        stage = self._next_stage(kept)
        return make_turns(stage, self.windows, self.make_member) if stage else None

    def _next_stage(self, kept: Kept) -> Stage | None:
        race = make_race(kept, self.predicted, self.windows.limit, self.most_up)
        left = max(0.0, self.budget_s - find_spent(kept))

        def can_afford(stage: Stage, keep_finals: bool) -> bool:
            later = find_final_cost(self.predicted, self.windows) if keep_finals else 0.0
            return find_cost(stage, self.windows) + later <= left

        return race.next_stage(list_mixed(kept, self.payload_models), can_afford)

    def estimate(self, kept: Kept) -> float:
        """What is left of the budget, or what is never saved: a round, the first final, or the next one."""
        left = self.budget_s - find_spent(kept)
        if kept.find(f"{FINAL}-1"):
            stage = self._next_stage(kept)
            return max(left, find_cost(stage, self.windows)) if stage else 0.0
        rates = scale_rates(max(self.predicted.values()), FIRST_RATES)
        first = Stage(name=RACE, rates=dict.fromkeys(self.predicted, rates))
        needed = 0.0 if kept.blocks else find_cost(first, self.windows)
        return max(left, needed + find_final_cost(self.predicted, self.windows))


def make_experiment(course: Course, asked: Mapping[str, Any]) -> Experiment:
    """`asked` holds all that decides what is measured, as plain values."""
    return Experiment(
        kind=KIND,
        name=KIND,
        asked=asked,
        next_block=course.next_block,
        estimate=course.estimate,
        paced=False,
    )


def make_race(kept: Kept, predicted: Mapping[str, float], limit: Limit, most_up: int = 99) -> Race:
    return Race(
        predicted=predicted,
        limit=limit,
        done=list_done(kept),
        out=frozenset(list_out(kept)),
        most_up=most_up,
    )


def list_mixed(kept: Kept, payload_models: Sequence[str]) -> list[Seen]:
    """Every window that may be quoted, with the latencies of the model that is worst off in it."""
    return [
        seen
        for block in kept.list_blocks()
        for series in kept.list_series(block)
        for seen, _ in see_windows(block, series, payload_models)
    ]


@dataclass(frozen=True, kw_only=True)
class Outcome(Raced[RacedPlan]):
    """Of a mix; plans are `default`, or what CORES would be."""

    shares: Mapping[str, float]


def find_outcome(kept: Kept) -> Outcome:
    """From what is kept alone, finished or not."""
    asked = kept.asked
    limit = Limit(percentile=float(asked["limit"]["percentile"]), seconds=float(asked["limit"]["ms"]) / 1000)
    seen, out = list_mixed(kept, asked["payload_models"]), list_out(kept)
    winner = make_race(kept, asked["predicted"], limit).find_winner(seen)
    return Outcome(
        shares=asked["shares"],
        limit=limit,
        rows=tuple(
            _make_row(name, asked["predicted"][name], seen, limit, out.get(name, ""))
            for name in dict.fromkeys((DEFAULT, *list_tried(kept)))
        ),
        winner=winner,
        ratio=compare_finals(seen, winner, limit),
        seen=tuple(seen),
    )


def _make_row(name: str, predicted: float, seen: Sequence[Seen], limit: Limit, invalid: str) -> RacedPlan:
    """The finals' figures of those who were in them, else the race's."""
    own = list_finals(seen, name) or [one for one in seen if one.plan == name]
    why = invalid or ("" if own else "no window of it may be quoted")
    peak = None if why else find_peak(own, limit)
    return RacedPlan(name=name, predicted=predicted, peak=peak, windows=len(own), invalid=why)


def judge(kept: Kept) -> list[Verdict]:
    """The highest rate of the mix, and what the winner gains."""
    found = find_outcome(kept)
    row, what = found.best, f"{name_shares(found.shares)}, {found.best.name}: highest rate with {found.limit}"
    if row.peak is None or not row.peak.known:
        why = row.invalid if row.peak is None else f"{row.peak.boundary}; more BUDGET_MINUTES"
        return [Verdict(what=what, why=why)]
    figure = row.peak.interval or Interval(value=row.peak.value, low=row.peak.value, high=row.peak.value)
    return [Verdict(what=what, figure=figure, unit=" requests/s"), *found.judge_gain()]


def name_shares(shares: Mapping[str, float]) -> str:
    """As people say it."""
    return ", ".join(f"{share:.0%} {name}" for name, share in shares.items())


def make_tuned(kept: Kept, inputs: Inputs) -> Tuned:
    """For `make serve`: cores of their own, or nothing, where the default is right."""
    found, folder = find_outcome(kept), f"results/{kept.folder.name}"
    gain = f"{found.ratio.value:.2f}x, {found.ratio.low:.2f}-{found.ratio.high:.2f}" if found.ratio else "–"
    told = (
        f"each model on cores of its own serves {gain} of what all on all cores do"
        if found.adopted
        else f"all models on all cores are right: {found.why_not}"
    )
    return Tuned(
        made_for=describe_present(read_topology(), inputs),
        limit=dict(kept.asked["limit"]),
        chosen={"cores": found.winner} if found.adopted else {},
        evidence={f"the mix {name_shares(found.shares)}": f"{told} at {found.limit}; trials in {folder}"},
    )
