"""A target and what was reached: met or missed, and by how much."""

from __future__ import annotations

from dataclasses import dataclass

from loadtest.turns import Turns


@dataclass(frozen=True, kw_only=True)
class Goal:
    """One figure that is judged."""

    what: str
    value: float
    limit: float
    at_least: bool
    """False: at most."""
    unit: str
    how: str = ""
    """Where the limit comes from, when it was computed."""

    @property
    def met(self) -> bool:
        # Written so that NaN is missed.
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def faster(fast: Turns, slow: Turns, *, at_least: float) -> Goal:
    """The ratio of median rates, as `12.3×`."""
    value = fast.rate.median / slow.rate.median
    what = f"{fast.side.name} / {slow.side.name}"
    return Goal(what=what, value=value, limit=at_least, at_least=True, unit="×")


def share_of(reached: Turns, limit: Turns, *, at_least: float) -> Goal:
    """The ratio of median rates in percent of what is possible."""
    value = 100 * reached.rate.median / limit.rate.median
    what = f"{reached.side.name} / {limit.side.name}"
    return Goal(what=what, value=value, limit=at_least, at_least=True, unit=" %")


def render_goal(goal: Goal) -> str:
    """One line with both figures and the verdict."""
    sign = "≥" if goal.at_least else "≤"
    how = f" ({goal.how})" if goal.how else ""
    verdict = "met" if goal.met else "MISSED"
    return (
        f"{goal.what}: {goal.value:.4g}{goal.unit}, target {sign} {goal.limit:.4g}{goal.unit}{how}: {verdict}"
    )
