"""Compares two results: the ratio of what each quotes, its 95 % interval, and whether it is worse."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import numpy as np

from loadtest.errors import LoadTestError
from loadtest.kept import RECORDS_FILE, read_summary
from loadtest.records import read_records
from loadtest.stats import RESAMPLES, Interval, pick, split_by_time
from loadtest.summary import StepSummary, Summary

DEFAULT_BOUND = 0.05
"""Smaller losses than 5 % are within what shared machines differ by from day to day."""
Z_95, Z_POWER = 1.96, 0.84
"""For a 95 % interval, and to find a change of that size four times out of five."""
PAIR_RESAMPLES = 20_000
"""The quantiles lie far out, where 2,000 draws would leave a handful."""
SEED = 0


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """B against A."""

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


def make_verdict(what: str, a: float, b: float, ratio: Interval, *, unit: str, higher_is_better: bool,
                 bound: float, notes: tuple[str, ...] = ()) -> Verdict:  # fmt: skip
    """The smallest detectable change follows from the interval's width on the log scale."""
    error = (math.log(ratio.high) - math.log(ratio.low)) / (2 * Z_95)
    return Verdict(
        what=what, a=a, b=b, unit=unit, ratio=ratio, higher_is_better=higher_is_better, bound=bound,
        smallest_detectable=math.expm1((Z_95 + Z_POWER) * error), notes=notes,
    )  # fmt: skip


def compare_results(a: Path, b: Path, *, bound: float) -> list[Verdict]:
    """Step by step; LoadTestError when they are not two valid results of one experiment."""
    first, second = read_summary(a), read_summary(b)
    _check_comparable(a, first, b, second)
    notes = _find_differences(first, second)
    return [
        _compare_step(number, (a, first), (b, second), bound, notes) for number in range(len(first.steps))
    ]


def _check_comparable(a: Path, first: Summary, b: Path, second: Summary) -> None:
    for folder, one in ((a, first), (b, second)):
        if not one.is_valid():
            why = "; ".join(finding.state for finding in one.findings if finding.invalid)
            raise LoadTestError(f"{folder.name} is INVALID ({why}); only valid results are compared")
    for what in ("model", "payloads", "driver", "arrival"):
        x, y = getattr(first.scenario, what), getattr(second.scenario, what)
        if x != y:
            raise LoadTestError(f"A and B must have the same {what}: got {x} and {y}")
    if len(first.steps) != len(second.steps):
        raise LoadTestError(
            f"A and B must have as many steps: got {len(first.steps)} and {len(second.steps)}"
        )


def _find_differences(first: Summary, second: Summary) -> tuple[str, ...]:
    """What a reader must know of two runs that are not one experiment."""
    notes = ["A and B did not take turns: the machine's own drift is part of the ratio (use loadtest-gate)"]
    if first.precision != second.precision:
        notes.append(f"precisions differ: {first.precision} and {second.precision}")
    return tuple(notes)


def _compare_step(
    number: int, a: tuple[Path, Summary], b: tuple[Path, Summary], bound: float, notes: tuple[str, ...]
) -> Verdict:
    first, second = a[1].steps[number], b[1].steps[number]
    name, is_open = a[1].scenario.name, a[1].scenario.is_open
    if first.level != second.level:
        notes = (*notes, f"levels differ: {first.level:g} and {second.level:g}")
    if not is_open:
        drawn = draw_rates(second, SEED + 1) / draw_rates(first, SEED)
        x, y = first.rate.value, second.rate.value
        what, unit = f"{name}, {first.level:g} users: requests/s", "requests/s"
    else:
        percentile = a[1].scenario.latency.percentile
        drawn = draw_percentiles(b[0], number, percentile, SEED + 1) / draw_percentiles(
            a[0], number, percentile, SEED
        )
        x, y = (_quoted(step, percentile) for step in (first, second))
        what, unit = f"{name}, {first.level:g} requests/s: p{percentile:g}", "ms"
    low, high = np.quantile(drawn, [0.025, 0.975])
    ratio = Interval(value=y / x, low=float(low), high=float(high))
    return make_verdict(what, x, y, ratio, unit=unit, higher_is_better=not is_open, bound=bound, notes=notes)


