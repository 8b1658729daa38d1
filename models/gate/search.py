"""Tries one recipe after the other until one passes, and tells what was tried."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from handlers.backends.loader import Made, Recipe
from handlers.shared.errors import LoadError
from models.gate.figures import Figures
from models.gate.verdict import labels_decide


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What became of one recipe."""

    name: str
    reason: str | None
    """Why it was not taken; None: it passed the gate."""
    figures: Figures | None = None
    """None where it was not tried, or could not be built."""
    time_ratio: float | None = None
    """Time of the same batches beside the first recipe's; 1 is as fast, 2 takes twice as long."""
    made: Made = field(default_factory=Made)
    """What a load reads of it."""

    def record(self) -> dict[str, Any]:
        """What definition.json keeps."""
        return {"recipe": self.name, "reason": self.reason, "time_ratio": self.time_ratio}


Attempt = Callable[[Recipe, Sequence[Trial]], Trial]
"""(recipe, trials before it) → trial."""


def search_recipes(recipes: Sequence[Recipe], attempt: Attempt) -> list[Trial]:
    """The trials, in order; the last of those that were tried passed, or none did.

    The first recipe's errors are the caller's: without it nothing is known.
    """
    trials = [attempt(recipes[0], [])]
    for recipe in recipes[1:]:
        if find_passed(trials):
            break
        try:
            trials.append(attempt(recipe, trials))
        except (LoadError, RuntimeError) as error:
            reason = f"cannot be built: {getattr(error, 'cause', error)}"
            trials.append(Trial(name=recipe.name, reason=reason))
    return trials


def find_passed(trials: Sequence[Trial]) -> Trial | None:
    """The recipe that passed the gate."""
    return next((trial for trial in trials if trial.reason is None), None)


def find_best(trials: Sequence[Trial]) -> Trial:
    """The one that passed, else the one nearest to it."""
    return find_passed(trials) or min((trial for trial in trials if trial.figures), key=_rank)


def _rank(trial: Trial) -> tuple[float, float, float]:
    """Smaller is nearer to passing."""
    figures = trial.figures
    assert figures is not None
    loss = figures.labelled_loss_points if labels_decide(figures) else None
    return (loss or 0.0, -(figures.agreement_decided or figures.explained or 0.0), -figures.least_cosine)


def render_tried(records: Sequence[dict[str, Any]]) -> list[str]:
    """A line for each recipe, its verdict and what it costs; none where the first was enough."""
    if len(records) < 2:
        return []
    return [f"{one['recipe']}: {one['reason'] or 'passed'}{_show_cost(one, records[0])}" for one in records]


def _show_cost(record: dict[str, Any], first: dict[str, Any]) -> str:
    ratio = record["time_ratio"]
    return "" if ratio is None or record is first else f"; {ratio:.2f} times the time of {first['recipe']}"


def tell_best(recipe: str | None, records: Sequence[dict[str, Any]]) -> str:
    """Whose figures a rejection gives, where several recipes were tried."""
    tried = [one for one in records if one["time_ratio"] is not None]
    return f"; so {recipe}, the nearest of {len(tried)} recipes" if len(tried) > 1 else ""
