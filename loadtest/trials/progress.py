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
    paced: bool = True
    """False: what is left is a budget of time, and passes as fast as time."""
    began: float = field(default_factory=lambda: time.monotonic())
    _ends: float = field(init=False)
    """When all is done, by what was known last."""

    def __post_init__(self) -> None:
        self._ends = self.began + self.planned

    def update(self, left: float) -> None:
        """So many seconds are left of the plan; the pace of work that is done goes for the rest, too."""
        now, done = time.monotonic(), self.planned - left
        pace = (now - self.began) / done if self.paced and done > ENOUGH * self.planned else 1.0
        self._ends = now + left * pace

    def report(self, line: str) -> None:
        """A line with the time in front, where there is a plan."""
        self.say(f"[{self.describe()}] {line}" if self.planned else line)

    def describe(self) -> str:
        """`3 min, 14 left`."""
        now = time.monotonic()
        return f"{(now - self.began) / 60:.0f} min, {max(0.0, self._ends - now) / 60:.0f} left"
