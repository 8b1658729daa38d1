"""What is kept of a tuning tells: a row for each plan, the best one against the default, the choice.

The candidates are measured at the same rates with the same arrivals; the one with the lowest latencies meets
the default in the final A/B, each about its own peak. The figures that are quoted of the two are from there:
the first block chose the candidate, so its windows flatter it. Do no harm: only what beats the default beyond
the interval is chosen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from loadtest.errors import LoadTestError
from loadtest.experiments.tune.candidate import DEFAULT, Candidate
from loadtest.experiments.tune.curve import (
    ALL_KEPT,
    NONE_KEPT,
    Limit,
    Peak,
    Seen,
    compare_peaks,
    find_level,
    find_peak,
    fit_peak,
    list_groups,
)
from loadtest.results.kept import Kept
from loadtest.results.stats import Interval, pick
from loadtest.results.trial import Series
from loadtest.trials.block import Verdict
from loadtest.trials.validity import BUSY_GENERATOR, ENDS_OF_A_SEARCH, OF_THE_MACHINE, find_doubts

START, FINAL = "start", "final"
"""Blocks: a closed loop of the default; the kind whose windows are quoted."""
NO_FAULT = (*ENDS_OF_A_SEARCH, *OF_THE_MACHINE, BUSY_GENERATOR)
"""Rules whose breach costs a window, and says nothing against its plan."""
PEAK_SHARE = 0.7
"""Of a closed loop's rate: where the peak is looked for first."""
LEAST_REPEATS = 5
"""Of the final A/B, behind what is chosen: by three of them batch 2 was 1.21 (1.01-1.30) of batch 3, by three
of another tuning on the same host batch 3 was 1.18 (1.02-1.24) of batch 2 (BERT)."""
LEAST_GAIN = 1.01
"""What the lower end of a ratio must be above: of 120 simulated tunings of equal plans, on a machine whose
windows drift by 6 %, one was, and five were above 1."""
OUTWARD = 1.12
"""From the end of the rates that were tried, where the peak lies beyond: the next rates then begin below it,
and one bad window does not send all the next ones far from the peak."""
LEFT_OUT = "left out: memory or BUDGET_MINUTES had no room"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One plan."""

    name: str
    candidate: Candidate
    peak: Peak | None = None
    """None where there is no figure, and `invalid` says why; or it was left out."""
    windows: int = 0
    """That its peak is from."""
    final: bool = False
    """Whether they are of the final A/B."""
    invalid: str = ""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Of a tuning, finished or not."""

    what: str
    """The model, or the shares of the mix."""
    limit: Limit
    guess: float
    """Of the default's peak, by its closed loop."""
    rows: tuple[Row, ...]
    """The default first, then in the order of their peaks."""
    best: str | None
    """The candidate for the final A/B; None where none could be measured."""
    seen: tuple[Seen, ...]
    """Every window that may be quoted."""
    ratio: Interval | None
    """Of the best one's peak to the default's; None without three repeats of the final A/B."""
    repeats: int
    """Of the final A/B that both had."""

    @property
    def seems_better(self) -> bool:
        return self.ratio is not None and self.ratio.low > LEAST_GAIN

    @property
    def why_not(self) -> str:
        """What speaks against the best candidate; a peak beyond the tried rates flatters none."""
        if self.best is None or not self.seems_better:
            return "no candidate is better beyond its interval"
        if self.repeats < LEAST_REPEATS:
            return f"{self.best} seems better by fewer than {LEAST_REPEATS} repeats of the final A/B"
        default, other = (self.find_row(name).peak for name in (DEFAULT, self.best))
        if not default or not other or default.boundary == ALL_KEPT or other.boundary == NONE_KEPT:
            return f"{self.best} seems better, and the rates that were tried do not tell by how much"
        return ""

    @property
    def adopted(self) -> bool:
        """Whether the best candidate replaces the default."""
        return not self.why_not

    @property
    def bound(self) -> str:
        """Behind a ratio that is the least it can be: the default's peak is below all rates tried."""
        default = self.find_row(DEFAULT).peak
        kept_none = default is not None and default.boundary == NONE_KEPT
        return f", at least: the default keeps {self.limit} at no rate that was tried" if kept_none else ""

    @property
    def served(self) -> Row:
        """What is to be served."""
        return self.find_row(self.best if self.adopted and self.best else DEFAULT)

    def find_row(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)

    def find_centre(self, name: str) -> float:
        """The best guess of a plan's peak, to measure about it."""
        own = [one for one in self.seen if one.plan == name]
        if not own:
            return self.guess
        peak = fit_peak(own, self.limit)
        return peak.value * {ALL_KEPT: OUTWARD, NONE_KEPT: 1 / OUTWARD}.get(peak.boundary, 1.0)


