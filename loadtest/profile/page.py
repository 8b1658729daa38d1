"""What was seen of each server, and the page: two side by side, figure by figure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from loadtest.plots import COLOURS, STYLED, save_plot
from loadtest.profile.onednn import break_down, parse_log, sum_up
from loadtest.profile.threads import ASLEEP, GLANCE_S, USE
from loadtest.profile.tools import COUNTERS, FLAMES
from loadtest.report import INVALID, Plot, Result, Verdict, make_table
from loadtest.results import Block, Series
from loadtest.rows import find_good, find_latency
from loadtest.stats import find_ratio
from loadtest.tables import find_rate, list_findings, tabulate_accuracy, tabulate_answers
from loadtest.validity import find_doubts

PLAIN, THREADS, OPERATORS = "plain", "threads", "operators"
"""What looked beside a load, and the load's name: nothing but the accounts, or a collector."""
QUEUE, LATENCY = "ts_queue_latency_microseconds", "ts_inference_latency_microseconds"
"""TorchServe 0.12, counters of RestJob.java: until a worker takes the request, and until its answer."""
METHOD = (
    "Each server was loaded without and with each collector, in turns. PyTorch's profiler and oneDNN's log "
    "were on for a few runs of the model in each live worker; plain TorchServe's log comes from another "
    "start, and its operators are not shown (--against off shows them)."
)
TOP, LONGEST, WORKS, MOST_THREADS, MOST_CPUS = 12, 80, 0.2, 10, 12
"""Rows of a table; characters of a name; cores that a thread which computes uses or waits for; in the film,
of a worker, and in its legend, as colours come again after six."""


class Evidence:
    """Of one server; where `why` tells a doubt, or why the kit rejects it, it gives no figure. Its shares: of
    TorchServe's own account of a request in the client's; of all operators' own time in that of the runs."""

    def __init__(self, name: str, turns: Block, logged: Series | None = None) -> None:
        self.name, own = name, [one for one in turns.series if one.server == name]
        doubts = [str(doubt) for one in own for doubt in find_doubts(one)]
        self.why = next(iter(doubts), turns.rejected.get(name, ""))
        self.every = [*own, *([logged] if logged else [])]
        self.series = {} if self.why else {one.load.name: one for one in own}
        watched = {key: [window.watched for window in one.windows] for key, one in self.series.items()}
        self.threads: Mapping[str, Any] = next((one for one in watched.get(THREADS, [])[::-1] if one), {})
        uses = pd.DataFrame(self.threads.get("threads", []), columns=USE)
        self.uses = uses.astype(dict.fromkeys(("cores", "waiting", "migrations", "involuntary"), float))
        self.faults = sum(worker["minor_faults"] for worker in self.threads.get("workers", []))
        self.client_ms, self.account_ms, self.account_share = find_times(self.series.get(PLAIN))
        profiles = [told for one in watched.get(OPERATORS, []) for told in one["profiles"]]
        self.runs, self.run_ms, self.operators = add_operators(profiles)
        self.operators_share = float(self.operators["own ms"].sum() / self.run_ms)
        lines = [line for one in profiles for line in one.get("onednn", {}).get("lines", [])]
        if logged and not self.why and not find_doubts(logged):
            lines += [line for window in logged.windows for line in window.watched["onednn"]]
        self.log = parse_log(lines)

    def name_used(self, what: str, part: str) -> str:
        """The OpenMP runtime or the allocator by the workers' own word, and what is mapped of its kind."""
        told = {str(one[what]["name"]) for one in self.series[PLAIN].facts.described if one.get(what)}
        mapped = [name for name in self.threads.get("libraries", ()) if part in name]
        return f"{', '.join(sorted(told)) or 'not known'}; mapped: {', '.join(mapped) or 'none'}"


def find_times(series: Series | None) -> tuple[float, Mapping[str, float], float]:
    """A request's mean ms by the client's clock, its parts by TorchServe's and the handler's, their share."""
    rows, total = pd.concat(series.rows) if series else pd.DataFrame(), Counter[str]()
    client = 1000 * float(find_latency(rows)[find_good(rows)].mean()) if len(rows) else math.nan
    for one in series.windows if series else ():
        total.update(one.watched["account"])
    if not total["requests"] or not total[LATENCY]:
        return client, {}, math.nan
    each = (total[name] for name in (LATENCY, QUEUE, "whole_s", "read_s", "model_s"))
    served, queue, whole, read, model = (1000 * seconds / total["requests"] for seconds in each)
    # Each is measured by another clock than the client's; what none of them covers is a part too.
    return client, {
        "to TorchServe and back, ms": client - served, "queue, ms": queue, "decode, ms": read,
        "batch wait, protocol, ms": served - queue - whole, "model, ms": model,
        "pack, softmax, answer, ms": whole - read - model,
    }, served / client  # fmt: skip


