"""What every race comes to: a row for each plan, who met the default in the finals, what is to be served.

Do no harm: only what beats the default beyond the interval of the finals is chosen; else the default stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from loadtest.experiments.tune.candidate import DEFAULT
from loadtest.experiments.tune.curve import (
    ALL_KEPT,
    NONE_KEPT,
    Peak,
    Seen,
    compare_peaks,
    fit_peak,
    list_groups,
)  # fmt: skip
from loadtest.results.stats import Interval
from loadtest.simulation.search import Limit
from loadtest.trials.block import Verdict

FINAL = "final"
"""Blocks whose windows are quoted."""
LEAST_REPEATS = 5
"""Of finals, behind what is chosen: by three of them batch 2 was 1.21 (1.01-1.30) of batch 3, by three of
another race on the same host batch 3 was 1.18 (1.02-1.24) of batch 2 (BERT)."""
LEAST_GAIN = 1.01
"""What the lower end of a ratio must be above: of 120 simulated races of equal plans, on a machine whose
windows drift by 6 %, one was, and five were above 1."""


def is_gain(ratio: Interval | None) -> bool:
    """Whether it is better beyond the interval."""
    return ratio is not None and ratio.low > LEAST_GAIN


def list_finals(seen: Sequence[Seen], name: str | None) -> list[Seen]:
    """A plan's windows in the finals."""
    return [one for one in seen if one.plan == name and one.block.startswith(FINAL)]


def compare_finals(seen: Sequence[Seen], name: str | None, limit: Limit) -> Interval | None:
    """A plan's peak to the default's, by the finals alone; None where they met in too few repeats."""
    return compare_peaks(list_finals(seen, DEFAULT), list_finals(seen, name), limit)


def is_bracketed(seen: Sequence[Seen], name: str, limit: Limit) -> bool:
    """Whether a plan's peak lies between the rates of the finals."""
    own = list_finals(seen, name)
    return bool(own) and fit_peak(own, limit).known


def is_proven(seen: Sequence[Seen], name: str | None) -> bool:
    """Whether it met the default in enough repeats of the finals to be chosen."""
    mine, base = ({*list_groups(list_finals(seen, plan))} for plan in (name, DEFAULT))
    return len(mine & base) >= LEAST_REPEATS


@dataclass(frozen=True, kw_only=True)
class RacedPlan:
    """One plan of a race."""

    name: str
    predicted: float
    """Simulated peak, requests a second."""
    peak: Peak | None
    """None where it is INVALID."""
    windows: int
    """That its peak is from."""
    invalid: str = ""
    """Why no figure of it may be used."""


OneRow = TypeVar("OneRow", bound=RacedPlan)


@dataclass(frozen=True, kw_only=True)
class Raced(Generic[OneRow]):
    """A race, finished or not."""

    limit: Limit
    rows: tuple[OneRow, ...]
    """The default first."""
    winner: str | None
    """Who met the default in the finals; None where nobody was left."""
    ratio: Interval | None
    """Of the winner's peak to the default's; None without finals."""
    seen: tuple[Seen, ...]
    """Every window that may be quoted."""

    @property
    def adopted(self) -> bool:
        """Whether the winner is better beyond its interval, often enough."""
        return not self.why_not

    @property
    def why_not(self) -> str:
        """What speaks against the winner; a peak beyond the tried rates flatters none."""
        if self.winner is None or not is_gain(self.ratio):
            return "nothing that was raced is better beyond its interval"
        if not is_proven(self.seen, self.winner):
            return f"{self.winner} seems better by fewer than {LEAST_REPEATS} repeats of the finals"
        default, winner = (self.find_row(name).peak for name in (DEFAULT, self.winner))
        if not default or not winner or default.boundary == ALL_KEPT or winner.boundary == NONE_KEPT:
            return f"{self.winner} seems better, and the rates that were tried do not tell by how much"
        return ""

    @property
    def bound(self) -> str:
        """Behind a ratio that is the least it can be: the default's peak is below all rates tried."""
        default = self.find_row(DEFAULT).peak
        kept_none = default is not None and default.boundary == NONE_KEPT
        return f", at least: the default keeps {self.limit} at no rate that was tried" if kept_none else ""

    @property
    def best(self) -> OneRow:
        """What is to be served."""
        return self.find_row(self.winner if self.adopted and self.winner else DEFAULT)

    def judge_gain(self) -> list[Verdict]:
        """The winner's peak to the default's; nothing without finals."""
        if self.ratio is None:
            return []
        word = f"not chosen: {self.why_not}" if self.why_not else "chosen"
        what, why = f"{self.winner} / default", f"{word}{self.bound}"
        return [Verdict(what=what, figure=self.ratio, unit="×", why=why)]

    def find_row(self, name: str) -> OneRow:
        return next(row for row in self.rows if row.name == name)
