"""The sections of `make loadtest`, `loadtest-peak` and `loadtest-gate`; an INVALID load shows no figure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadtest.answers.check import add_checks
from loadtest.experiments.gate import compare_series, read_pair
from loadtest.experiments.peak import judge
from loadtest.report.plots import draw_curve, draw_distribution, draw_throughput
from loadtest.report.section import Doubt, Plot, Section, Table, make_doubts
from loadtest.report.words import INVALID, NONE, describe_host, show_interval, show_ms, show_rate, show_ratio
from loadtest.results.figures import Figures, summarise
from loadtest.results.kept import Kept
from loadtest.results.stats import Interval, least_requests
from loadtest.results.trial import Series
from loadtest.trials.validity import ENDS_OF_A_SEARCH, ERRORS, Finding, find_findings

METHOD = (
    "Percentiles: the smallest measured value that so many requests did not exceed; intervals by bootstrap "
    f"over blocks of time (p95 from {least_requests(95)} requests, p99 from {least_requests(99)})."
)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One load of one system, with its figures and whether they may be shown."""

    series: Series
    figures: Figures
    findings: tuple[Finding, ...]

    @property
    def name(self) -> str:
        return self.series.scenario.name

    @property
    def model(self) -> str:
        return self.series.scenario.model

    @property
    def precision(self) -> str:
        return self.series.facts.precisions.get(self.model, "unknown")

    @property
    def place(self) -> str:
        """`16 users` or `20.0 requests/s`."""
        level = self.series.level
        return f"{level:.1f} requests/s" if self.series.scenario.is_open else f"{level:.0f} users"

    @property
    def valid(self) -> bool:
        return not any(one.invalid for one in self.findings)


def read_measured(kept: Kept) -> list[Measured]:
    """All loads but those of probes."""
    return [
        Measured(series=one, figures=summarise(one), findings=tuple(find_findings(one)))
        for one in kept.list_loads()
    ]


def make_measure_section(kept: Kept) -> Section:
    """Closed loops for throughput, open ones for latency under load."""
    loads = read_measured(kept)
    closed = [one for one in loads if not one.series.scenario.is_open]
    opened = [one for one in loads if one.series.scenario.is_open]
    plots = (
        draw_throughput([_point(one) for one in closed if one.valid]),
        draw_distribution([_point(one) for one in opened if one.valid], is_open=True),
        draw_distribution([_point(one) for one in closed if one.valid], is_open=False),
    )
    tables = (make_throughput(closed), make_latency(opened))
    models = ", ".join(dict.fromkeys(one.model for one in loads))
    return _make_section(f"Load test of {models}", kept, loads, tables, plots)


def make_peak_section(kept: Kept) -> Section:
    """The search for the highest rate that keeps a limit; rates beyond the peak may fail."""
    loads = sorted(read_measured(kept), key=lambda one: one.series.level)
    (verdict,) = judge(kept)
    peak = verdict.figure
    tables = (_make_peak(kept, loads, peak), make_latency(loads, searched=True))
    rates = [(one.series.level, one.figures if one.valid else None) for one in loads]
    title = ", ".join((kept.asked["model"], *(one.precision for one in loads[:1])))
    plot = draw_curve(rates, title=title, limit_ms=kept.asked["limit_ms"], peak=peak.value if peak else None)
    section = _make_section(
        f"Peak of {kept.asked['model']}", kept, [_forgive_end(one) for one in loads], tables, (plot,)
    )
    return dataclasses.replace(section, whole=peak is not None and math.isfinite(peak.high))


def _forgive_end(one: Measured) -> Measured:
    left = tuple(finding for finding in one.findings if finding.rule not in ENDS_OF_A_SEARCH)
    return dataclasses.replace(one, findings=left)


def _make_peak(kept: Kept, loads: Sequence[Measured], peak: Interval | None) -> Table:
    asked, valid = kept.asked, all(_forgive_end(one).valid for one in loads)
    shown = f"{peak.value:.1f}" if peak else "none kept it" if valid else INVALID
    limit = f"p{asked['percentile']:g} ≤ {asked['limit_ms']:g} ms"
    broken = f"{peak.high:.1f}" if peak and math.isfinite(peak.high) else NONE
    return Table(
        title="Peak",
        note="The highest rate that kept the limit, below every rate that did not.",
        header=("model", "precision", "limit", "requests/s", "broken at", "rates tried"),
        rows=tuple((one.model, one.precision, limit, shown, broken, str(len(loads))) for one in loads[:1]),
    )


