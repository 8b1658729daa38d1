"""The ratios of each row, from what is kept alone; an INVALID system gives no figure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from loadtest.errors import LoadTestError
from loadtest.experiments.targets.rows import ROWS
from loadtest.results.kept import Kept
from loadtest.results.ratios import find_ratio, take_parts, take_rates
from loadtest.results.trial import KeptBlock, Series
from loadtest.trials.block import Verdict
from loadtest.trials.validity import find_doubts


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What is kept of one block."""

    valid: Mapping[str, Series]
    gaps: Mapping[str, str]
    """System → why it gives no figure."""

    def take(self, name: str) -> Series:
        """A system's; LoadTestError says why it can give no figure."""
        if name not in self.valid:
            raise LoadTestError(self.gaps.get(name, f"{name} is not measured yet"))
        return self.valid[name]


def look_at(kept: Kept, block: KeptBlock | None) -> Seen:
    """None of a row that is not measured yet."""
    series = {one.system: one for one in kept.list_series(block)} if block else {}
    doubts = {name: "; ".join(map(str, find_doubts(one))) for name, one in series.items()}
    refused = block.refused if block else {}
    gaps = {name: text for name, text in doubts.items() if text}
    gaps |= {name: f"the kit refuses {name}: {reason}" for name, reason in refused.items()}
    valid = {name: one for name, one in series.items() if name not in gaps}
    return Seen(valid=valid, gaps=gaps)


def judge(kept: Kept) -> list[Verdict]:
    """The ratio of each row's server to each of the others; without a figure, why there is none."""
    return [
        judge_ratio(row.name, row.served, one.name, look_at(kept, kept.find(row.name)))
        for row in ROWS
        for one in row.members
        if one.name != row.served
    ]


def judge_ratio(row: str, served: str, other: str, seen: Seen) -> Verdict:
    """A refused or doubtful side gives none."""
    what = f"{row}: {served} / {other}"
    try:
        for name in (served, other):
            seen.take(name)
    except LoadTestError as gap:
        return Verdict(what=what, why=str(gap))
    block = list(seen.valid.values())
    return Verdict(
        what=what, figure=find_ratio(take_rates(block), served, other, take_parts(block)), unit="×"
    )


def find_alone(series: Series) -> tuple[float, float] | None:
    """(part of the time inside the model, requests a second by the model alone); None of a server."""
    shares = [one.model_share for one in series.trials if one.model_share]
    if not shares:
        return None
    share = statistics.mean(shares)
    return share, statistics.median(series.turn_rates) / share
