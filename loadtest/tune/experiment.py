"""`make tune` of one model, or of a mix: a race by successive halving, and a final A/B against the default.

`start` loads the default in a closed loop, which tells where its peak may lie. In `round-N` all plans that
are still in it take turns at the same rates with the same arrivals; the worse half of the candidates goes,
until one is left. In `final-N` it meets the default, each about its own peak, and figures are quoted: the
rounds chose the candidate, so their windows flatter it. Do no harm: only what beats the default beyond the
interval is adopted. Each decision follows from what was asked and from the blocks alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from config.planning import Facts
from config.tuned import TUNED_FILE, Tuned, describe_present, write_tuned
from loadtest.bench import Bench
from loadtest.load import Load
from loadtest.plots import COLOURS, GREY, STYLED, label_decades, save_plot
from loadtest.report import INVALID, Plot, Result, Verdict, describe_machine, make_table
from loadtest.results import Block, Series, Window
from loadtest.rows import cut_window, find_good, find_latency
from loadtest.servers.base import Server, kept_server
from loadtest.stats import least_requests, pick
from loadtest.tables import list_findings, tabulate_accuracy, tabulate_answers, tabulate_latency
from loadtest.tune import peak
from loadtest.tune.peak import ALL_KEPT, NONE_KEPT, WITHIN
from loadtest.tune.plans import DEFAULT, choose, name_plans
from loadtest.validity import BUSY_GENERATOR, ENDS_OF_A_SEARCH, OF_THE_MACHINE, find_doubts

KIND, START, ROUND, FINAL = "tune", "start", "round", "final"
NO_FAULT = (*ENDS_OF_A_SEARCH, *OF_THE_MACHINE, BUSY_GENERATOR)
"""Rules whose breach costs a window, and says nothing against its plan."""
PEAK_SHARE = 0.7
"""Of a closed loop's rate: where the peak is looked for first."""
SHARES, FINAL_SHARES = (0.7, 1.0, 1.3), (0.9, 1.0, 1.1)
"""Of the guess, which is no better; of a peak (of the best one in later rounds), which moves by so much."""
FINAL_REPEATS, FINALS, MOST_FINALS = 3, 2, 3
"""The third one where the others do not tell the peaks."""
LEAST_REPEATS = 5
"""Of the final A/B, behind what is adopted: by three of them batch 2 was 1.21 (1.01-1.30) of batch 3, by
three of another tuning on the same host batch 3 was 1.18 (1.02-1.24) of batch 2 (BERT)."""
LEAST_GAIN = 1.01
"""What the lower end of a ratio must be above: of 369 simulated tunings of equal plans, on a machine whose
windows drift by up to 6 % either way, ten were, and 17 were above 1."""
CAP, FEWEST = 4.0, 2
"""Times the limit: beyond it a latency tells how long the window was. Candidates, whatever the budget."""
LEAST_WINDOW_S, LEAST_LIMITS = 4.0, 20
"""So many limits in a window: in it, a server that falls 5 % behind the rate breaks the limit."""
WARM_UP_S, FIRST_WARM_UP_S = 1.0, 20.0
"""Of each window: queues fill within a fraction of the limit. Of each server: Java compiles what it runs, on
the cores that serve: 3 to 4 ms of CPU a request behind the first 600, 1.1 behind 2,000 (seen)."""
WINDOW_EXTRA_S, START_S = 9.0, 50.0
"""Of a window, for its warm-up, Locust, last answers and verify; of a server with its first load (seen)."""
SERVER_MIB, OWN_SHARE = 700, 0.8
"""Of an instance's Java and launchers; of a worker's resident set that is its alone."""
METHOD = (
    "Plans are measured at the same rates with the same arrivals (Poisson, latency from when a request was "
    "due); the worse half of the candidates goes after each round. The last one meets the default in a final "
    "A/B, each about its own peak: where the share of requests beyond the limit, or failed, reaches what the "
    "percentile allows, in a fit of all windows that rises with the rate. Intervals draw whole repeats again."
)


def make_load(asked: Mapping[str, Any]) -> Load:
    """Without a level; who waits ten seconds longer than the limit counts as failed."""
    models, percentile, ms = tuple(asked["models"]), asked["limit"]["percentile"], asked["limit"]["ms"]
    return Load(
        name="-".join((KIND, *models)), models=models, payloads=asked["payloads"], shares=asked["shares"],
        percentile=percentile, limit_ms=ms, warm_up_s=WARM_UP_S, timeout_s=10.0 + ms / 1000,
    )  # fmt: skip