def _make_section(
    title: str, kept: Kept, loads: Sequence[Measured], tables: Sequence[Table], plots: Sequence[Plot | None]
) -> Section:
    return Section(
        title=title,
        notes=(describe_host(kept), _describe_server(loads), METHOD),
        tables=tuple(tables),
        proofs=(make_answers(loads), make_accuracy(loads)),
        plots=tuple(plot for plot in plots if plot),
        findings=list_doubts(loads),
        whole=bool(loads) and all(kept.find(one["name"]) for one in kept.asked.get("scenarios", ())),
    )


def _describe_server(loads: Sequence[Measured]) -> str:
    if not loads:
        return "Nothing of this run was measured to its end."
    servers = ", ".join(dict.fromkeys(one.series.facts.how or one.series.system for one in loads))
    place = "on its machine" if all(one.series.generated_here for one in loads) else "on other machines"
    return f"Server: {servers}; the load was generated {place}."


def list_doubts(loads: Sequence[Measured]) -> tuple[Doubt, ...]:
    """Of all loads, each with its place."""
    return tuple(doubt for one in loads for doubt in make_doubts(f"{one.name}, {one.place}", one.findings))


def _point(one: Measured) -> tuple[str, Series, Figures]:
    return f"{one.name}, {one.precision}\n{one.place}", one.series, one.figures


def make_throughput(loads: Sequence[Measured]) -> Table:
    """Closed loops."""
    return Table(
        title="Throughput",
        note="Closed loop: each user sends the next request after an answer. Its response times are no "
        "latency under load: a server that stalls is asked less.",
        header=("scenario", "precision", "driver", "users", "requests/s", "95 % interval", "repeats",
                "response p50", "p95", "requests"),
        rows=tuple(_throughput_row(one) for one in loads),
    )  # fmt: skip


def _throughput_row(one: Measured) -> tuple[str, ...]:
    head = (one.name, one.precision, one.series.scenario.driver, f"{one.series.level:.0f}")
    repeats = " ".join(f"{rate:.1f}" for rate in one.series.turn_rates)
    latencies = (show_ms(one.figures.percentiles_ms[p]) for p in ("50", "95"))
    figures = _hide(one, (*show_rate(one.figures.rate), repeats, *latencies))
    return (*head, *figures, str(one.figures.requests))


def _hide(one: Measured, figures: tuple[str, ...], why: str = INVALID) -> tuple[str, ...]:
    """Nothing of what is in doubt."""
    return figures if one.valid else (why, *[NONE] * (len(figures) - 1))


def make_latency(loads: Sequence[Measured], *, searched: bool = False) -> Table:
    """Open loops; beyond the peak of a search they may fail."""
    title, note = ("Rates tried", BEYOND) if searched else ("Latency under load", OPEN)
    return Table(
        title=title,
        note=note,
        header=("scenario", "precision", "arrivals", "asked/s", "done/s", "p50", "p95", "p99",
                "quoted, 95 % interval", "limit", "requests"),
        rows=tuple(_latency_row(one, _name_end(one) if searched else INVALID) for one in loads),
    )  # fmt: skip


OPEN = (
    "Open loop: arrivals are planned in advance, and latency counts from when a request was due. "
    f"A percentile is left out ({NONE}) when there are too few requests for it."
)
BEYOND = (
    "Open loop: latency counts from when a request was due. "
    "Beyond the peak a backlog grows or requests fail: the search ends there."
)


def _name_end(one: Measured) -> str:
    failed = any(finding.rule == ERRORS for finding in one.findings)
    return f"{one.figures.errors} failed" if failed else INVALID


def _latency_row(one: Measured, why: str) -> tuple[str, ...]:
    head = (one.name, one.precision, one.series.scenario.arrival.process, f"{one.series.level:.1f}")
    found, quoted = one.figures.percentiles_ms, one.series.scenario.latency.percentile
    interval = found[f"{quoted:g}"]
    shown = f"p{quoted:g} {show_ms(interval)} ({show_interval(interval, 0)})" if interval else NONE
    latencies = (show_ms(found[p]) for p in ("50", "95", "99"))
    figures = (show_rate(one.figures.rate)[0], *latencies, shown, _judge_limit(one, interval))
    return (*head, *_hide(one, figures, why), str(one.figures.requests))


