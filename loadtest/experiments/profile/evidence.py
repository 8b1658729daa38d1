"""The figures of one system, made from what is kept: threads, memory, phases, operators, oneDNN's calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadtest.experiments.profile.looks import LATENCY, QUEUE
from loadtest.experiments.profile.onednn import Line, Log, break_down, parse_log
from loadtest.experiments.profile.threads import ThreadUse, WorkerUse
from loadtest.experiments.profile.tools import Tool
from loadtest.results.kept import Kept
from loadtest.results.ratios import find_ratio
from loadtest.results.stats import Interval
from loadtest.results.trial import Series

PLAIN, THREADS, OPERATORS = "plain", "threads", "operators"
COLLECTORS = (PLAIN, THREADS, OPERATORS)
"""Ends of the scenarios' names: what looked beside the load."""
LOGGED = ", logged"
"""End of the name of a stock server whose environment makes oneDNN write its log."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One part of a request's way."""

    name: str
    ms: float
    """Mean over all requests of a load."""
    source: str


@dataclass(frozen=True, kw_only=True)
class Operator:
    """One row of PyTorch's profiler."""

    name: str
    calls: int
    own_ms: float
    whole_ms: float


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Of one system."""

    name: str
    series: Mapping[str, Series]
    """Collector → its trials."""
    workers: tuple[WorkerUse, ...] = ()
    cost_cores: float | None = None
    """CPU time of the looking at threads."""
    phases: tuple[Phase, ...] = ()
    client_ms: float | None = None
    server_ms: float | None = None
    """TorchServe's own account of the same requests, from accepted to answered."""
    operators: tuple[Operator, ...] = ()
    runs: int = 0
    """Of the model, that the operators are of."""
    run_ms: float | None = None
    """One such run, by the clock around it."""
    log: Log = field(default_factory=Log)
    lines: tuple[Line, ...] = ()
    described: tuple[Mapping[str, Any], ...] = ()
    libraries: tuple[str, ...] = ()
    """OpenMP runtimes and allocators that are mapped."""

    @property
    def how(self) -> str:
        return next(iter(self.series.values())).facts.how

    def name_used(self, what: str) -> str:
        """The OpenMP runtime or the allocator, by the workers' own word; empty where they do not tell."""
        return ", ".join(sorted({str(told[what]["name"]) for told in self.described if told.get(what)}))

    @property
    def operators_share(self) -> float | None:
        """All operators' own time to the time of the runs."""
        if not self.run_ms or not self.runs:
            return None
        return sum(one.own_ms for one in self.operators) / (self.run_ms * self.runs)


def read_evidence(kept: Kept) -> list[Evidence]:
    """Of each system that took turns, in their order."""
    block = kept.find("turns")
    if block is None:
        return []
    every = kept.list_series(block)
    names = list(dict.fromkeys(one.system for one in every))
    return [make_evidence(name, [one for one in every if one.system == name], kept) for name in names]


def make_evidence(name: str, series: Sequence[Series], kept: Kept) -> Evidence:
    """Everything that is known of one system."""
    by_collector = {one.scenario.name.rpartition("-")[2]: one for one in series}
    facts = series[0].facts
    seen = {name: [trial.seen for trial in one.trials] for name, one in by_collector.items()}
    watched: Mapping[str, Any] = next(
        (one for one in reversed(seen.get(THREADS, [])) if one.get("workers")), {}
    )
    profiles = [told for one in seen.get(OPERATORS, []) for told in one.get("profiles", [])]
    logs = [profile.get("onednn", {}) for profile in profiles]
    # A stock server's is of its other start, which wrote it.
    block = kept.find("logged")
    other = block.systems.get(f"{name}{LOGGED}") if block else None
    own = [line for one in logs for line in one.get("lines", [])]
    log = parse_log(own or (other.seen.get("onednn_lines", []) if other else []))
    client_ms, server_ms, phases = make_phases(by_collector.get(PLAIN))
    runs, run_ms, operators = add_operators(profiles)
    return Evidence(
        name=name,
        series=by_collector,
        workers=tuple(map(read_worker_use, watched.get("workers", []))),
        cost_cores=watched.get("cost_cores"),
        phases=phases,
        client_ms=client_ms,
        server_ms=server_ms,
        operators=operators,
        runs=runs,
        run_ms=run_ms,
        log=log,
        lines=tuple(break_down(log.calls)),
        described=facts.described,
        libraries=tuple(facts.seen.get("libraries", ())),
    )