def add_operators(profiles: Sequence[Mapping[str, Any]]) -> tuple[int, float, pd.DataFrame]:
    """(runs of the model, ms of one by the clock around it, operators of one, the most expensive first)."""
    told = [one["operators"] for one in profiles if one.get("operators", {}).get("runs")]
    runs = sum(one["runs"] for one in told)
    run_ms = 1000 * sum(one["seconds"] for one in told) / (runs or math.nan)
    rows = [(name, *counts) for one in told for name, counts in one.get("operators", {}).items()]
    frame = pd.DataFrame(rows, columns=["operator", "calls", "own ms", "whole ms"])
    summed = frame.groupby("operator", sort=False).sum().astype(float) / [1, 1000, 1000] / max(1, runs)
    summed["share %"] = summed["own ms"] / summed["own ms"].sum()
    return runs, run_ms, summed.sort_values("own ms", ascending=False, kind="stable").reset_index()


def show_profile(other: Evidence, kit: Evidence, told: Mapping, verdicts: Sequence[Verdict]) -> Result:
    """A server in doubt shows no figure; `told` is by tool and server, what it saw or why it did not."""
    both = (other, kit)
    shown = [one for one in both if one.series]
    every = [series for one in both for series in one.every]
    looks = [(tool, name, one) for tool in (FLAMES, COUNTERS) for name, one in told[tool.key].items()]
    problems = [f"No {tool.what}: {one['problem']}." for tool, _, one in looks if "problem" in one]
    counted = {name: one["seen"] for tool, name, one in looks if tool is COUNTERS and "seen" in one}
    metrics = dict.fromkeys(metric for one in counted.values() for metric in one)
    tables = [
        make_table("Side by side", (_show_side(one, other) for one in both),
            "Requests a second without any collector, and the rate with each to it: what looking costs."),
        make_table("A request's way", ({
            "server": one.name, "client, ms": one.client_ms, **one.account_ms,
            "TorchServe / client %": one.account_share,
        } for one in sorted(shown, key=lambda one: -len(one.account_ms))),
            "Means in a closed loop with full queues. TorchServe's own account is from accepted to answered: "
            "between it and the client's lie the network, the kernel and the client."),
        make_table("Threads", (row for one in shown for row in _show_workers(one)),
            "Waiting is the part of the time in which busy threads could have run that they spent in a queue "
            "of a CPU; migrations and involuntary switches are of the thread that has most of them."),
        make_table("Memory", ({
            "server": one.name, "allocator": one.name_used("allocator", "malloc"),
            "resident, MiB": ", ".join(str(worker["resident_mib"]) for worker in one.threads["workers"]),
            "minor faults/s": one.faults,
            "minor faults/request": one.faults / np.mean(one.series[THREADS].rates),
        } for one in shown if one.threads),
            "Memory that an allocator gives back after each batch is faulted in again, page by page."),
        make_table("Top-down analysis",
            ({"metric": name, **{who: one.get(name) for who, one in counted.items()}} for name in metrics),
            "Percent of the pipeline's slots, of the handler in one process without a server, by perf."),
        *(make_table(f"Operators of {one.name}", list_top(one.operators),
            f"Of a run of the model by PyTorch's profiler, of {one.runs} in the workers, with it on "
            f"{one.run_ms:.1f} ms each; all are {one.operators_share:.1%}.") for one in shown if one.runs),
        make_table("oneDNN in sum",
            ({"server": one.name, **sum_up(one.log)} for one in shown if any(map(len, one.log))),
            "Reorders of activations are copies into another order of dimensions; those of weights belong to "
            "the load, and a warm worker should have none."),
        *(make_table(f"oneDNN of {one.name}: shapes", list_top(break_down(one.log))) for one in shown),
        tabulate_answers(every), tabulate_accuracy(every),
    ]  # fmt: skip
    films = [draw_film(f"film-{place}", one) for place, one in enumerate(both, 1) if one.threads]
    svgs = [one["seen"].encode() for tool, _, one in looks if tool is FLAMES and "seen" in one]
    drawn = [Plot(name="flame", title="Flame graph, to click", svg=svg, interactive=True) for svg in svgs]
    return Result(
        title=f"Profile: {kit.name} beside {other.name}", verdicts=verdicts, tables=tables,
        plots=films + drawn, findings=list_findings(every), method=[METHOD, *dict.fromkeys(problems)],
        notes=[f"{one.name}: {one.every[0].facts.how}." for one in both if one.every],
    )  # fmt: skip


