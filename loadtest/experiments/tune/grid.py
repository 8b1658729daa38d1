"""`make tune GRID=1`: every plan of a grid live, to judge what a race of few plans found, and its simulator;
or those alone that are named.

`start` measures the default plan, as in the race; with it every plan of the grid is simulated. Then each is
served and measured about its simulated peak. Last, the best of the grid and the plan that `make tune` found
take turns: the grid takes its time, machines drift, and the best of many is also the luckiest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from loadtest.errors import LoadTestError
from loadtest.experiments.tune.candidate import DEFAULT, NAME, Candidate, list_candidates
from loadtest.experiments.tune.curve import (
    ALL_KEPT,
    NONE_KEPT,
    Peak,
    Seen,
    compare_peaks,
    find_peak,
    fit_peak,
)  # fmt: skip
from loadtest.experiments.tune.evidence import (
    START,
    list_done,
    list_latencies,
    list_out,
    list_points,
    list_seen,
    list_tried,
    list_windows,
)  # fmt: skip
from loadtest.experiments.tune.experiment import UP_S, Course, find_cost
from loadtest.experiments.tune.outcome import find_outcome
from loadtest.experiments.tune.pace import WORKER, find_cpu_s
from loadtest.experiments.tune.race import (
    FINAL_RATES,
    FINAL_REPEATS,
    FINALS,
    GRID,
    MOST_FINALS,
    Race,
    Stage,
    count_blocks,
    guess_peak,
    scale_rates,
)  # fmt: skip
from loadtest.experiments.tune.raced import FINAL, is_bracketed, list_finals
from loadtest.experiments.tune.space import Overheads, Points, Space, find_overheads, predict, read_space
from loadtest.results.kept import Kept
from loadtest.results.stats import Interval, pick
from loadtest.results.trial import Series
from loadtest.simulation.overhead import find_pace
from loadtest.simulation.search import replay_percentiles
from loadtest.simulation.server import replay
from loadtest.simulation.service import ServiceTimes
from loadtest.trials.block import Block, Experiment, Verdict
from loadtest.trials.validity import ENDS_OF_A_SEARCH, find_doubts

KIND = "tune-grid"
DELAYS_MS = (1, 5, 20, 50)
RATES = (0.76, 0.8, 0.95, 1.1)
"""Of the simulated peak."""
JUDGED = 2
"""Of these, the lowest: the simulator's latencies are judged by that window which met the machine nearer to
its pace of `start`."""
PACE_WITHIN = 0.02
"""Plans that met it so near are told apart: the times that it goes by are of that pace, and a shared host is
a tenth slower in one minute than in the next. Of 27 windows of a race p50 was within 10 % in 15 and p99
within 15 % in 14; of the 13 so near in 12 and 12 (2026-11-24, two Zen 4 cores)."""
BEYOND = {ALL_KEPT: (1.12, 1.25), NONE_KEPT: (0.75, 0.88)}
"""Of the end of the rates that were tried, where the peak lies beyond it."""
MOST_TRIES = 2
TIMES = 4
"""As many requests in a window as the percentile needs at least, where plans are named: of BERT's p99 an
exact simulator has 81 % within 15 % with 740 requests, 92 % with 1,480 (seven plans, simulated). A whole grid
has the race's windows: it is there for the best, whom the finals tell, and would take BERT three hours."""
BEST = 2
"""Of the grid, in the finals."""
LEAST_REACHED = 0.95
P50_WITHIN, QUOTED_WITHIN, LEAST_SHARE = 0.10, 0.15, 0.9
"""The simulator is right where so many points lie so near."""
DRAWS = range(100, 120)
"""Seeds of service times, other than those of the simulation: what an exact simulator would meet."""
AT_USUAL_PACE = f"which met the machine within {PACE_WITHIN:.0%} of its pace of `start`"
AT_ITS_PACE = "with times as much longer as the workers took in that very window"


