"""What came out: a row for each plan, the winner against the default, and what may be chosen of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loadtest.errors import LoadTestError
from loadtest.experiments.tune.candidate import DEFAULT, Candidate, find_candidate
from loadtest.experiments.tune.curve import ALL_KEPT, NONE_KEPT, Peak, Seen, find_peak
from loadtest.experiments.tune.evidence import list_done, list_out, list_seen, read_start
from loadtest.experiments.tune.race import (
    LEAST_REPEATS,
    Race,
    compare_finals,
    is_gain,
    is_proven,
    list_finals,
)
from loadtest.experiments.tune.windows import Limit
from loadtest.results.kept import Kept
from loadtest.results.stats import Interval
from loadtest.trials.block import Verdict


@dataclass(frozen=True, kw_only=True)
class Row:
    """One plan of the race."""

    name: str
    candidate: Candidate
    peak: Peak | None
    """None where it is INVALID."""
    windows: int
    """That its peak is from."""
    dropped: bool
    """By its pairs with the leader."""
    invalid: str = ""
    """Why no figure of it may be used."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Of a race, finished or not."""

    what: str
    """The model, or the shares of the mix."""
    limit: Limit
    rows: tuple[Row, ...]
    """The default first, then in the order of their peaks."""
    winner: str | None
    """Who met the default in the finals; None where nobody was left."""
    ratio: Interval | None
    """Of the winner's peak to the default's; None without finals."""
    seen: tuple[Seen, ...]
    """Every window that may be quoted."""

    @property
    def adopted(self) -> bool:
        """Whether the winner is better beyond its interval, often enough."""
        return not self.why_not

    @property
    def why_not(self) -> str:
        """What speaks against the winner; a peak beyond the tried rates flatters none."""
        if self.winner is None or not is_gain(self.ratio):
            return "nothing that was raced is better beyond its interval"
        if not is_proven(self.seen, self.winner):
            return f"{self.winner} seems better by fewer than {LEAST_REPEATS} repeats of the finals"
        default, winner = (self.find_row(name).peak for name in (DEFAULT, self.winner))
        if not default or not winner or default.boundary == ALL_KEPT or winner.boundary == NONE_KEPT:
            return f"{self.winner} seems better, and the rates that were tried do not tell by how much"
        return ""

    @property
    def bound(self) -> str:
        """Behind a ratio that is the least it can be: the default's peak is below all rates tried."""
        default = self.find_row(DEFAULT).peak
        kept_none = default is not None and default.boundary == NONE_KEPT
        return f", at least: the default keeps {self.limit} at no rate that was tried" if kept_none else ""

    @property
    def best(self) -> Row:
        """What is to be served."""
        return self.find_row(self.winner if self.adopted and self.winner else DEFAULT)

    def find_row(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)

    def describe_row(self, row: Row) -> str:
        """What became of it, in a few words."""
        if row.name == DEFAULT:
            return "replaced" if self.adopted else "stays"
        if row.name == self.winner:
            return "chosen" if self.adopted else "not better"
        return "dropped" if row.dropped else "a tie with the winner" if self.adopted else "not better"


def find_outcome(kept: Kept) -> Outcome:
    """From what is kept alone, finished or not; LoadTestError before the default was measured."""
    asked, seen, out, done = kept.asked, list_seen(kept), list_out(kept), list_done(kept)
    rate = read_start(kept).trials[0].rate
    limit = Limit(percentile=float(asked["limit"]["percentile"]), seconds=float(asked["limit"]["ms"]) / 1000)
    default, *candidates = (Candidate(**one) for one in asked["candidates"])
    names = tuple(dict.fromkeys((DEFAULT, *(name for plans in done.values() for name in plans))))
    race = Race(plans=names, guess=rate, limit=limit, done=done, out=frozenset(out))
    winner = race.find_winner(seen)
    rows = [
        _make_row(find_candidate(default, candidates, name), name, race, seen, out.get(name, ""))
        for name in names
    ]
    return Outcome(
        what=", ".join(f"{share:.0%} {name}" for name, share in asked["shares"].items())
        or asked["models"][0],
        limit=limit,
        rows=tuple(sorted(rows, key=lambda row: (row.name != DEFAULT, -(row.peak.value if row.peak else 0)))),
        winner=winner,
        ratio=compare_finals(seen, winner, limit),
        seen=tuple(seen),
    )


