"""Lines with the time that has passed and an estimate of the time that is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from loadtest.ladder.blocks import Block
from loadtest.ladder.rungs import STOCK_RUNG
from loadtest.ladder.side import UNSTEADY_STRETCH
from loadtest.turns import Timing

START_SECONDS = {"resnet50": 20.0, "bert": 32.0}
"""Of one server, with its plan, its verify and the sample of answers: seen on two cores."""
TURN_EXTRA_SECONDS = 4.0
"""Locust's start and end, the first round, and the last answers."""


@dataclass(kw_only=True)
class Progress:
    """Compares what is done with what was planned."""

    say: Callable[[str], None]
    planned: float
    """Seconds by the estimate above."""
    done: float = 0.0
    began: float = field(default_factory=time.monotonic)

    def report(self, line: str) -> None:
        """A line with the time in front."""
        self.say(f"[{self.describe()}] {line}")

    def add(self, seconds: float) -> None:
        """So much of the plan is done."""
        self.done += seconds

    def add_turn(self, seconds: float) -> None:
        self.add(seconds + TURN_EXTRA_SECONDS)

    def describe(self) -> str:
        """`3 min, 14 left`."""
        passed = time.monotonic() - self.began
        pace = passed / self.done if self.done > 0.05 * self.planned else 1.0
        left = max(0.0, self.planned - self.done) * pace
        return f"{passed / 60:.0f} min, {left / 60:.0f} left"


def estimate(blocks: Sequence[Block], timing: Timing, model: str) -> float:
    """Seconds for these blocks, the first of which finds nothing up."""
    up: set[str] = set()
    seconds = 0.0
    for block in blocks:
        started = set(block.members) - up
        warm_up = timing.warm_up_seconds + TURN_EXTRA_SECONDS
        stretch = sum(UNSTEADY_STRETCH if name == STOCK_RUNG else 1 for name in block.members)
        turns = timing.repeats * (timing.seconds * stretch + TURN_EXTRA_SECONDS * len(block.members))
        seconds += len(started) * (START_SECONDS[model] + warm_up) + turns
        up = set(block.members)
    return seconds
