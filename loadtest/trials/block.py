"""What an experiment asks of the runner: systems that take turns under their loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from loadtest.results.kept import Kept
from loadtest.results.stats import Interval
from loadtest.scenarios.scenario import Scenario, Step
from loadtest.systems.fleet import Member
from loadtest.trials.watch import Watching, watch_nothing


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One system under one load."""

    member: Member
    scenario: Scenario
    level: Step
    """Users or requests a second; `auto` asks the system's plan. Shares are the experiment's to resolve."""
    watch: Watching = watch_nothing
    """Beside each of its trials; what it sees ends in Trial.seen."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """Turns that are compared: all of them in each repeat, the order moving on by one."""

    name: str
    """For files and for resuming: plain letters, digits and dashes."""
    turns: tuple[Turn, ...]
    repeats: int = 1
    warm_up_s: float = 0.0
    """A trial of its own for each system that was not measured since it came up; never quoted."""
    attempts: int = 2
    """At a trial that the machine disturbed: a busy moment must not cost an experiment of minutes."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How long and how often an experiment of several systems measures each."""

    seconds: float = 10.0
    """Of each window; those of slow baselines are longer."""
    warm_up_s: float = 4.0
    """Of a trial of each system before its first turn."""
    repeats: int = 3


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What is measured next; the runner does everything else."""

    kind: str
    """Names the judge and the section of the report."""
    name: str
    """Of its folder."""
    asked: Mapping[str, Any]
    """Plain values that decide what is measured; a result is resumed only where all of them are the same."""
    next_block: Callable[[Kept], Block | None]
    """Pure: from what is kept. None when there is no more to measure."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One figure that an experiment gives, or why it gives none."""

    what: str
    figure: Interval | None = None
    """None: INVALID, or nothing was measured; then `why` says so."""
    unit: str = ""
    limit: float | None = None
    """None: the figure is told and not judged."""
    at_least: bool = True
    """False: at most."""
    why: str = ""
    """INVALID: state, evidence and next step; else where the limit comes from, and notes."""
    broken: bool = False
    """Missed for another reason than the figure."""

    @property
    def met(self) -> bool:
        """Written so that NaN is missed, and INVALID too."""
        if self.broken or self.figure is None:
            return False
        if self.limit is None:
            return True
        return self.figure.value >= self.limit if self.at_least else self.figure.value <= self.limit


Judge = Callable[[Kept], list[Verdict]]