class Race:
    """All that some blocks tell; the first one is `start`."""

    def __init__(self, asked: Mapping[str, Any], blocks: Sequence[Block]) -> None:
        self.asked, self.blocks, self.load = asked, blocks, make_load(asked)
        self.ms, self.allowed = float(asked["limit"]["ms"]), 1 - self.load.percentile / 100
        self.plans = name_plans(asked["candidates"])
        self.limit = f"p{self.load.percentile:g} ≤ {self.ms:g} ms"
        shares = [f"{share:.0%} {model}" for model, share in asked["shares"].items()]
        self.what = ", ".join(shares or asked["models"])
        self.seconds_left = 60 * asked["budget_minutes"] - sum(block.seconds for block in blocks)
        self.every = [(block.name, series) for block in blocks[1:] for series in block.series]
        self.out = find_out(blocks)
        told = [(name, series) for name, series in self.every if series.server not in self.out]
        models = asked["payload_models"]
        self.trials = peak.make_trials(trial for pair in told for trial in list_trials(*pair, models))
        final = {plan: self.take(plan, FINAL) for plan in self.plans}
        self.quoted = {plan: final[plan] if len(final[plan]) else self.take(plan) for plan in self.plans}
        there = [plan for plan in self.plans if len(self.quoted[plan])]
        self.peaks = {plan: peak.find_peak(self.quoted[plan], self.allowed) for plan in there}
        start = blocks[0].find(DEFAULT)
        self.guess = PEAK_SHARE * start.windows[0].rate if start else math.nan  # of the default's peak
        self.held = self._hold(start.windows[-1].memory_mib) if start else []
        self.problem = self._find_problem(start)
        self.best = next(iter(self.rank(self.plans)), DEFAULT)
        pair = final[DEFAULT], final[self.best]
        self.repeats = len(peak.list_common(*pair))
        self.ratio = peak.compare_peaks(*pair, self.allowed) if self.best != DEFAULT else None
        self.seems_better = self.ratio is not None and self.ratio.low > LEAST_GAIN
        self.why_not = self._find_why_not()
        self.served = DEFAULT if self.problem or self.why_not else self.best

    def take(self, plan: str, kind: str = "") -> pd.DataFrame:
        """Trials of one plan, in blocks of a kind."""
        return self.trials[(self.trials["plan"] == plan) & self.trials["block"].str.startswith(kind)]

    def rank(self, candidates: Iterable[str]) -> list[str]:
        """The one with the lowest latencies at the same rates first; one that lacks windows comes behind."""
        own = {plan: self.take(plan, ROUND)["ms"] / self.ms for plan in candidates if plan != DEFAULT}
        levels = {
            plan: (-len(ms), np.log(ms.clip(1 / CAP, CAP)).sum()) for plan, ms in own.items() if len(ms)
        }
        return sorted(levels, key=lambda plan: levels[plan])

    def find_centre(self, plan: str) -> float:
        """The best guess of its peak, to measure about it."""
        return peak.find_centre(self.take(plan), self.guess, self.allowed)

    def _hold(self, memory_mib: Mapping[str, float]) -> list[str]:
        """Candidates that can be up beside the default, by what its workers took under their load."""
        took = OWN_SHARE * sum(memory_mib.values()) / self.plans[DEFAULT].workers
        rest = SERVER_MIB * self.asked["instances"]
        sums = itertools.accumulate(took * plan.workers + rest for plan in self.plans.values())
        return [*self.plans][1 : sum(needed <= self.asked["memory_mib"] for needed in sums)]

    def _find_problem(self, start: Series | None) -> str:
        """Why nothing can be told, or may be measured further."""
        if start is None:
            return f"the default plan cannot be served here: {self.out[DEFAULT]}"
        if doubts := find_doubts(start, without=ENDS_OF_A_SEARCH):
            return f"the default plan cannot be measured here: {doubts[0]}"
        if len(self.plans) > 1 and not self.held:
            return f"two servers must be up together: got {self.asked['memory_mib']} MiB; end other programs"
        if DEFAULT in self.out:
            return f"the default plan is {self.out[DEFAULT]}"
        quiet = len(self.blocks) == 1 or DEFAULT in self.peaks
        return "" if quiet else "no window of the default plan may be quoted: the machine was not quiet"

    def _find_why_not(self) -> str:
        """What speaks against the best candidate; a peak beyond the tried rates flatters none."""
        if not self.seems_better:
            return "no candidate is better beyond its interval"
        if self.repeats < LEAST_REPEATS:
            return f"{self.best} seems better by fewer than {LEAST_REPEATS} repeats of the final A/B"
        if self.peaks[DEFAULT].boundary == ALL_KEPT or self.peaks[self.best].boundary == NONE_KEPT:
            return f"{self.best} seems better, and the rates that were tried do not tell by how much"
        return ""

    def plan_seconds(self, rate: float) -> float:
        """Enough for the rarest model's percentile: more windows tell more than long ones."""
        needed = least_requests(self.load.percentile) / min(self.asked["shares"].values(), default=1)
        return max(LEAST_WINDOW_S, LEAST_LIMITS * self.ms / 1000, round(needed / rate, 1))

    def list_loads(self, centres: Mapping[str, float], shares: Sequence[float], seed: int) -> list:
        """(plan, load), share by share: who is compared takes turns seconds apart, as a machine drifts."""
        rates = [(plan, round(centre * share, 2)) for share in shares for plan, centre in centres.items()]
        kinds: list = [(plan, {"rate": rate, "duration_s": self.plan_seconds(rate)}) for plan, rate in rates]
        return [(plan, replace(self.load, seed=seed, **kind)) for plan, kind in kinds]

    def holds(self, centre: float, count: int, starts: int = 0) -> bool:
        """Whether the budget holds all rounds that begin with so many candidates, and the final A/B."""
        windows = len(FINAL_SHARES) * 2 * FINALS * FINAL_REPEATS
        while count:
            windows += len(SHARES) * (1 + count)
            count = (count + 1) // 2 if count > 2 else 0
        cost = windows * (self.plan_seconds(centre) + WINDOW_EXTRA_S)
        return starts * START_S + cost <= self.seconds_left

    def needs_final(self, centres: Mapping[str, float], done: int) -> bool:
        """The first one, and beyond the budget, too, where a candidate seems better by too few repeats:
        without these a quarter of an hour has told nothing."""
        unproven = self.seems_better and self.repeats < LEAST_REPEATS
        told = [len(self.take(plan, FINAL)) and self.peaks[plan].boundary == WITHIN for plan in centres]
        if unproven or not done or (done < FINALS and not told[0]):
            return True
        each = [self.plan_seconds(centre) + WINDOW_EXTRA_S for centre in centres.values()]
        held = len(FINAL_SHARES) * FINAL_REPEATS * sum(each) <= self.seconds_left
        return held and (done < FINALS or not all(told))


