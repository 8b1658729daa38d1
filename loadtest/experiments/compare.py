"""Compares two results: the ratio of what each quotes, its 95 % interval, and whether it is worse."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from loadtest.errors import LoadTestError
from loadtest.results.figures import split_latencies_ms, summarise
from loadtest.results.kept import Kept
from loadtest.results.ratios import Z_95
from loadtest.results.stats import RESAMPLES, Interval, pick
from loadtest.results.trial import Series
from loadtest.trials.validity import find_doubts

DEFAULT_BOUND = 0.05
"""Smaller losses than 5 % are within what shared machines differ by from day to day."""
Z_POWER = 0.84
"""To find a change of a size four times out of five."""
SEED = 0


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One figure of two systems or results: the candidate B against the base A."""

    what: str
    """Scenario, step and the figure that is compared."""
    a: float
    b: float
    unit: str
    ratio: Interval
    """B / A of the figure."""
    higher_is_better: bool
    bound: float
    smallest_detectable: float
    """The least relative change that this much data finds four times out of five."""
    notes: tuple[str, ...] = ()

    @property
    def loss(self) -> Interval:
        """How much worse B is, as a share; negative when it is better."""
        if self.higher_is_better:
            return Interval(value=1 - self.ratio.value, low=1 - self.ratio.high, high=1 - self.ratio.low)
        return Interval(value=self.ratio.value - 1, low=self.ratio.low - 1, high=self.ratio.high - 1)

    @property
    def regression(self) -> bool:
        """Worse by more than the bound, and certainly worse at all."""
        return self.loss.value > self.bound and self.loss.low > 0

    @property
    def conclusive(self) -> bool:
        """Whether a loss beyond the bound was found, or would have been."""
        return self.regression or self.smallest_detectable <= 2 * self.bound

    @property
    def word(self) -> str:
        """The verdict."""
        return "REGRESSION" if self.regression else "no regression" if self.conclusive else "INCONCLUSIVE"


def compare(what: str, a: float, b: float, ratio: Interval, *, unit: str, higher_is_better: bool,
                 bound: float, notes: tuple[str, ...] = ()) -> Comparison:  # fmt: skip
    """The smallest detectable change follows from the interval's width on the log scale."""
    error = (math.log(ratio.high) - math.log(ratio.low)) / (2 * Z_95)
    return Comparison(
        what=what, a=a, b=b, unit=unit, ratio=ratio, higher_is_better=higher_is_better, bound=bound,
        smallest_detectable=math.expm1((Z_95 + Z_POWER) * error), notes=notes,
    )  # fmt: skip


def compare_results(a: Kept, b: Kept, *, bound: float) -> list[Comparison]:
    """Level by level; LoadTestError when they are not two valid results of one experiment."""
    first, second = list_valid(a), list_valid(b)
    if len(first) != len(second):
        raise LoadTestError(f"A and B must have as many levels: got {len(first)} and {len(second)}")
    for one, other in zip(first, second, strict=True):
        for what in ("model", "payloads", "driver", "arrival"):
            x, y = getattr(one.scenario, what), getattr(other.scenario, what)
            if x != y:
                raise LoadTestError(f"A and B must have the same {what}: got {x} and {y}")
    return [_compare_series(*pair, bound) for pair in zip(first, second, strict=True)]


def list_valid(kept: Kept) -> list[Series]:
    """Every level of a result; LoadTestError when one is INVALID."""
    found = kept.list_loads()
    for one in found:
        if doubts := find_doubts(one):
            raise LoadTestError(
                f"{kept.folder.name} is INVALID ({doubts[0].state}); only valid results are compared"
            )
    return found


def _compare_series(first: Series, second: Series, bound: float) -> Comparison:
    scenario = first.scenario
    if scenario.is_open:
        quoted = scenario.latency.percentile
        what, unit = f"{scenario.name}, {first.level:g} requests/s: p{quoted:g}", "ms"
        x, y = (_read_quoted(one, quoted) for one in (first, second))
        drawn = draw_percentiles(second, quoted, SEED + 1) / draw_percentiles(first, quoted, SEED)
    else:
        what, unit = f"{scenario.name}, {first.level:g} users: requests/s", "requests/s"
        x, y = (summarise(one).rate.value for one in (first, second))
        drawn = draw_rates(second, SEED + 1) / draw_rates(first, SEED)
    low, high = np.quantile(drawn, [0.025, 0.975])
    ratio = Interval(value=y / x, low=float(low), high=float(high))
    notes = tuple(_find_differences(first, second))
    return compare(
        what, x, y, ratio, unit=unit, higher_is_better=not scenario.is_open, bound=bound, notes=notes
    )


def _find_differences(first: Series, second: Series) -> list[str]:
    """What a reader must know of two series that are not one experiment."""
    notes = ["A and B did not take turns: the machine's own drift is part of the ratio (use loadtest-gate)"]
    if first.facts.precisions != second.facts.precisions:
        x, y = (", ".join(one.facts.precisions.values()) for one in (first, second))
        notes.append(f"precisions differ: {x} and {y}")
    if first.level != second.level:
        notes.append(f"levels differ: {first.level:g} and {second.level:g}")
    return notes


def _read_quoted(series: Series, percentile: float) -> float:
    found = summarise(series).percentiles_ms[f"{percentile:g}"]
    assert found is not None  # too few requests are a doubt
    return found.value


def draw_rates(series: Series, seed: int) -> np.ndarray:
    """Resampled mean rates: repeats are drawn first, then blocks of time within each."""
    random = np.random.default_rng(seed)
    repeats = [np.array(one.rates) for one in series.trials]
    drawn = random.integers(0, len(repeats), (RESAMPLES, len(repeats)))
    return np.array(
        [np.mean([random.choice(repeats[one], len(repeats[one])).mean() for one in draw]) for draw in drawn]
    )


def draw_percentiles(series: Series, percentile: float, seed: int) -> np.ndarray:
    """Resampled percentiles from the rows: blocks of time of all repeats are drawn."""
    blocks = split_latencies_ms(series)
    random = np.random.default_rng(seed)
    drawn = random.integers(0, len(blocks), (RESAMPLES // 4, len(blocks)))
    return np.array([pick(np.concatenate([blocks[one] for one in draw]), percentile) for draw in drawn])


def render_comparison(found: Comparison) -> str:
    """Three lines and the notes."""
    lines = [
        f"{found.what}",
        f"  A {found.a:.2f}, B {found.b:.2f} {found.unit}; B/A {found.ratio.value:.3f} "
        f"(95 % interval {found.ratio.low:.3f}-{found.ratio.high:.3f})",
        f"  {describe_loss(found)}",
    ]
    return "\n".join([*lines, *(f"  note: {note}" for note in found.notes)])


def describe_loss(found: Comparison) -> str:
    """What it means, what could have been found, and what to do where nothing can be told."""
    loss = found.loss.value
    told = (
        f"{found.word}: B is {abs(loss):.1%} {'worse' if loss > 0 else 'better'}; the bound is "
        f"{found.bound:.1%}; the smallest change this could have found is {found.smallest_detectable:.1%}"
    )
    return told if found.conclusive else f"{told}; do: longer repeats (DURATION=), or a quieter machine"
