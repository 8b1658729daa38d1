"""What a row has found."""

from __future__ import annotations

from dataclasses import dataclass, field

from loadtest.goals import Goal
from loadtest.turns import Turns


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Everything but what the bench knows of the servers."""

    goals: list[Goal]
    turns: dict[str, Turns] = field(default_factory=dict)
    judged: str = ""
    """The side whose accuracy belongs to the row's speed."""
    notes: list[str] = field(default_factory=list)
    """Lines for a person, for what fits no table."""