def find_outcome(kept: Kept) -> Outcome:
    """Of a tuning, finished or not; LoadTestError where the default's closed loop tells nothing."""
    asked, guess, seen, out = kept.asked, PEAK_SHARE * read_start(kept), list(list_seen(kept)), list_out(kept)
    limit = Limit(percentile=float(asked["limit"]["percentile"]), seconds=float(asked["limit"]["ms"]) / 1000)
    plans = name_plans([Candidate(**one) for one in asked["candidates"]])
    tried = {name for block in kept.blocks for name in (*block.systems, *block.refused)}
    rows = []
    for name, candidate in plans.items():
        final = _list_final(seen, name)  # of who was in it; else the first block's windows
        own = final or [one for one in seen if one.plan == name]
        row = Row(name=name, candidate=candidate, windows=len(own), final=bool(final))
        if name in out or (name in tried and not own):
            why = out.get(name, "no window of it may be quoted: the machine was not quiet")
            rows.append(replace(row, invalid=why))
        else:
            rows.append(replace(row, peak=find_peak(own, limit)) if own else row)
    best = find_best([one for one in seen if one.plan not in (DEFAULT, *out)], limit)
    base, other = (_list_final(seen, name) for name in (DEFAULT, best))
    return Outcome(
        what=", ".join(f"{share:.0%} {name}" for name, share in asked["shares"].items())
        or asked["models"][0],
        limit=limit,
        guess=guess,
        rows=tuple(sorted(rows, key=lambda row: (row.name != DEFAULT, -(row.peak.value if row.peak else 0)))),
        best=best,
        seen=tuple(seen),
        ratio=compare_peaks(base, other, limit),
        repeats=len({*list_groups(base)} & {*list_groups(other)}),
    )


def name_plans(plans: Sequence[Candidate]) -> dict[str, Candidate]:
    """By name, the default first."""
    default, *candidates = plans
    return {DEFAULT: default, **{one.name: one for one in candidates}}


def read_start(kept: Kept) -> float:
    """Requests a second of the default's closed loop; LoadTestError where it is in doubt, as all after it
    would be."""
    block = kept.find(START)
    if block is None:
        raise LoadTestError(f"{kept.folder.name}: nothing was measured yet")
    if DEFAULT in block.refused:
        raise LoadTestError(f"the default plan cannot be served here: {block.refused[DEFAULT]}")
    (series,) = kept.list_series(block)
    if doubts := find_doubts(series, without=ENDS_OF_A_SEARCH):
        raise LoadTestError(f"what the default plan does here cannot be told: {doubts[0]}")
    return series.trials[0].rate


def list_seen(kept: Kept) -> Iterator[Seen]:
    """Every window of an open loop that may be quoted. A rate beyond the peak may fail: that is how a peak is
    found. Of a mix each model must keep the limit, so the worst one counts."""
    blocks = [block for block in kept.list_blocks() if block.name != START]
    for block, series in [(one, series) for one in blocks for series in kept.list_series(one)]:
        latency = series.scenario.latency
        for trial, records in zip(series.trials, series.records, strict=True):
            # Each repeat alone: a disturbed one must not cost the others.
            window = replace(series, trials=(trial,), records=(records,))
            if find_doubts(window, without=ENDS_OF_A_SEARCH):
                continue
            parts = split_latencies(window, kept.asked["payload_models"])
            each_ms = [1000 * one for one in parts if len(one)]
            yield Seen(
                plan=series.system,
                block=block.name,
                repeat=trial.repeat,
                rate=series.level,
                arrived=trial.arrived,
                quoted_ms=max(pick(one, latency.percentile) for one in each_ms),
                late=max(float((one > (latency.limit_ms or 0.0)).mean()) for one in each_ms),
            )