def _show_side(one: Evidence, other: Evidence) -> dict[str, Any]:
    if not one.series:
        return {"server": one.name, "requests/s": INVALID}
    rates = {name: series.rates for name, series in one.series.items()}
    ratio = find_ratio(rates[PLAIN], other.series[PLAIN].rates) if other.series and one is not other else None
    costs = {f"with {name}, ratio": find_ratio(rates[name], rates[PLAIN]) for name in (THREADS, OPERATORS)}
    cores = {"looking at threads, % of a core": one.threads.get("cost_cores")}
    return {"server": one.name, "requests/s": find_rate(one.series[PLAIN]), "ratio": ratio, **costs, **cores}


def _show_workers(one: Evidence) -> Iterator[dict[str, Any]]:
    described = {told.get("pid"): told.get("threads") or {} for told in one.series[PLAIN].facts.described}
    for worker in one.threads.get("workers", []):
        busy, pools = one.uses[one.uses["pid"] == worker["pid"]], described.get(worker["pid"], {})
        wanted = busy["cores"] / (1 - busy["waiting"]).clip(lower=1e-9)
        yield {
            "server": one.name, "worker": worker["pid"], "threads": worker["threads"],
            "computing": int((wanted.fillna(busy["cores"]) > WORKS).sum()), "cores used": busy["cores"].sum(),
            "CPUs": ",".join(map(str, sorted({cpu for strip in busy["strip"] for cpu in strip} - {ASLEEP}))),
            "migrations/s": busy["migrations"].max(), "involuntary/s": busy["involuntary"].max(),
            "waiting %": 1 - busy["cores"][wanted.notna()].sum() / (wanted.sum() or math.nan),
            "throttled of a period, ms": worker["throttled_ms"], "OpenMP": one.name_used("openmp", "omp"),
            "intra-op": pools.get("intra_op"), "inter-op": pools.get("inter_op"),
        }  # fmt: skip


def list_top(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The first rows, and the others added up; backends name a fusion by all that is in it, which is cut."""
    first, others = frame.columns[0], frame.iloc[TOP:]
    rows = frame.head(TOP).assign(**{first: frame[first].str.slice(0, LONGEST)}).to_dict("records")
    added = others[[name for name in ("calls", "ms", "own ms", "share %") if name in others]].sum()
    return [*rows, {first: f"{len(others)} others", **added.to_dict()}] if len(others) else rows


@STYLED
def draw_film(name: str, one: Evidence) -> Plot:
    """A row for each thread, a colour for each CPU; grey where it slept."""
    uses = one.uses.sort_values("pid", kind="stable").groupby("pid").head(MOST_THREADS).to_dict("records")
    strips = [use["strip"] for use in uses] or [[ASLEEP]]
    cpus = sorted({cpu for strip in strips for cpu in strip} - {ASLEEP})
    colours = ["#f0f0f0", *(COLOURS[place % len(COLOURS)] for place in range(len(cpus)))]
    places, extent = np.searchsorted([ASLEEP, *cpus], strips), (0, len(strips[0]) * GLANCE_S, len(strips), 0)
    figure = Figure(figsize=(9.0, 1.6 + 0.24 * max(4, len(uses))), layout="constrained")
    axes = figure.subplots()
    axes.imshow(places, cmap=ListedColormap(colours), vmin=0, vmax=max(1, len(cpus)), aspect="auto",
                interpolation="none", extent=extent)  # fmt: skip
    labels = [f"{use['pid']} {use['name']}, {use['cores']:.2f} cores" for use in uses]
    axes.set_yticks(np.arange(len(uses)) + 0.5, labels, fontsize=8)
    axes.hlines(range(1, len(uses)), 0, extent[1], color="white", linewidth=1)
    axes.set_title(f"{one.name}: the CPU of each busy thread, by seconds", loc="left", fontsize=11)
    named = [Patch(color=colours[1 + n], label=f"CPU {cpu}") for n, cpu in enumerate(cpus[:MOST_CPUS])]
    figure.legend(handles=named, loc="outside lower center", ncols=6, frameon=False)
    return save_plot(name, f"Where the threads of {one.name} ran", figure)