def _quoted(step: StepSummary, percentile: float) -> float:
    found = step.percentiles_ms[f"{percentile:g}"]
    if found is None:
        raise LoadTestError(
            f"p{percentile:g} of {step.requests} requests cannot be told; run longer (DURATION=)"
        )
    return found.value


def draw_rates(step: StepSummary, seed: int) -> np.ndarray:
    """Resampled mean rates: repeats are drawn first, then blocks of time within each."""
    random = np.random.default_rng(seed)
    repeats = [np.array(one.rates) for one in step.repeats]
    drawn = random.integers(0, len(repeats), (RESAMPLES, len(repeats)))
    return np.array([np.mean([_redraw(repeats[one], random).mean() for one in draw]) for draw in drawn])


def _redraw(values: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return values[random.integers(0, len(values), len(values))]


def draw_percentiles(folder: Path, step: int, percentile: float, seed: int) -> np.ndarray:
    """Resampled percentiles from the raw records: blocks of time of all repeats are drawn."""
    summary = read_summary(folder)
    duration = summary.steps[step].duration_s
    runs = [records for (one, _), records in read_records(folder / RECORDS_FILE).items() if one == step]
    blocks = [
        block for run in runs for block in split_by_time(run.within(0, duration), duration) if len(block)
    ]
    random = np.random.default_rng(seed)
    drawn = random.integers(0, len(blocks), (RESAMPLES // 4, len(blocks)))
    return np.array([pick(np.concatenate([blocks[one] for one in draw]), percentile) for draw in drawn])


def compare_pairs(a: list[float], b: list[float]) -> Interval:
    """Geometric mean of b/a over pairs that ran side by side, with its expanded bootstrap interval.

    The plain percentile bootstrap is too narrow for ten pairs; taking its quantiles further out, by what
    Student's t is wider than the normal distribution, cures it (Hesterberg 2015, "expanded percentile").
    Dividing by each draw's own error instead gave an interval of 0.6-1.9 when one of five pairs was an
    outlier (seen).
    """
    logs = np.log(np.array(b) / np.array(a))
    count = len(logs)
    tail = NormalDist().cdf(-math.sqrt(count / (count - 1)) * find_student_quantile(count - 1))
    drawn = logs[np.random.default_rng(SEED).integers(0, count, (PAIR_RESAMPLES, count))].mean(axis=1)
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return Interval(value=math.exp(float(logs.mean())), low=math.exp(low), high=math.exp(high))


def find_student_quantile(freedom: int) -> float:
    """97.5 % of Student's t by its expansion around the normal quantile (0.3 % off at 4 degrees)."""
    z = Z_95
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def render_verdict(verdict: Verdict) -> str:
    """Three lines and the notes."""
    loss = verdict.loss
    word = "REGRESSION" if verdict.regression else "no regression" if verdict.conclusive else "INCONCLUSIVE"
    lines = [
        f"{verdict.what}",
        f"  A {verdict.a:.2f}, B {verdict.b:.2f} {verdict.unit}; B/A {verdict.ratio.value:.3f} "
        f"(95 % interval {verdict.ratio.low:.3f}-{verdict.ratio.high:.3f})",
        f"  {word}: B is {_describe_loss(loss.value)}; the bound is {verdict.bound:.1%}; "
        f"the smallest change this could have found is {verdict.smallest_detectable:.1%}",
    ]
    if not verdict.conclusive:
        lines.append("  do: more repeats (PAIRS=, DURATION=), or a quieter machine")
    return "\n".join([*lines, *(f"  note: {note}" for note in verdict.notes)])


def _describe_loss(loss: float) -> str:
    return f"{abs(loss):.1%} {'worse' if loss > 0 else 'better'}"
