"""Lines with the time that has passed and an estimate of the time that is left."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

ENOUGH = 0.05
"""Of the plan: before so much is done, the pace says nothing."""


@dataclass(kw_only=True)
class Progress:
    """Compares what is done with what was planned."""

    say: Callable[[str], None]
    planned: float
    """Seconds, as estimated; 0 where nobody knows."""
    left: float = field(init=False)
    """Of the plan, not of the time."""
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.left = self.planned

    def report(self, line: str) -> None:
        """A line with the time in front, where there is a plan."""
        self.say(f"[{self.describe()}] {line}" if self.planned else line)

    def describe(self) -> str:
        """`3 min, 14 left`."""
        passed, done = time.monotonic() - self.began, self.planned - self.left
        pace = passed / done if done > ENOUGH * self.planned else 1.0
        return f"{passed / 60:.0f} min, {self.left * pace / 60:.0f} left"
