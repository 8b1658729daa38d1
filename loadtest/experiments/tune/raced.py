"""What every race comes to: a row for each plan, who met the default in the finals, what is to be served.

Do no harm: only what beats the default beyond the interval of the finals is chosen; else the default stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from loadtest.experiments.tune.candidate import DEFAULT
from loadtest.experiments.tune.curve import ALL_KEPT, NONE_KEPT, Peak, Seen
from loadtest.results.stats import Interval
from loadtest.simulation.search import Limit
from loadtest.trials.block import Verdict

LEAST_GAIN = 1.01
"""What the lower end of a ratio must be above: of 120 simulated races of equal plans, on a machine whose
windows drift by 6 %, one was, and five were above 1."""


def is_gain(ratio: Interval | None) -> bool:
    """Whether it is better beyond the interval."""
    return ratio is not None and ratio.low > LEAST_GAIN


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
        """Whether the winner is better beyond its interval; a peak beyond the tried rates flatters none."""
        if self.winner is None or not is_gain(self.ratio):
            return False
        default, winner = (self.find_row(name).peak for name in (DEFAULT, self.winner))
        known = default and winner and default.boundary != ALL_KEPT and winner.boundary != NONE_KEPT
        return bool(known)

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
        word = "chosen" if self.adopted else "not chosen: no gain beyond the interval, or a peak not known"
        what, why = f"{self.winner} / default", f"{word}{self.bound}"
        return [Verdict(what=what, figure=self.ratio, unit="×", why=why)]

    def find_row(self, name: str) -> OneRow:
        return next(row for row in self.rows if row.name == name)
