"""What an experiment asks of the runner: systems that take turns under their loads, and what looks on."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from loadtest.errors import LoadTestError
from loadtest.results.kept import Kept, plain, read_kept
from loadtest.results.stats import Interval
from loadtest.scenarios.scenario import Scenario, Step
from loadtest.systems.fleet import Member
from loadtest.systems.system import System


class Watch(Protocol):
    """Looks from the begin of a load to its end; the window is cut out of it when its edges are known."""

    def cut(self, begin: float, end: float) -> Mapping[str, Any]:
        """What was seen between two moments, seconds since the epoch; plain values."""


Watching = Callable[[System], contextlib.AbstractContextManager[Watch]]


@dataclass(kw_only=True)
class Seen:
    """Of what looks before and behind the load alone: the whole load counts, not its window."""

    values: dict[str, Any] = field(default_factory=dict)

    def cut(self, _begin: float, _end: float) -> Mapping[str, Any]:
        return self.values


def watch_nothing(_: System) -> contextlib.AbstractContextManager[Watch]:
    return contextlib.nullcontext(Seen())


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


def resume_result(experiment: Experiment, folder: Path) -> Kept:
    """What was kept; LoadTestError names all that differs from what it was started with."""
    kept = read_kept(folder)
    differences = list(find_differences(kept.asked, plain(experiment.asked)))
    if kept.kind != experiment.kind:
        differences.insert(0, f"experiment: was {kept.kind}, is {experiment.kind}")
    if differences:
        listed = "\n  ".join(differences)
        raise LoadTestError(
            f"{folder.name} can only be resumed where everything is as it was:\n  {listed}\n"
            "start a new one, without RESUME"
        )
    return kept


def find_differences(then: Any, now: Any, where: str = "") -> Iterator[str]:
    """Each value that is not the same, by its path."""
    if isinstance(then, dict) and isinstance(now, dict):
        for name in dict.fromkeys([*then, *now]):
            yield from find_differences(then.get(name), now.get(name), f"{where}.{name}" if where else name)
    elif then != now:
        yield f"{where}: was {_show(then)}, is {_show(now)}"


def _show(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 100 else f"{text[:100]}…"


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