def read_seen(kept: Kept, tool: Tool, key: str = "") -> dict[str, Any]:
    """System without a server → what a program saw in its one process, or of another key of its turn."""
    key, block = key or tool.key, kept.find(tool.key)
    last = {trial.system: trial.seen for trial in block.trials if not trial.warm_up} if block else {}
    return {system: seen[key] for system, seen in last.items() if key in seen}


def read_worker_use(raw: Mapping[str, Any]) -> WorkerUse:
    """As JSON gives it back."""
    busy = tuple(ThreadUse(**{**one, "strip": tuple(one["strip"])}) for one in raw["busy"])
    return WorkerUse(**{**raw, "busy": busy})


def make_phases(series: Series | None) -> tuple[float | None, float | None, tuple[Phase, ...]]:
    """(client's ms, TorchServe's ms, the parts); no parts where the server keeps no account.

    Each part is measured by another clock than the client's; what none of them covers is a part too.
    """
    if series is None:
        return None, None, ()
    times = [float(one) for records in series.records for one in records.latency[records.good]]
    client = 1000 * sum(times) / len(times) if times else None
    total: Counter[str] = Counter()
    for trial in series.trials:
        total.update(trial.seen.get("account", {}))
    if client is None or not total["requests"] or LATENCY not in total:
        return client, None, ()
    each = {name: 1000 * value / total["requests"] for name, value in total.items()}
    handler = "the handler's clock, of its batch"
    rest = each["whole_s"] - each["read_s"] - each["model_s"]
    outside = each[LATENCY] - each[QUEUE] - each["whole_s"]
    parts = (
        Phase(name="to TorchServe and back", ms=client - each[LATENCY], source="client less TorchServe"),
        Phase(name="queue", ms=each[QUEUE], source="TorchServe's counter"),
        Phase(name="batch wait, worker protocol", ms=outside, source="TorchServe less queue and handler"),
        Phase(name="decode", ms=each["read_s"], source=handler),
        Phase(name="model", ms=each["model_s"], source=handler),
        Phase(name="pack, softmax, answer", ms=rest, source=handler),
    )
    return client, each[LATENCY], parts


def add_operators(profiles: Sequence[Mapping[str, Any]]) -> tuple[int, float | None, tuple[Operator, ...]]:
    """(runs, ms of one, rows by their own time) of all workers together."""
    tables = [one["operators"] for one in profiles if one.get("operators", {}).get("runs")]
    runs = sum(one["runs"] for one in tables)
    sums: dict[str, list[float]] = {}
    for one in tables:
        for name, row in one.get("operators", {}).items():
            sums[name] = [have + more for have, more in zip(sums.get(name, [0, 0, 0]), row, strict=True)]
    rows = [
        Operator(name=name, calls=int(calls), own_ms=own / 1000, whole_ms=whole / 1000)
        for name, (calls, own, whole) in sums.items()
    ]
    each_ms = 1000 * sum(one["seconds"] for one in tables) / runs if runs else None
    return runs, each_ms, tuple(sorted(rows, key=lambda row: -row.own_ms))


def compare_rates(other: Evidence, served: Evidence) -> Interval:
    """Served to other, without any collector."""
    rates = {one.name: one.series[PLAIN].turn_rates for one in (other, served)}
    return find_ratio(rates, served.name, other.name)


def find_waiting(worker: WorkerUse) -> float | None:
    """Percent of the time in which its busy threads could have run, spent in a CPU's queue."""
    told = [(use.cores, use.waiting) for use in worker.busy if use.waiting is not None]
    ready = sum(cores / max(1e-9, 1 - waiting) for cores, waiting in told)
    return 100 * (1 - sum(cores for cores, _ in told) / ready) if ready else None


def count_faults(one: Evidence) -> float | None:
    """Minor faults for each request."""
    series = one.series.get(THREADS)
    rate = sum(series.turn_rates) / len(series.turn_rates) if series else 0.0
    return sum(worker.minor_faults for worker in one.workers) / rate if rate and one.workers else None


def count_reorders(one: Evidence) -> float | None:
    """Of activations, for each convolution or product; without convolutions there is no format to lose, and
    attention has small reorders of its own."""
    if not any(line.kind == "convolution" for line in one.lines):
        return None
    computed = sum(line.calls for line in one.lines if line.computes)
    moved = sum(line.calls for line in one.lines if line.kind == "reorder" and not line.moves_weights)
    return moved / computed if computed else None


def find_fused(one: Evidence) -> float | None:
    """Percent of the convolutions and products with something fused behind them."""
    calls = sum(line.calls for line in one.lines if line.computes)
    fused = sum(line.calls for line in one.lines if line.computes and line.post_ops)
    return 100 * fused / calls if calls else None
