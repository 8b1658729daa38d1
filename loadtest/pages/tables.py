"""The tables of a report as rows of words; an INVALID step never shows a figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadtest.stats import Interval, least_requests
from loadtest.summary import ENDS_OF_A_SEARCH, StepSummary, Summary

INVALID = "INVALID"
NONE = "–"


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table with its title and what must be known to read it."""

    title: str
    note: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def make_tables(summaries: Sequence[Summary]) -> list[Table]:
    """Those of the figures that have rows."""
    return [table for make in TABLES if (table := make(summaries)).rows]


def make_proofs(summaries: Sequence[Summary]) -> list[Table]:
    """What the figures stand on; those that have rows."""
    return [table for make in (make_answers, make_accuracy) if (table := make(summaries)).rows]


def make_throughput(summaries: Sequence[Summary]) -> Table:
    """Closed loops."""
    rows = [row for one in summaries if not one.scenario.is_open for row in _throughput_rows(one)]
    return Table(
        title="Throughput",
        note="Closed loop: each user sends the next request after an answer. Its response times are no "
        "latency under load: a server that stalls is asked less.",
        header=("scenario", "precision", "driver", "users", "requests/s", "95 % interval", "repeats",
                "response p50", "p95", "requests"),
        rows=tuple(rows),
    )  # fmt: skip


def _throughput_rows(summary: Summary) -> Iterator[tuple[str, ...]]:
    for number, step in enumerate(summary.steps):
        head = (summary.scenario.name, summary.precision, summary.scenario.driver, f"{step.level:.0f}")
        if not summary.is_valid(number):
            yield (*head, INVALID, *[NONE] * 4, str(step.requests))
            continue
        repeats = [one.rate for one in step.repeats]
        yield (
            *head,
            f"{step.rate.value:.1f}",
            f"{step.rate.low:.1f}-{step.rate.high:.1f}",
            " ".join(f"{rate:.1f}" for rate in repeats),
            _milliseconds(step, 50),
            _milliseconds(step, 95),
            str(step.requests),
        )


def make_latency(summaries: Sequence[Summary]) -> Table:
    """Open loops."""
    plain = [one for one in summaries if one.scenario.is_open and not one.searched]
    rows = [row for one in plain for row in _latency_rows(one)]
    return Table(
        title="Latency under load",
        note="Open loop: arrivals are planned in advance, and latency counts from when a request was due. "
        f"A percentile is left out ({NONE}) when there are too few requests for it.",
        header=("scenario", "precision", "arrivals", "asked/s", "done/s", "p50", "p95", "p99",
                "quoted, 95 % interval", "limit", "requests"),
        rows=tuple(rows),
    )  # fmt: skip


def _latency_rows(summary: Summary) -> Iterator[tuple[str, ...]]:
    scenario = summary.scenario
    quoted = scenario.latency.percentile
    for number, step in enumerate(summary.steps):
        asked = f"{step.level:.1f}" + (f" ({step.asked})" if isinstance(step.asked, str) else "")
        head = (scenario.name, summary.precision, scenario.arrival.process, asked)
        if not summary.is_valid(number):
            yield (*head, INVALID, *[NONE] * 5, str(step.requests))
            continue
        yield (
            *head,
            f"{step.rate.value:.1f}",
            *(_milliseconds(step, p) for p in (50, 95, 99)),
            f"p{quoted:g} {_interval(step.percentiles_ms[f'{quoted:g}'])}",
            _judge_limit(summary, step),
            str(step.requests),
        )


def _judge_limit(summary: Summary, step: StepSummary) -> str:
    latency = summary.scenario.latency
    quoted = step.percentiles_ms[f"{latency.percentile:g}"]
    if latency.limit_ms is None or quoted is None:
        return NONE
    return f"{latency.limit_ms:.0f} ms {'kept' if quoted.value <= latency.limit_ms else 'BROKEN'}"


def make_peaks(summaries: Sequence[Summary]) -> Table:
    """Searches."""
    rows = []
    for one in summaries:
        if not one.searched:
            continue
        latency = one.scenario.latency
        asked = f"p{latency.percentile:g} ≤ {latency.limit_ms:g} ms"
        peak = INVALID if not one.is_valid() else f"{one.peak:.1f}" if one.peak else "none kept it"
        rows.append((one.scenario.model, one.precision, asked, peak, str(len(one.steps))))
    return Table(
        title="Peak",
        note="The highest rate that kept the limit, below every rate that did not.",
        header=("model", "precision", "limit", "requests/s", "rates tried"),
        rows=tuple(rows),
    )


def make_curve(summaries: Sequence[Summary]) -> Table:
    """Every rate of the searches, from low to high."""
    rows = [row for one in summaries if one.searched for row in _curve_rows(one)]
    return Table(
        title="Rates tried",
        note="Open loop: latency counts from when a request was due. "
        "Beyond the peak a backlog grows or requests fail: the search ends there.",
        header=("model", "precision", "asked/s", "done/s", "p50", "p95", "p99", "limit", "requests"),
        rows=tuple(rows),
    )


