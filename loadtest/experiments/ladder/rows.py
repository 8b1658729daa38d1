"""From kept blocks to one row for each rung: figure, ratios, verdict, doubts; nothing is measured here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import cattrs

from loadtest.experiments.ladder.rungs import KINDS, SETTINGS, STOCK_RUNG, Rung, find_rung
from loadtest.results.figures import summarise
from loadtest.results.kept import Kept
from loadtest.results.ratios import find_rate_interval, find_ratio, multiply, take_parts, take_rates
from loadtest.results.stats import Interval
from loadtest.results.trial import KeptBlock, Series
from loadtest.trials.validity import Finding, find_doubts

MEASURED, REFUSED, NOT_APPLICABLE, MISSING = "measured", "refused", "does not apply", "not measured yet"
HELPS, SLOWS, NO_HELP = "helps", "slows", "no gain seen on this host"
COSTS, GAINS, NO_LOSS = "is worth having", "is better so on this host", "is not missed on this host"
UNKNOWN = "cannot be told from so few repeats"
WIDE = 1.5
"""An interval from 0.8 to 1.2 says that there is little; one that is wider says nothing."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table."""

    rung: Rung
    state: str
    reason: str = ""
    """Why there is no figure."""
    series: Series | None = None
    """What it was measured by."""
    rate: Interval | None = None
    to_before: Interval | None = None
    to_bottom: Interval | None = None
    """Over the bottom rung, stock as it comes; None where one in between is doubtful."""
    verdict: str = ""
    doubts: tuple[Finding, ...] = ()
    """Any makes it INVALID."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A kept block, judged."""

    block: KeptBlock
    series: Mapping[str, Series]
    doubts: Mapping[str, tuple[Finding, ...]]
    """Of each system that was measured."""

    def is_good(self, name: str) -> bool:
        """Whether its figures may be used."""
        return name in self.series and not self.doubts[name]

    def find_rate(self, name: str) -> Interval:
        """Its error is that of all that were measured with it."""
        usable = self._list_usable()
        if len(usable) < 2:
            return summarise(self.series[name]).rate
        return find_rate_interval(take_rates(usable), name, take_parts(usable))

    def find_ratio(self, over: str, under: str | None) -> Interval | None:
        """None when one of them is doubtful or was not measured here."""
        if under is None or not self.is_good(over) or not self.is_good(under):
            return None
        usable = self._list_usable()
        return find_ratio(take_rates(usable), over, under, take_parts(usable))

    def _list_usable(self) -> list[Series]:
        """A doubtful one tells of the machine's ups and downs too, unless it answered nothing."""
        return [one for one in self.series.values() if min(one.turn_rates) > 0]


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """A kept ladder, finished or not."""

    rungs: Sequence[Rung]
    blocks: Sequence[Measured]
    bottom: str
    """The rung that all ratios go back to."""

    def find_home(self, name: str) -> Measured | None:
        """The block a rung is measured in for its own sake: later ones carry it over."""
        return next(
            (one for one in self.blocks if name in one.block.systems or name in one.block.refused), None
        )

    def find_ratio_to_bottom(self, name: str) -> Interval | None:
        """By the lowest rung of its block that it stands on, and that one's own ratio."""
        home = self.find_home(name)
        if home is None or name == self.bottom or not home.is_good(name):
            return None
        lowest = next((one for one in reversed(self._list_below(name)) if home.is_good(one)), None)
        step = home.find_ratio(name, lowest)
        if step is None or lowest is None or lowest == self.bottom:
            return step
        rest = self.find_ratio_to_bottom(lowest)
        return multiply(step, rest) if rest else None

    def _list_below(self, name: str) -> list[str]:
        """The rungs it stands on, down to the bottom."""
        before = find_rung(self.rungs, name).before
        return [before, *self._list_below(before)] if before else []

    def make_row(self, rung: Rung) -> Row:
        if rung.reason:
            return Row(rung=rung, state=NOT_APPLICABLE, reason=rung.reason)
        home = self.find_home(rung.name)
        if home and rung.name in home.block.refused:
            return Row(rung=rung, state=REFUSED, reason=home.block.refused[rung.name])
        if home is None or rung.name not in home.series:
            return Row(rung=rung, state=MISSING)
        doubts = home.doubts[rung.name]
        to_before = home.find_ratio(rung.name, rung.before)
        judge = judge_left_out if rung.left_out else judge_step
        return Row(
            rung=rung,
            state=MEASURED,
            series=home.series[rung.name],
            rate=None if doubts else home.find_rate(rung.name),
            to_before=to_before,
            to_bottom=self.find_ratio_to_bottom(rung.name),
            verdict=judge(to_before) if to_before else "",
            doubts=doubts,
        )


def make_rows(kept: Kept) -> list[Row]:
    """In the rungs' order, what is left out last."""
    rungs = [cattrs.structure(raw, Rung) for raw in kept.asked["rungs"].values()]
    blocks = []
    for block in kept.list_blocks():
        series = {one.system: one for one in kept.list_series(block)}
        doubts = {name: tuple(find_doubts(one)) for name, one in series.items()}
        blocks.append(Measured(block=block, series=series, doubts=doubts))
    of_settings = kept.kind == KINDS[SETTINGS]
    # Of engines, the first that is installed.
    bottom = STOCK_RUNG if of_settings else next(rung.name for rung in rungs if not rung.reason)
    ladder = Ladder(rungs=rungs, blocks=blocks, bottom=bottom)
    return [ladder.make_row(rung) for rung in rungs]


def judge_step(ratio: Interval) -> str:
    """What putting a setting on did."""
    return HELPS if ratio.low > 1 else SLOWS if ratio.high < 1 else UNKNOWN if _is_wide(ratio) else NO_HELP


def judge_left_out(ratio: Interval) -> str:
    """What taking it away from the top did."""
    return COSTS if ratio.high < 1 else GAINS if ratio.low > 1 else UNKNOWN if _is_wide(ratio) else NO_LOSS


def _is_wide(ratio: Interval) -> bool:
    return ratio.high / ratio.low > WIDE
