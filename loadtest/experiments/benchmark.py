"""`make benchmark`: the kit as `make serve` runs it, beside plain TorchServe and OpenVINO behind LitServe.

Same weights, same payloads, one run, in turns. `saturated` asks what a closed loop reaches. `around-N` looks
for the rate at which 1 % of the requests are later than the limit; in `limit` each server is measured at
three rates about its own, three times, and the figures are quoted. The kit's servers have the plan that they
get by themselves, and are called through their reverse proxy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from loadtest.bench import Bench
from loadtest.errors import LoadTestError
from loadtest.experiments.ablation import PLAIN_STRETCH
from loadtest.experiments.steps import BERT, RESNET50
from loadtest.load import Load
from loadtest.machine import read_host
from loadtest.plots import COLOURS, GREY, draw_steps
from loadtest.report import INVALID, Result, Verdict, describe_machine, make_table
from loadtest.results import Block, Series
from loadtest.servers.base import Server, Testbed, kept_server
from loadtest.servers.kit import kit_server
from loadtest.servers.openvino_litserve import litserve_server
from loadtest.servers.stock import stock_server
from loadtest.stats import Interval, least_requests
from loadtest.tables import (
    RATIO_METHOD,
    find_rate,
    list_findings,
    tabulate_accuracy,
    tabulate_answers,
    tabulate_latency,
)
from loadtest.tune import peak
from loadtest.tune.experiment import (
    FINAL_SHARES,
    NO_FAULT,
    PEAK_SHARE,
    SHARES,
    list_trials,
)
from loadtest.validity import ENDS_OF_A_SEARCH, find_doubts
from server.archives import read_archive

KIND = "benchmark"
PAYLOADS = {RESNET50: "photos", BERT: "texts"}
PLAIN, LITSERVE, KIT = "plain TorchServe", "OpenVINO behind LitServe", "the kit"
PRECISIONS = {PLAIN: ("fp32",), LITSERVE: ("fp32", "int8"), KIT: ("fp32", "bf16", "int8")}
BATCH = 8
"""That LitServe may gather; the kit's servers plan theirs."""
USERS, SECONDS, REPEATS = 32, 8.0, 3
"""Of a closed loop: enough for two full batches of two workers."""
LONGEST_S, SHORTEST_S = 20.0, 10.0
"""Of a window at a rate: what is fitted is the share of late requests over all nine or more, so that those of
a slow server need not each hold the thousand that a p99 of its own would take."""
WARM_UP_S, MOST_ROUNDS = 20.0, 3
SATURATED, AROUND, LIMIT = "saturated", "around", "limit"
ALLOWED = 0.01
METHOD = (
    "Open loop (Poisson, latency from when a request was due), each server about its own rate: where the "
    "share of requests beyond the limit, or failed, reaches 1 %, in a fit of all windows that rises with the "
    "rate. Intervals draw whole repeats again."
)


def list_servers(model: str, only: Sequence[str]) -> dict[str, Server]:
    """By name, plain TorchServe first; `only` keeps those whose name has one of the words."""
    names = {
        f"{kind} {precision.upper()}": (kind, precision)
        for kind in PRECISIONS
        for precision in PRECISIONS[kind]
    }
    chosen = {name: one for name, one in names.items() if not only or any(word in name for word in only)}
    if not chosen:
        raise LoadTestError(f"--only must be part of one of {', '.join(names)}: got {' '.join(only)}")
    make = {
        PLAIN: lambda name, _: stock_server(name, model, batch_size=None),
        LITSERVE: lambda name, precision: litserve_server(name, model, precision, batch=BATCH),
        KIT: lambda name, precision: kit_server(name, [model], [f"PRECISION={precision}"], instances=None),
    }
    return {name: make[kind](name, precision) for name, (kind, precision) in chosen.items()}


def ask(model: str, testbed: Testbed, servers: Mapping[str, Server], *, limit_ms: float) -> dict[str, Any]:
    archive = read_archive(testbed.store / f"{model}.mar")
    definition = archive.definition
    weights = {"id": archive.archive_id, "weights": definition.weights, "notes": list(definition.notes)}
    return {
        "model": model, "limit_ms": limit_ms, "servers": [*servers], "archive": weights, "host": read_host(),
    }  # fmt: skip


class Measured:
    """What the blocks so far tell of each server."""

    def __init__(self, asked: Mapping[str, Any], blocks: Sequence[Block]) -> None:
        self.blocks, self.names = blocks, list(asked["servers"])
        self.every = [(block.name, series) for block in blocks for series in block.series]
        self.out = {name: f"rejected: {why}" for block in blocks for name, why in block.rejected.items()}
        for _, series in self.every:
            if doubts := find_doubts(series, without=NO_FAULT):
                self.out.setdefault(series.server, f"{INVALID}: {doubts[0]}")
        self.closed = {series.server: series for name, series in self.every if name == SATURATED}
        rated = [(name, series) for name, series in self.every if name != SATURATED]
        self.trials = peak.make_trials(trial for pair in rated for trial in list_trials(*pair, ()))
        self.left = [name for name in self.names if name not in self.out]

    def take(self, name: str, kind: str = "") -> pd.DataFrame:
        return self.trials[(self.trials["plan"] == name) & self.trials["block"].str.startswith(kind)]

    def find_centre(self, name: str) -> float:
        """Where its peak is looked for next."""
        guess = PEAK_SHARE * find_rate(self.closed[name]).value
        return peak.find_centre(self.take(name), guess, ALLOWED)

    def is_bracketed(self, name: str) -> bool:
        own = self.take(name)
        return len(own) > 0 and peak.fit_peak(own, ALLOWED).boundary == peak.WITHIN