def _make_row(candidate: Candidate, name: str, race: Race, seen: list[Seen], invalid: str) -> Row:
    """The finals' figures of those who were in them, else the race's."""
    own = list_finals(seen, name) or [one for one in seen if one.plan == name]
    why = invalid or ("" if own else "no window of it may be quoted: the machine was not quiet")
    return Row(
        name=name,
        candidate=candidate,
        peak=None if why else find_peak(own, race.limit),
        windows=len(own),
        dropped=not why and name not in race.list_left(seen),
        invalid=why,
    )


def judge(kept: Kept) -> list[Verdict]:
    """The plan to serve, and what it gains; no figure where the default could not be measured."""
    try:
        found = find_outcome(kept)
    except LoadTestError as problem:
        return [Verdict(what=f"{', '.join(kept.asked['models'])}: tuned", why=str(problem))]
    default = found.find_row(DEFAULT)
    if default.peak is None:
        return [Verdict(what=f"{found.what}: tuned", why=f"the default plan is INVALID: {default.invalid}")]
    verdicts = [_judge_peak(found)]
    if found.ratio is not None:
        word = f"not chosen: {found.why_not}" if found.why_not else "chosen"
        what, why = f"{found.winner} / default", f"{word}{found.bound}"
        verdicts.append(Verdict(what=what, figure=found.ratio, unit="×", why=why))
    return verdicts


def _judge_peak(found: Outcome) -> Verdict:
    peak, what = found.best.peak, f"{found.what}, {found.best.name}: highest rate with {found.limit}"
    assert peak is not None
    if not peak.known:
        do = "ask for a higher SLO_P99_MS, or give" if peak.boundary == NONE_KEPT else "give"
        why = f"{peak.boundary}, and those tried end at {peak.value:.4g}/s; {do} more BUDGET_MINUTES"
        return Verdict(what=what, why=why)
    why = f"the boundary is a cliff: {peak.cliff}" if peak.cliff else f"ends by: {peak.boundary}"
    figure = peak.interval or Interval(value=peak.value, low=peak.value, high=peak.value)
    return Verdict(what=what, figure=figure, unit=" requests/s", why=why)


def describe_gain(found: Outcome, folder: str) -> str:
    """A sentence for the plan's reasons."""
    default, best = found.find_row(DEFAULT).peak, found.best.peak
    if default is None or best is None:
        return f"could not be told, trials in {folder}"
    if not best.known and not found.adopted:
        return f"could not be told, {best.boundary} of those that were tried; trials in {folder}"
    if not found.adopted or found.ratio is None:
        told = f"the default is right: {default.value:.4g}/s at {found.limit}, {found.why_not}"
        return f"{told}; trials in {folder}"
    ratio = found.ratio
    return (
        f"{best.value:.4g}/s at {found.limit} against {default.value:.4g}/s of the default "
        f"({ratio.value:.2f}x, {ratio.low:.2f}-{ratio.high:.2f}{found.bound}); trials in {folder}"
    )


def choose(found: Outcome, *, alone: bool) -> Mapping[str, Any]:
    """What replaces the default's numbers; workers are one number for all models."""
    default, best = found.find_row(DEFAULT).candidate, found.best.candidate
    chosen: dict[str, Any] = {"variant": dict.fromkeys(best.batch, best.variant)} if best.variant else {}
    if sizes := {name: size for name, size in best.batch.items() if size != default.batch[name]}:
        chosen["batch"] = sizes
    if not alone:
        return chosen
    if (best.workers, best.cores_per_worker) != (default.workers, default.cores_per_worker):
        chosen |= {"workers": best.workers, "cores_per_worker": best.cores_per_worker}
    return chosen