def find_out(blocks: Sequence[Block]) -> dict[str, str]:
    """Plan → why no figure of it may be used: rejected, unverified, a worker died, wrong answers."""
    out: dict[str, str] = {}
    for block in blocks:
        out |= {plan: f"rejected: {reason}" for plan, reason in block.rejected.items()}
        for series in block.series:
            if doubts := find_doubts(series, without=NO_FAULT):
                out[series.server] = str(doubts[0]).replace(f" {series.server}:", "", 1)
    return out


def list_trials(block: str, series: Series, models: Sequence[str]) -> list[tuple]:
    """Windows that may be quoted, each by itself: a disturbed one must not cost the others. A rate beyond
    the peak may fail: so it is found. Of a mix each model must keep the limit: the worst one counts."""
    found, load = [], series.load
    for window, rows in zip(series.windows, series.rows, strict=True):
        alone = replace(series, windows=(window,), rows=(rows,))
        parts = [1000 * part for part in split_latencies(rows, window, models) if len(part)]
        if parts and not find_doubts(alone, without=ENDS_OF_A_SEARCH):
            quoted = max(pick(part, load.percentile) for part in parts)
            late = max(float((part > (load.limit_ms or 0.0)).mean()) for part in parts)
            group, arrived = f"{block} {window.repeat}", window.requests / window.duration_s
            found.append((series.server, block, group, load.level, arrived, quoted, late))
    return found


