"""Lets the sides of a comparison take turns, so that a slow minute of the machine hits all alike."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from loadtest.errors import LoadTestError
from loadtest.sides import Measurement, Side
from loadtest.spread import Spread, spread

Report = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How long and how often is measured."""

    seconds: float = 10.0
    """Of each turn."""
    warm_up_seconds: float = 4.0
    """Of each side, before the first turn."""
    repeats: int = 3


@dataclass(frozen=True, kw_only=True)
class Turns:
    """Everything that was measured of one side."""

    side: Side
    warm_up: tuple[Measurement, ...]
    repeats: tuple[Measurement, ...]

    @property
    def rate(self) -> Spread:
        """Requests per second over the repeats."""
        return spread([one.rate for one in self.repeats])

    def latency_ms(self, percent: str) -> Spread:
        """A percentile's value over the repeats."""
        return spread([one.latency_ms[percent] for one in self.repeats])


def take_turns(
    sides: Sequence[Side], timing: Timing, report: Report, *, warm: Collection[str] = ()
) -> dict[str, Turns]:
    """Warm each side up, then measure all of them in turn; the order moves on by one with each repeat.

    Those named `warm` have been measured before.
    """
    warm_ups = {
        side.name: () if side.name in warm else tuple(_warm_up(side, timing, report)) for side in sides
    }
    repeats: dict[str, list[Measurement]] = {side.name: [] for side in sides}
    for repeat in range(timing.repeats):
        first = repeat % len(sides)
        for side in (*sides[first:], *sides[:first]):
            measured = side.measure(timing.seconds)
            if not measured.requests:
                raise LoadTestError(f"{side.name} gave no answer in {timing.seconds:g} s; measure longer")
            repeats[side.name].append(measured)
            report(f"  repeat {repeat + 1} of {timing.repeats}: {side.name:<24} {measured.rate:8.2f} req/s")
    return {
        side.name: Turns(side=side, warm_up=warm_ups[side.name], repeats=tuple(repeats[side.name]))
        for side in sides
    }


def _warm_up(side: Side, timing: Timing, report: Report) -> list[Measurement]:
    """Turns until the time is over; how many requests that takes is known only after the first."""
    done = [side.measure(timing.warm_up_seconds)]
    while (left := timing.warm_up_seconds - sum(one.seconds for one in done)) > 0:
        done.append(side.measure(left))
    report(f"  warm: {side.name:<24} {done[-1].rate:8.2f} req/s")
    return done