def _curve_rows(summary: Summary) -> Iterator[tuple[str, ...]]:
    order = sorted(range(len(summary.steps)), key=lambda number: summary.steps[number].level)
    for number in order:
        step = summary.steps[number]
        head = (summary.scenario.model, summary.precision, f"{step.level:.1f}")
        if not summary.is_valid(number):
            failed = f"{step.errors} failed" if step.errors else INVALID
            yield (*head, failed, *[NONE] * 4, str(step.requests))
            continue
        latencies = (_milliseconds(step, p) for p in (50, 95, 99))
        yield (*head, f"{step.rate.value:.1f}", *latencies, _judge_limit(summary, step), str(step.requests))


TABLES = (make_peaks, make_curve, make_throughput, make_latency)


def make_answers(summaries: Sequence[Summary]) -> Table:
    """What came of judging the answers."""
    rows = []
    for one in summaries:
        answers = one.answers
        agreement = NONE if answers.fp32_agreement is None else f"{answers.fp32_agreement:.1%}"
        source = "the archive" if answers.proof else "the server itself"
        wrong = f"{answers.wrong} WRONG" if answers.wrong else "0"
        verified = " / ".join(_describe_verify(result) for result in one.verify.values())
        rows.append(
            (
                one.scenario.name,
                str(answers.checked),
                wrong,
                agreement,
                f"{answers.pairs_told_apart:.0%}",
                source,
                verified,
            )
        )
    return Table(
        title="Answers and settings",
        note="Every answer that was kept is compared with the expected one for its payload and precision. "
        "“Told apart” is the share of pairs of payloads whose answers differ enough for a mix-up to be seen.",
        header=("scenario", "judged", "wrong", "labels as eager FP32", "told apart", "expected by",
                "verify before / after"),
        rows=tuple(rows),
    )  # fmt: skip


def _describe_verify(result: Mapping[str, Any] | None) -> str:
    return "not made" if result is None else "good" if result.get("good") else "FAILED"


def make_accuracy(summaries: Sequence[Summary]) -> Table:
    """No speed without it: each precision that was measured, as the gate judged it."""
    judged = {(one.scenario.model, one.precision): one.accuracy for one in summaries if one.accuracy}
    return Table(
        title="Accuracy",
        note="Judged against eager FP32 on held-out inputs when the archive was built.",
        header=("model", "precision", "labels as FP32", "largest probability difference",
                "least cosine of logits", "accuracy on labels", "inputs"),
        rows=tuple(_accuracy_row(*named, accuracy) for named, accuracy in judged.items()),
    )  # fmt: skip


def _accuracy_row(model: str, precision: str, accuracy: Mapping[str, Any]) -> tuple[str, ...]:
    labelled = accuracy.get("labelled_accuracy")
    return (
        model,
        precision,
        f"{accuracy['agreement']:.1%}",
        f"{accuracy['largest_probability_difference']:.4f}",
        f"{accuracy['least_cosine']:.4f}",
        NONE if labelled is None else f"{labelled:.1%} (FP32 {accuracy['labelled_accuracy_fp32']:.1%})",
        f"{accuracy['samples']} {accuracy['source']}",
    )


def make_findings(summaries: Sequence[Summary]) -> Table:
    """Every doubt, with its evidence and next step."""
    rows = [
        (one.scenario.name, _where(one, finding.step),
         ("INVALID: " if finding.invalid else "note: ") + finding.state,
         finding.evidence, finding.next_step)
        for one in summaries
        for finding in one.findings
        if not (one.searched and finding.rule in ENDS_OF_A_SEARCH)
    ]  # fmt: skip
    return Table(
        title="Doubts",
        note="",
        header=("scenario", "where", "state", "evidence", "next step"),
        rows=tuple(rows),
    )


def _where(summary: Summary, step: int | None) -> str:
    if step is None:
        return "the run"
    level = summary.steps[step].level
    return f"{level:.1f} requests/s" if summary.scenario.is_open else f"{level:.0f} users"


def _milliseconds(step: StepSummary, percentile: int) -> str:
    found = step.percentiles_ms[str(percentile)]
    return NONE if found is None else f"{found.value:.0f} ms"


def _interval(found: Interval | None) -> str:
    return NONE if found is None else f"{found.value:.0f} ms ({found.low:.0f}-{found.high:.0f})"


def describe_host(summaries: Sequence[Summary], host: Mapping[str, Any]) -> list[str]:
    """Facts that belong above every figure."""
    versions = {name: number for name, number in host.get("versions", {}).items() if number}
    listed = ", ".join(
        f"{name} {versions[name]}" for name in ("torch", "torchserve", "locust") if name in versions
    )
    servers = ", ".join(dict.fromkeys(one.server for one in summaries))
    here = all(one.generated_here for one in summaries)
    place = "on it too" if here else "on other machines"
    least = f"p95 from {least_requests(95)} requests, p99 from {least_requests(99)}"
    return [
        f"Host: {host.get('cpus', '?')} CPUs, {host.get('cpu', 'unknown')}, {host.get('memory', '?')}, "
        f"Linux {host.get('kernel', '?')}; the load was generated {place}.",
        f"Server: {servers}. {listed}.",
        f"Percentiles: {METHOD_NOTE} ({least}).",
    ]


METHOD_NOTE = (
    "the smallest measured value that so many requests did not exceed; "
    "intervals by bootstrap over blocks of time"
)