@dataclass(frozen=True, kw_only=True)
class Grid:
    """What is measured next follows from what is kept."""

    course: Course
    tuned: str
    """The plan that must come near the best."""

    def next_block(self, kept: Kept) -> Block | None:
        if kept.find(START) is None:
            return self.course.make_start()
        stage = self._next_plan(kept) or self._next_final(kept)
        return self.course.make_block(stage) if stage else None

    def estimate(self, kept: Kept) -> float:
        """Seconds that are left, if each plan's peak is between its first rates."""
        space, windows, begun = self.course.space, self.course.windows, kept.find(START) is not None
        names, finals = list_names(space, kept.asked), count_blocks(list_done(kept), FINAL)
        peak = self._guess_peak(list_points(space, kept) if begun else (), DEFAULT)

        def cost(shares: Sequence[float], repeats: int = 1) -> float:
            rates = {DEFAULT: scale_rates(peak, shares)}
            return find_cost(Stage(name=GRID, rates=rates, repeats=repeats), windows)

        finalists = min(1 + BEST, len({*names, self.tuned}))
        final = UP_S * (not finals) + max(0, FINALS - finals) * cost(FINAL_RATES, FINAL_REPEATS)
        start = 0.0 if begun else self.course.cost_start(peak)
        return start + len({*names} - {*list_tried(kept)}) * (UP_S + cost(RATES)) + finalists * final

    def _next_plan(self, kept: Kept) -> Stage | None:
        """The first one whose peak is not known yet."""
        done, out, seen = list_done(kept), list_out(kept), list_seen(kept)
        for name in list_names(self.course.space, kept.asked):
            tries = sum(name in plans for plans in done.values())
            rates = self._choose_rates(kept, name, seen) if tries < MOST_TRIES and name not in out else ()
            if rates:
                return Stage(name=f"{GRID}-{len(done) + 1}", rates={name: rates})
        return None

    def _choose_rates(self, kept: Kept, name: str, seen: Sequence[Seen]) -> tuple[float, ...]:
        """About the simulated peak, or beyond those that were tried; none where the peak is known."""
        own, space = [one for one in seen if one.plan == name], self.course.space
        if not own:
            return scale_rates(self._guess_peak(list_points(space, kept), name), RATES)
        peak = fit_peak(own, space.limit)
        return scale_rates(peak.value, BEYOND.get(peak.boundary, ()))

    def _guess_peak(self, points: Points, name: str) -> float:
        own = {name: predict(self.course.space, points, name)}
        return guess_peak({**self.course.predict(points, 1), **own}, name)

    def _next_final(self, kept: Kept) -> Stage | None:
        """Each about its peak as it is known by then: one slow minute in the grid else puts all rates of a
        plan below it (seen: batch 1 of BERT was measured at 26 to 32/s, all of which it kept)."""
        space, seen, finals = self.course.space, list_seen(kept), count_blocks(list_done(kept), FINAL)
        peaks = find_peaks(space, kept)
        # Above all rates that were tried is the better for it.
        others = [name for name in peaks if name != self.tuned and peaks[name].boundary != NONE_KEPT]
        best = sorted(others, key=lambda name: -peaks[name].value)[:BEST]
        points = list_points(space, kept)
        predicted = {name: predict(space, points, name) for name in (self.tuned, *best) if name in peaks}
        told = all(is_bracketed(seen, name, space.limit) for name in predicted)
        if len(predicted) < 2 or finals >= (FINALS if told else MOST_FINALS):
            return None
        race = Race(predicted=predicted, limit=space.limit, done={})
        rates = {name: scale_rates(race.find_centre(name, seen), FINAL_RATES) for name in predicted}
        return Stage(name=f"{FINAL}-{finals + 1}", rates=rates, repeats=FINAL_REPEATS)


def list_names(space: Space, asked: Mapping[str, Any]) -> list[str]:
    """Every plan of the grid, the default by its numbers among them; or those that were named, with the tuned
    one. Older results could name none."""
    if asked.get("plans"):
        return [*asked["plans"]]
    layouts = [layout for layout, _ in space.times]
    every = (space.default, *list_candidates(layouts, pick_batches(space), DELAYS_MS))
    return list(dict.fromkeys(one.name for one in every))


def pick_batches(space: Space) -> list[int]:
    """1, 2, 4, 8 … as far as such a batch alone keeps the limit in some layout: with 3, 6, 12 and all that
    were timed the grid would have 74 plans, and twice the hours."""

    def keeps(batch: int) -> bool:
        return any(times.mean_s(batch) <= space.limit.seconds for _, times in space.times)

    return [batch for batch in space.batches if batch & (batch - 1) == 0 and keeps(batch)]


