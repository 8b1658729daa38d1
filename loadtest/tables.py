"""Tables that several experiments show: rates, latencies, answers, accuracy, CPU time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from loadtest.answers import add_checks
from loadtest.machine import GENERATOR, CpuUse
from loadtest.report import INVALID, Table, make_table
from loadtest.results import Series
from loadtest.stats import Interval, find_mean, find_percentile, least_requests, split_by_time
from loadtest.validity import Finding, find_doubts, find_findings

PERCENTILE_METHOD = (
    "Percentiles: the smallest measured value that so many requests did not exceed, quoted when ten requests "
    f"lie beyond it (p95 from {least_requests(95)} requests, p99 from {least_requests(99)}). Intervals of "
    "95 % by bootstrap over blocks of time."
)
RATIO_METHOD = (
    "Servers are measured in turns, seconds apart, so what slows the machine for a while cancels out of a "
    "ratio. Ratios are geometric means over the paired repeats; their 95 % intervals are Student's t on the "
    "logarithms. A request counts for a window by the share of its time in it, as batches end together."
)
ROLES = {"worker": "workers %", "TorchServe": "TorchServe's Java %", GENERATOR: "load generator %"}


def find_rate(series: Series) -> Interval:
    """Requests a second over all repeats; the interval is over blocks of time."""
    return find_mean([rate for one in series.windows for rate in one.rates])


def find_latency_ms(series: Series, percentile: float) -> Interval | None:
    """Over all repeats; None with too few requests. Of ab, whole milliseconds by its own report."""
    reports = [one.ab for one in series.windows if one.ab]
    if reports:
        told = [ms for one in reports if (ms := one.percentiles_ms.get(f"{percentile:g}")) is not None]
        enough = sum(one.complete for one in reports) >= least_requests(percentile)
        return (
            Interval(value=float(np.median(told)), low=min(told), high=max(told)) if told and enough else None
        )
    blocks = [
        block
        for window, rows in zip(series.windows, series.rows, strict=True)
        for block in split_by_time(rows, window.begin_s, window.end_s)
    ]
    return find_percentile(blocks, percentile)


def list_findings(every: Iterable[Series], without: Collection[str] = ()) -> list[tuple[str, Finding]]:
    """Of all series, each with its place; a remark that several share is told once."""
    found: dict[tuple[str, str], tuple[str, Finding]] = {}
    for one in every:
        for finding in find_findings(one):
            if finding.rule not in without:
                place = f"{one.load.name}, {one.server}, {one.load.place}"
                key = (place, finding.state) if finding.invalid else (one.server, finding.state)
                found.setdefault(key, (place if finding.invalid else one.server, finding))
    return [*found.values()]


def tabulate_throughput(every: Iterable[Series]) -> Table:
    """Closed loops; no figure of what is INVALID."""
    return make_table(
        "Throughput",
        (_make_throughput_row(one) for one in every),
        "Closed loop: each user sends the next request after an answer. Its response times are no latency "
        "under load: a server that stalls is asked less.",
    )


def _make_throughput_row(one: Series) -> dict[str, Any]:
    bad = bool(find_doubts(one))
    return {
        "load": one.load.name,
        "server": one.server,
        "precision": name_precision(one),
        "driver": one.load.driver,
        "users": int(one.load.level),
        "requests/s": INVALID if bad else find_rate(one),
        "repeats": None if bad else " ".join(f"{rate:.1f}" for rate in one.rates),
        **{f"p{p:g} ms": None if bad else find_latency_ms(one, p) for p in (50, 95, 99)},
        "requests": one.requests,
    }


def name_precision(one: Series) -> str:
    return ", ".join(dict.fromkeys(one.facts.precisions.get(name, "unknown") for name in one.load.models))


def tabulate_latency(
    every: Iterable[Series], title: str = "Latency under load", ends: Collection[str] = ()
) -> Table:
    """Open loops. `ends` are rules that a search breaks on purpose: such a row says so, and has no figure."""
    return make_table(
        title,
        (_make_latency_row(one, ends) for one in every),
        "Open loop: arrivals are planned ahead, and latency counts from when a request was due. A percentile "
        "is not quoted (–) when there are too few requests for it.",
    )


def _make_latency_row(one: Series, ends: Collection[str]) -> dict[str, Any]:
    doubts = find_doubts(one)
    at_end = doubts and all(doubt.rule in ends for doubt in doubts)
    why = f"{one.errors} failed" if at_end and one.errors else INVALID
    quoted = find_latency_ms(one, one.load.percentile)
    limit = None
    if one.load.limit_ms is not None and quoted and not doubts:
        limit = f"{one.load.limit_ms:g} ms {'kept' if quoted.value <= one.load.limit_ms else 'BROKEN'}"
    return {
        "load": one.load.name,
        "server": one.server,
        "precision": name_precision(one),
        "asked/s": one.load.rate,
        "done, requests/s": why if doubts else find_rate(one).value,
        **{f"p{p:g} ms": None if doubts else find_latency_ms(one, p) for p in (50, 95, 99)},
        f"limit of p{one.load.percentile:g}": limit,
        "requests": one.requests,
    }


def tabulate_answers(every: Sequence[Series]) -> Table:
    """What came of validating the answers, and of verify."""
    groups: dict[tuple[str, str], list[Series]] = {}
    for one in every:
        groups.setdefault((one.load.name, one.server), []).append(one)
    return make_table(
        "Answers and settings",
        (_make_answers_row(group) for group in groups.values()),
        "Every saved answer is compared with the expected one for its payload and precision. Distinguishable "
        "are pairs of payloads whose answers differ enough for a mix-up to be seen.",
    )


def _make_answers_row(group: Sequence[Series]) -> dict[str, Any]:
    answers = add_checks([window.answers for one in group for window in one.windows])
    facts = group[-1].facts
    verified = {None: "not made", True: "passed", False: "FAILED"}
    before, after = (
        verified[None if result is None else bool(result.get("good"))]
        for result in (facts.verify_before, facts.verify_after)
    )
    validated, far = bool(answers.checked), answers.largest_difference
    same = answers.labels_same / answers.labels_compared if answers.labels_compared else None
    return {
        "load": group[0].load.name,
        "server": facts.name,
        "validated": answers.checked if validated else "answers not validated",
        "wrong": (f"{answers.wrong} WRONG" if answers.wrong else "0") if validated else None,
        "labels as eager FP32 %": same,
        "largest difference": far if far is None else f"{far:.4f}",
        "distinguishable pairs %": answers.distinguishable_pairs if validated else None,
        "verify before / after": f"{before} / {after}",
    }


def tabulate_accuracy(every: Iterable[Series]) -> Table:
    """No speed without it: each precision that was measured, as the gate saw it at build."""
    seen: dict[tuple[str, str], Any] = {}
    for one in every:
        for model in one.load.models:
            if accuracy := one.facts.accuracy.get(model):
                seen[model, one.facts.precisions[model]] = accuracy
    return make_table(
        "Accuracy",
        (
            {
                "model": model,
                "precision": precision,
                "labels as FP32 %": one["agreement"],
                "largest probability difference": f"{one['largest_probability_difference']:.4f}",
                "least cosine of logits": f"{one['least_cosine']:.4f}",
                "accuracy on labels %": one.get("labelled_accuracy"),
                "of FP32 %": one.get("labelled_accuracy_fp32"),
                "inputs": f"{one['samples']} {one['source']}",
            }
            for (model, precision), one in seen.items()
        ),
        "By the accuracy gate when the archive was built: against eager FP32 on held-out inputs.",
    )


def tabulate_cpu(every: Iterable[Series]) -> Table:
    """Of servers; without one there is nothing but the model."""
    rows = []
    for one in every:
        shares = find_cpu_shares([window.cpu for window in one.windows if window.cpu])
        if shares:
            rows.append({"load": one.load.name, "server": one.server, **shares})
    return make_table("Where the CPU time goes", rows, "Shares of all CPUs in the windows.")


def find_cpu_shares(uses: Sequence[CpuUse]) -> dict[str, float]:
    """Of each role, of others with the host, and idle (0 to 1); empty where nothing was watched."""
    used: Counter[str] = Counter()
    for one in uses:
        used.update(one.by_role)
    available = sum(one.cpus * one.seconds for one in uses)
    if not available:
        return {}
    others = sum(one.others + one.stolen for one in uses) / available
    idle = max(0.0, 1 - sum(used.values()) / available - others)
    own = {name: used[role] / available for role, name in ROLES.items()}
    return {**own, "others and the host %": others, "idle %": idle}


def describe_servers(every: Sequence[Series]) -> str:
    """What was measured, and from where."""
    if not every:
        return "Nothing was measured."
    servers = ", ".join(dict.fromkeys(f"{one.server}: {one.facts.how or 'unknown'}" for one in every))
    place = "on the server's machine" if all(one.generated_here for one in every) else "on other machines"
    return f"{servers}. The load was generated {place}."