def _judge_limit(one: Measured, quoted: Interval | None) -> str:
    limit = one.series.scenario.latency.limit_ms
    if limit is None or quoted is None:
        return NONE
    return f"{limit:.0f} ms {'kept' if quoted.value <= limit else 'BROKEN'}"


def make_answers(loads: Sequence[Measured]) -> Table:
    """What came of judging the answers."""
    groups: dict[tuple[str, str], list[Measured]] = {}
    for one in loads:
        groups.setdefault((one.name, one.series.system), []).append(one)
    return Table(
        title="Answers and settings",
        note="Every answer that was kept is compared with the expected one for its payload and precision. "
        "“Told apart” is the share of pairs of payloads whose answers differ enough for a mix-up to be seen.",
        header=("scenario", "system", "judged", "wrong", "labels as eager FP32", "told apart", "expected by",
                "verify before / after"),
        rows=tuple(_answers_row(group) for group in groups.values()),
    )  # fmt: skip


def _answers_row(loads: Sequence[Measured]) -> tuple[str, ...]:
    answers = add_checks([trial.answers for one in loads for trial in one.series.trials])
    facts = loads[-1].series.facts
    return (
        loads[0].name,
        facts.name,
        str(answers.checked),
        f"{answers.wrong} WRONG" if answers.wrong else "0",
        f"{answers.labels_same / answers.labels_judged:.1%}" if answers.labels_judged else NONE,
        f"{answers.pairs_told_apart:.0%}",
        "the archive" if answers.proof else "the server itself",
        f"{_describe_verify(facts.verify_before)} / {_describe_verify(facts.verify_after)}",
    )


def _describe_verify(result: Mapping[str, Any] | None) -> str:
    return "not made" if result is None else "good" if result.get("good") else "FAILED"


def make_accuracy(loads: Sequence[Measured]) -> Table:
    """No speed without it: each precision that was measured, as the gate judged it."""
    judged = {(one.model, one.precision): one.series.facts.accuracy.get(one.model) for one in loads}
    return Table(
        title="Accuracy",
        note="Judged against eager FP32 on held-out inputs when the archive was built.",
        header=("model", "precision", "labels as FP32", "largest probability difference",
                "least cosine of logits", "accuracy on labels", "inputs"),
        rows=tuple(_accuracy_row(*named, accuracy) for named, accuracy in judged.items() if accuracy),
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


def make_gate_section(kept: Kept) -> Section:
    """INVALID when one of the sides is."""
    loads = read_measured(kept)
    cells: tuple[str, ...] = (INVALID, *[NONE] * 5)
    if loads and all(one.valid for one in loads):
        found = compare_series(*read_pair(kept), bound=kept.asked["bound"])
        cells = (
            f"{found.a:.2f}", f"{found.b:.2f}", show_ratio(found.ratio), f"{found.bound:.1%}",
            f"{found.smallest_detectable:.1%}", found.word,
        )  # fmt: skip
    servers = ", ".join(f"{side.upper()} {kept.asked[side]}" for side in ("a", "b"))
    table = Table(
        title="B against A",
        note="B / A is the geometric mean over pairs that ran side by side. The smallest change is what this "
        "much data would find four times out of five.",
        header=("scenario", "users", "A, requests/s", "B, requests/s", "B / A (95 % interval)", "bound",
                "smallest change found", "verdict", "pairs"),
        rows=tuple((one.name, f"{one.series.level:.0f}", *cells, str(len(one.series.trials)))
                   for one in loads[:1]),
    )  # fmt: skip
    return Section(
        title=f"Gate of {kept.asked['b']} against {kept.asked['a']}",
        notes=(describe_host(kept), f"Servers that took turns, A B, B A, …: {servers}."),
        tables=(table,),
        proofs=(make_answers(loads),),
        findings=tuple(doubt for one in loads for doubt in make_doubts(one.series.system, one.findings)),
        whole=bool(loads),
    )