def split_latencies(rows: pd.DataFrame, window: Window, models: Sequence[str]) -> list[np.ndarray]:
    """Seconds, by model in the order of their names, infinite where a request failed. `models` has each
    payload's model, where they are several."""
    own = cut_window(rows, window.begin_s, window.end_s)
    seconds = np.where(find_good(own), find_latency(own), math.inf)
    asked = np.array(models or [""])[own["payload"].to_numpy() if models else np.zeros(len(own), int)]
    return [seconds[asked == model] for model in sorted({*asked})]


def measure_race(bench: Bench, servers: Mapping[str, Server] | None = None) -> Race:
    """Until the final A/B is decided, or nothing can be told; on kept blocks the same again."""
    blocks: list[Block] = []

    def take(name: str, loads: Iterable[tuple[str, Load]], repeats: int = 1) -> Race:
        pairs = [(servers[plan] if servers else kept_server(plan), load) for plan, load in loads]
        blocks.append(bench.turns(name, pairs, repeats=repeats, warm_up_s=FIRST_WARM_UP_S))
        return Race(bench.asked, [*blocks])

    closed: Any = {"duration_s": 8.0, "timeout_s": 120.0, "leave_out_first_round": True, "least_rounds": 2}
    race = take(START, [(DEFAULT, replace(make_load(bench.asked), **closed))])
    if race.problem:
        return race
    counts = (count for count in range(len(race.held), FEWEST, -1) if race.holds(race.guess, count, count))
    left, centre, shares, number = race.held[: next(counts, FEWEST)], race.guess, SHARES, 1
    while number == 1 or (len(left) > 1 and race.holds(centre, len(left))):
        # Each block has other arrivals, the same ones for all of its plans.
        loads = race.list_loads(dict.fromkeys((DEFAULT, *left), centre), shares, 200 + number)
        race = take(f"{ROUND}-{number}", loads)
        left = race.rank(left)[: (len(left) + 1) // 2]
        bench.say(f"  still in it: {', '.join((DEFAULT, *left))}")
        if race.problem:
            return race
        centre, shares, number = race.find_centre(left[0] if left else DEFAULT), FINAL_SHARES, number + 1
    for done in range(MOST_FINALS):
        centres = {plan: race.find_centre(plan) for plan in (DEFAULT, race.best)}
        if race.problem or not race.needs_final(centres, done):
            break
        loads = race.list_loads(centres, FINAL_SHARES, 251 + done)
        race = take(f"{FINAL}-{done + 1}", loads, FINAL_REPEATS)
    return race


def run(bench: Bench, servers: Mapping[str, Server] | None = None) -> Result:
    """The race, and its page."""
    return show_race(measure_race(bench, servers), bench.kept.host)


def judge(race: Race) -> list[Verdict]:
    """The plan to serve, and what it gains; no figure where the default could not be measured."""
    if race.problem:
        return [Verdict(what=f"{race.what}: tuned", why=race.problem)]
    served, base = race.peaks[race.served], race.peaks[DEFAULT]
    figure = served.interval if served.boundary == WITHIN and len(race.take(race.served, FINAL)) else None
    why = f"the default is right: {race.why_not}" if race.why_not else f"the default has {base.value:.4g}"
    if not figure:
        do = "ask for a higher SLO_P99_MS, or give" if served.boundary == NONE_KEPT else "give"
        why = f"{served.boundary}; those tried end at {served.value:.4g}/s; {do} more --budget-minutes"
    what = f"{race.what}, {race.served}: highest rate with {race.limit}"
    verdicts = [Verdict(what=what, figure=figure, unit=" requests/s", why=why)]
    if race.ratio:
        least = f", at least: the default keeps {race.limit} at no rate that was tried"
        why = ("not adopted" if race.why_not else "adopted") + least * (base.boundary == NONE_KEPT)
        verdicts.append(Verdict(what=f"{race.best} / default", figure=race.ratio, unit="×", why=why))
    return verdicts


def show_race(race: Race, host: Mapping[str, Any]) -> Result:
    """Every plan with what became of it; a plan that is INVALID has no figure."""
    every = [series for _, series in race.every]
    final = [series for block, series in race.every if block.startswith(FINAL)]
    note = "`w2x1-b4`: two workers of one core, batch 4. Rates without an interval are from the rounds."
    # Who is out costs the others nothing, and the machine costs single windows.
    findings = [
        (where, replace(one, invalid=one.invalid and one.server == DEFAULT and one.rule not in NO_FAULT))
        for where, one in list_findings(every, without=ENDS_OF_A_SEARCH)
    ]
    variants = ", ".join(dict.fromkeys(race.asked["variants"].values()))
    weights = ", ".join(f"{model} {known}" for model, known in race.asked["weights"].items())
    return Result(
        title=f"Tuned: {race.what} by {variants}, {race.limit}",
        verdicts=judge(race),
        notes=[f"Weights: {weights}."],
        tables=[
            make_table("Plans", [_show_plan(race, plan) for plan in race.plans], note),
            tabulate_latency(final, "The final A/B", ENDS_OF_A_SEARCH),
            tabulate_answers(every),
            tabulate_accuracy(every),
        ],
        plots=[draw_plans(race, host)],
        findings=findings,
        method=[METHOD],
    )


def _show_plan(race: Race, plan: str) -> dict[str, Any]:
    found, where = race.peaks.get(plan), [block.name for block in race.blocks if block.find(plan)]
    rounds = sum(name.startswith(ROUND) for name in where)
    absent = "no window of it may be quoted" if where else "not measured: no memory, or no budget left"
    word = race.out.get(plan, absent)
    shown: Any = INVALID if word.startswith(INVALID) else None
    if found:
        end = {ALL_KEPT: "above ", NONE_KEPT: "below "}.get(found.boundary, "about ")
        quoted = found.interval if found.boundary == WITHIN and len(race.take(plan, FINAL)) else None
        shown = quoted or f"{end}{found.value:.0f}"
        word = "not better" if plan == race.best else f"dropped after round {rounds}"
        word = "replaced" if plan == DEFAULT else word
        word = ("stays" if plan == DEFAULT else "adopted") if plan == race.served else word
    return {
        "plan": f"default ({race.plans[plan].name})" if plan == DEFAULT else plan,
        "requests/s": shown, "rounds": rounds, "windows": len(race.quoted[plan]),
        "ends by": found.boundary if found else None, "verdict": word,
    }  # fmt: skip


@STYLED
def draw_plans(race: Race, host: Mapping[str, Any]) -> Plot | None:
    """Rate against latency: windows as dots, the limit, what is served."""
    if not (served := race.peaks.get(race.served)):
        return None
    axes = (figure := Figure(figsize=(9.0, 5.2), layout="constrained")).subplots()
    for plan, colour in zip(race.peaks, itertools.cycle([GREY, *COLOURS]), strict=False):
        own = race.take(plan)
        ms = own["ms"].clip(race.ms / CAP, race.ms * CAP)
        axes.plot(own["rate"], ms, "o", color=colour, markersize=5, alpha=0.7, label=plan)
    axes.axhline(race.ms, color="black", linewidth=1, linestyle="--", label=race.limit)
    label = f"served: {race.served}, {served.value:.1f}/s"
    axes.plot(served.value, race.ms, "*", color="black", markersize=15, label=label, zorder=5)
    axes.set_yscale("log")
    label_decades(axes)
    axes.set_xlabel("requests a second that were asked for (open loop)")
    axes.set_ylabel(f"p{race.load.percentile:g}, ms (cut off at {CAP:g} times the limit)")
    axes.set_title(f"{race.what}: plans on {describe_machine(host)}", loc="left", fontsize=11)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9)
    return save_plot("plans", f"Throughput against p{race.load.percentile:g}", figure)


def keep_tuned(races: Sequence[tuple[Race, str]], facts: Facts, run_dir: Path) -> Path:
    """One file for all that were tuned, each with its result's folder; `facts` are those of all models."""
    chosen: dict[str, Any] = {}
    evidence: dict[str, str] = {}
    for race, folder in races:
        numbers = choose(race.plans[DEFAULT], race.plans[race.served], alone=len(races) == 1)
        if numbers:
            numbers.setdefault("variant", dict(race.asked["variants"]))
        for name, value in numbers.items():
            chosen[name] = {**chosen.get(name, {}), **value} if isinstance(value, dict) else value
        told = "; ".join(map(str, judge(race)))
        evidence |= dict.fromkeys(race.asked["models"], f"{told}; trials in results/{folder}")
    facts = replace(facts, archives={name: one for name, one in facts.archives.items() if name in evidence})
    made_for, limit = describe_present(facts), dict(races[0][0].asked["limit"])
    tuned = Tuned(made_for=made_for, limit=limit, chosen=chosen, evidence=evidence)
    write_tuned(file := run_dir / TUNED_FILE, tuned)
    return file