def check_plans(plans: Sequence[str], space: Space) -> None:
    """LoadTestError for what is no plan, or one whose times nobody took."""
    layouts = [layout for layout, _ in space.times]
    for name in plans:
        one = Candidate.parse(name) if NAME.fullmatch(name) else None
        if one is None or one.layout not in layouts or one.batch not in space.batches:
            known = " or ".join(f"w{workers}x{cores}" for workers, cores in layouts)
            batches = ", ".join(map(str, space.batches))
            raise LoadTestError(
                f"GRID must be 0, 1, or plans such as {space.default.name}, with {known} and a batch of "
                f"{batches}: got {name}"
            )


def find_peaks(space: Space, kept: Kept) -> dict[str, Peak]:
    """Plan → its peak, the finals' windows left out; plans without a valid window have none."""
    out, seen = list_out(kept), [one for one in list_seen(kept) if one.block.startswith(GRID)]
    names = [name for name in list_names(space, kept.asked) if name not in out]
    by_name = {name: [one for one in seen if one.plan == name] for name in names}
    return {name: find_peak(own, space.limit) for name, own in by_name.items() if own}


@dataclass(frozen=True, kw_only=True)
class Met:
    """A window of the grid beside its simulation with the very arrivals of that window: some hundred others
    at the same rate have a p50 a tenth apart by chance. Seconds."""

    plan: str
    rate: float
    p50: tuple[float, float]
    """Simulated and live."""
    quoted: tuple[float, float]
    """Of the limit's percentile."""
    pace: float
    """Of its workers for a request, to those of `start`; 1 where a window does not tell."""
    paced: tuple[float, float]
    """Simulated p50 and percentile with all times as much longer."""
    exact: tuple[float, float]
    """Shares of draws of the simulation itself whose p50 and percentile lie as near to it as live ones shall:
    the chance of so few requests."""


def list_met(space: Space, kept: Kept) -> list[Met]:
    """Each plan at one of the lowest rates that were asked of it first, whichever had the usual pace."""
    overheads, windows = find_overheads(space, list_points(space, kept)), list(_list_lowest(kept))
    paces = [_find_pace(space, overheads, window) for window in windows]
    # The last one of a plan stays: that whose pace is the nearest.
    pairs = sorted(zip(windows, paces, strict=True), key=lambda pair: -abs(math.log(pair[1])))
    chosen = {window.system: (window, pace) for window, pace in pairs}
    return [_meet(space, overheads, *chosen[name]) for name in dict.fromkeys(one.system for one in windows)]


def _list_lowest(kept: Kept) -> Iterator[Series]:
    met: set[str] = set()
    for block in (one for one in kept.list_blocks() if one.name.startswith(GRID)):
        windows = [window for one in kept.list_series(block) for window in list_windows(one)][:JUDGED]
        fresh = [one for one in windows if one.system not in met]
        valid = [one for one in fresh if not find_doubts(one, without=ENDS_OF_A_SEARCH)]
        met |= {one.system for one in valid}
        yield from valid


def _find_pace(space: Space, overheads: Overheads, window: Series) -> float:
    """To that of its layout's `start`; 1 where the window does not tell."""
    one = space.find_candidate(window.system)
    spent = find_cpu_s(window.trials[0], WORKER) / one.cores_per_worker
    slow_down, due = space.find_times(one, overheads).scale, window.records[0].begun.tolist()
    return find_pace(space.simulate(one), slow_down, due, spent) if spent else 1.0


def _meet(space: Space, overheads: Overheads, window: Series, pace: float) -> Met:
    one, live = space.find_candidate(window.system), list_latencies(window)
    plan, times = space.simulate(one), space.find_times(one, overheads)
    trial, due, both = window.trials[0], window.records[0].begun.tolist(), (50, space.limit.percentile)
    within = {"begin_s": trial.begin_s, "end_s": trial.end_s}

    def simulate(own: ServiceTimes) -> list[float]:
        return replay_percentiles(plan, own, due, **within, percentiles=both)

    def share(place: int, bound: float) -> float:
        return float(np.mean([is_near(found[place], pick(one, both[place]), bound) for one in drawn]))

    found, paced = simulate(times), simulate(times.scale(pace))
    drawn = [replay(plan, times, due, seed=seed, **within) for seed in DRAWS]
    return Met(
        plan=window.system,
        rate=window.level,
        p50=(found[0], pick(live, both[0])),
        quoted=(found[1], pick(live, both[1])),
        pace=pace,
        paced=(paced[0], paced[1]),
        exact=(share(0, P50_WITHIN), share(1, QUOTED_WITHIN)),
    )