def split_latencies(series: Series, models: Sequence[str]) -> list[np.ndarray]:
    """Seconds of its first window's requests, by model in the order of their names; infinite where one
    failed. `models` has each payload's model, where they are several."""
    trial, records = series.trials[0], series.records[0]
    window = records.within(trial.begin_s, trial.end_s)
    seconds = np.where(window.good, window.latency, math.inf)
    if not models:
        return [seconds]
    asked = np.array(models)[window.payload]
    return [seconds[asked == model] for model in sorted({*models})]


def list_out(kept: Kept) -> dict[str, str]:
    """Plan → why no figure of it may be used: refused, unverified, a worker died, wrong answers."""
    out: dict[str, str] = {}
    for block in kept.list_blocks():
        out |= block.refused
        for series in kept.list_series(block):
            if doubts := find_doubts(series, without=NO_FAULT):
                out[series.system] = str(doubts[0]).removeprefix(f"INVALID: {series.system}: ")
    return out


def find_best(seen: Sequence[Seen], limit: Limit) -> str | None:
    """The candidate with the lowest latencies at the same rates; one that lacks windows comes behind."""
    levels: dict[str, list[float]] = {}
    for one in seen:
        if not one.block.startswith(FINAL):
            levels.setdefault(one.plan, []).append(find_level(one, limit))
    return min(levels, key=lambda name: (-len(levels[name]), sum(levels[name])), default=None)


def _list_final(seen: Sequence[Seen], name: str | None) -> list[Seen]:
    return [one for one in seen if one.plan == name and one.block.startswith(FINAL)]


def judge(kept: Kept) -> list[Verdict]:
    """The plan to serve, and what it gains; no figure where the default could not be measured."""
    try:
        found = find_outcome(kept)
    except LoadTestError as problem:
        return [Verdict(what=f"{', '.join(kept.asked['models'])}: tuned", why=str(problem))]
    default = found.find_row(DEFAULT)
    if default.peak is None:
        return [Verdict(what=f"{found.what}: tuned", why=f"the default plan is INVALID: {default.invalid}")]
    peak, what = found.served.peak, f"{found.what}, {found.served.name}: highest rate with {found.limit}"
    assert peak is not None
    figure = peak.interval or Interval(value=peak.value, low=peak.value, high=peak.value)
    verdicts = [Verdict(what=what, figure=figure, unit=" requests/s")]
    if not peak.known:
        do = "ask for a higher SLO_P99_MS, or give" if peak.boundary == NONE_KEPT else "give"
        why = f"{peak.boundary}, and those tried end at {peak.value:.4g}/s; {do} more BUDGET_MINUTES"
        verdicts = [Verdict(what=what, why=why)]
    if found.ratio is not None:
        word = f"not chosen: {found.why_not}" if found.why_not else "chosen"
        what, why = f"{found.best} / default", f"{word}{found.bound}"
        verdicts.append(Verdict(what=what, figure=found.ratio, unit="×", why=why))
    return verdicts


def describe_gain(found: Outcome, folder: str) -> str:
    """A sentence for the plan's reasons."""
    default, served, ratio = found.find_row(DEFAULT).peak, found.served.peak, found.ratio
    if default is None or served is None:
        told = "could not be told"
    elif found.adopted and ratio is not None:
        told = (
            f"{served.value:.4g}/s at {found.limit} against {default.value:.4g}/s of the default "
            f"({ratio.value:.2f}x, {ratio.low:.2f}-{ratio.high:.2f}{found.bound})"
        )
    elif not served.known:
        told = f"could not be told, {served.boundary} of those that were tried"
    else:
        told = f"the default is right: {default.value:.4g}/s at {found.limit}, {found.why_not}"
    return f"{told}; trials in {folder}"


def choose(found: Outcome, *, alone: bool) -> Mapping[str, Any]:
    """What replaces the default's numbers; workers are one number for all models."""
    default, best = found.find_row(DEFAULT).candidate, found.served.candidate
    chosen: dict[str, Any] = {"variant": dict.fromkeys(best.batch, best.variant)} if best.variant else {}
    if sizes := {name: size for name, size in best.batch.items() if size != default.batch[name]}:
        chosen["batch"] = sizes
    if alone and (best.workers, best.cores_per_worker) != (default.workers, default.cores_per_worker):
        chosen |= {"workers": best.workers, "cores_per_worker": best.cores_per_worker}
    return chosen