def run(bench: Bench, servers: Mapping[str, Server] | None = None) -> Result:
    """Saturated, around the limit, at the limit; then the table."""
    asked, blocks = bench.asked, []
    base = Load(
        name=KIND, models=(asked["model"],), payloads=PAYLOADS[asked["model"]], percentile=99.0,
        limit_ms=asked["limit_ms"], warm_up_s=2.0, timeout_s=60.0,
    )  # fmt: skip

    def take(name: str, loads: Sequence[tuple[str, Load]], repeats: int) -> Measured:
        pairs = [(servers[one] if servers else kept_server(one), load) for one, load in loads]
        blocks.append(bench.turns(name, pairs, repeats=repeats, warm_up_s=WARM_UP_S))
        return Measured(asked, blocks)

    def at_rates(measured: Measured, names: Sequence[str], shares: Sequence[float], seed: int) -> list:
        centres = {name: measured.find_centre(name) for name in names}
        rates = [(name, round(share * centre, 2)) for share in shares for name, centre in centres.items()]
        return [
            (name, replace(base, rate=rate, duration_s=plan_seconds(rate), seed=seed)) for name, rate in rates
        ]

    closed = replace(base, users=USERS, leave_out_first_round=True, least_rounds=2)
    stretch = {PLAIN: PLAIN_STRETCH}
    loads = [
        (name, replace(closed, duration_s=SECONDS * stretch.get(name.rpartition(" ")[0], 1)))
        for name in asked["servers"]
    ]
    measured = take(SATURATED, loads, REPEATS)
    for number in range(1, MOST_ROUNDS + 1):
        names = [name for name in measured.left if not measured.is_bracketed(name)]
        if names:
            measured = take(f"{AROUND}-{number}", at_rates(measured, names, SHARES, 100 + number), 1)
    if measured.left:
        measured = take(LIMIT, at_rates(measured, measured.left, FINAL_SHARES, 200), REPEATS)
    return show(bench, measured)


def plan_seconds(rate: float) -> float:
    """Of a window."""
    return float(min(LONGEST_S, max(SHORTEST_S, math.ceil(least_requests(99) / rate))))


def show(bench: Bench, measured: Measured) -> Result:
    """A row for each server: the rate within the limit, saturation, and both beside plain TorchServe."""
    asked, base = bench.asked, measured.names[0]
    limit = f"p99 ≤ {asked['limit_ms']:g} ms"
    rows, verdicts, drawn = [], [], []
    for name in measured.names:
        own, closed = measured.take(name, LIMIT), measured.closed.get(name)
        why = measured.out.get(name, "" if len(own) else "no window of it may be quoted")
        if why or closed is None:
            rows.append(
                {"server": name, f"{limit}, requests/s": INVALID if INVALID in why else None, "note": why}
            )
            verdicts += [] if why.startswith("rejected") else [Verdict(what=name, why=why)]
            continue
        found = peak.find_peak(own, ALLOWED)
        rate, ratios = find_rate(closed), compare(measured, base, name)
        word = {peak.ALL_KEPT: "above", peak.NONE_KEPT: "below"}.get(found.boundary, "")
        shown = found.interval if not word else f"{word} {found.value:.3g}"
        rows.append({
            "server": name, f"{limit}, requests/s": shown, "ratio": ratios[0],
            f"saturated by {USERS} users, requests/s": rate, "ratio there": ratios[1],
            "mean there, ms": round(1000 * USERS / rate.value), "note": describe(closed),
        })  # fmt: skip
        quoted, why = (None, f"{word} {found.value:.3g}/s") if word else (found.interval, "")
        verdicts.append(Verdict(what=f"{name}: {limit}", figure=quoted, unit=" requests/s", why=why))
        colour = COLOURS[0] if name.startswith(KIT) else COLOURS[1] if name.startswith(LITSERVE) else GREY
        if quoted:
            drawn.append((name, quoted, f"{ratios[0].value:.1f}×" if ratios[0] else "", colour))
    every = [series for _, series in measured.every]
    at_limit = [series for name, series in measured.every if name == LIMIT]
    title = f"{asked['model']}: {limit}, on {describe_machine(bench.kept.host)}"
    return Result(
        title=f"Benchmark of {asked['model']}",
        verdicts=verdicts,
        notes=[f"Weights {asked['archive']['weights']}: {'; '.join(asked['archive']['notes'])}"],
        tables=[
            make_table("Each server", rows, f"Ratios are to {base}, which is as it comes."),
            tabulate_latency(at_limit, "Rates about the limit", ENDS_OF_A_SEARCH),
            tabulate_answers(every),
            tabulate_accuracy(every),
        ],
        plots=[draw_steps(drawn, title=title)],
        findings=list_findings(every, without=ENDS_OF_A_SEARCH),
        method=[RATIO_METHOD, METHOD],
    )


def compare(measured: Measured, base: str, name: str) -> tuple[Interval | None, Interval | None]:
    """To plain TorchServe: (of the rates within the limit, at saturation); None where it has none."""
    if name == base or base in measured.out:
        return None, None
    pair = measured.take(base, LIMIT), measured.take(name, LIMIT)
    saturated = next(block for block in measured.blocks if block.name == SATURATED)
    within = peak.fit_peak(pair[0], ALLOWED).boundary == peak.WITHIN if len(pair[0]) else False
    return peak.compare_peaks(*pair, ALLOWED) if within else None, saturated.ratio(name, base)


def describe(series: Series) -> str:
    """What served: of the kit its plan in a few numbers."""
    plan = series.facts.plan
    if not plan:
        return series.facts.how
    instances = [*plan["instances"].values()]
    (model,) = instances[0]["models"].values()
    return f"{len(instances)} instances behind HAProxy, batch {model['batch_size']}"