def is_near(simulated: float, live: float, within: float) -> bool:
    return abs(simulated / live - 1) <= within


def judge(kept: Kept) -> list[Verdict]:
    """What was found against the best of the grid; how many points the simulator told."""
    space = read_space(kept.asked)
    met = list_met(space, kept)
    near = [one for one in met if abs(one.pace - 1) <= PACE_WITHIN]
    quoted = f"p{space.limit.percentile:g}"
    counted = f"{len(near)} of {len(met)} plans, {AT_USUAL_PACE}"
    p50_chance, quoted_chance = (_tell_chance([one.exact[place] for one in met]) for place in (0, 1))
    told = [
        Verdict(what=f"{kept.asked['model']}: points whose {what} was simulated within {within:.0%}",
                figure=_share(pairs, within), limit=limit, why=why)
        for what, within, limit, why, pairs in (
            ("p50", P50_WITHIN, LEAST_SHARE, p50_chance, [one.p50 for one in met]),
            (quoted, QUOTED_WITHIN, LEAST_SHARE, quoted_chance, [one.quoted for one in met]),
            ("p50", P50_WITHIN, None, counted, [one.p50 for one in near]),
            (quoted, QUOTED_WITHIN, None, counted, [one.quoted for one in near]),
            ("p50", P50_WITHIN, None, AT_ITS_PACE, [(one.paced[0], one.p50[1]) for one in met]),
            (quoted, QUOTED_WITHIN, None, AT_ITS_PACE, [(one.paced[1], one.quoted[1]) for one in met]),
        )
        if pairs or limit  # What is told beside them is left out where no plan tells it; that fails nothing.
    ]  # fmt: skip
    return [_judge_tuned(kept, space), *told]


def _tell_chance(shares: Sequence[float]) -> str:
    return f"an exact simulator would have {np.mean(shares):.0%}" if shares else ""


def _share(pairs: Sequence[tuple[float, float]], within: float) -> Interval | None:
    if not pairs:
        return None
    share = sum(is_near(*pair, within) for pair in pairs) / len(pairs)
    return Interval(value=share, low=share, high=share)


def _judge_tuned(kept: Kept, space: Space) -> Verdict:
    tuned, ratios = str(kept.asked["tuned"]), compare_with_tuned(kept, space)
    count = len(list_names(space, kept.asked))
    what = f"{kept.asked['model']}: the tuned plan, {tuned}, against the best of {count}"
    if not ratios:
        return Verdict(what=what, why="the finals were not measured")
    best, seen = min(ratios, key=lambda name: ratios[name].value), list_seen(kept)
    beyond = [one for one in (tuned, best) if not is_bracketed(seen, one, space.limit)]
    doubt = f"; the peak of {' and '.join(beyond)} lies beyond the rates that were tried" if beyond else ""
    why = f"the best: {best}{doubt}"
    return Verdict(what=what, figure=ratios[best], unit="×", limit=LEAST_REACHED, why=why)


def compare_with_tuned(kept: Kept, space: Space) -> Mapping[str, Interval]:
    """Plan of the grid → the tuned plan's peak over its own, by windows in turns."""
    tuned, seen = str(kept.asked["tuned"]), list_seen(kept)
    own = list_finals(seen, tuned)
    others = dict.fromkeys(one.plan for one in seen if one.block.startswith(FINAL) and one.plan != tuned)
    pairs = {name: compare_peaks(list_finals(seen, name), own, space.limit) for name in others}
    return {name: ratio for name, ratio in pairs.items() if ratio}


def make_experiment(
    course: Course, asked: Mapping[str, Any], tune: Kept, plans: Sequence[str] = ()
) -> Experiment:
    """Of the model, the limit and the plans of a race that is kept."""
    check_plans(plans, course.space)
    best = find_outcome(tune).best
    tuned = best.candidate.name if best.name == DEFAULT else best.name
    served = list(dict.fromkeys((tuned, *plans))) if plans else []
    windows = replace(course.windows, times=TIMES) if plans else course.windows
    grid = Grid(course=replace(course, windows=windows), tuned=tuned)
    return Experiment(
        kind=KIND,
        name=f"{KIND}-{course.windows.model}",
        asked={**asked, "tuned": tuned, "tune": tune.folder.name, "plans": served},
        next_block=grid.next_block,
        estimate=grid.estimate,
    )
