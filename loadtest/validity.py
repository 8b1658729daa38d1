"""The rules that make a figure INVALID: each says the state, the evidence and the next step.

One set of rules and limits for every experiment. They look at a series (one server, one load, its repeats).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from loadtest.answers import add_checks
from loadtest.results import Series
from loadtest.stats import least_requests

LAG_MS, LAG_SHARE = 20.0, 0.1
"""A generator this late (p99), or by this share of the median latency if that is more, measures itself."""
GENERATOR_CORES = 0.85
"""Of one core: Locust's processes have one thread, and above this their own queue grows."""
GENERATOR_SHARE = 0.15
"""Of the machine that also serves: what the generator takes, the server lacks."""
STEAL_SHARE = 0.02
"""Of all CPU time: more taken by other guests moves figures by more than repeats differ."""
OTHERS_SHARE = 0.1
"""Of all CPU time for other programs; the kernel's own work for a server under load is a few percent."""
SPREAD_SHARE = 0.15
"""Of the fastest repeat: a quiet shared machine stays well within it."""
STOLEN, OTHERS, LATE = "CPU stolen", "other programs", "generator late"
COUNT, ERRORS, BUSY_GENERATOR = "too few requests", "errors", "generator CPU"
OF_THE_MACHINE = (STOLEN, OTHERS, LATE)
"""Rules whose breach is no doing of the server: such a window is measured again."""
ENDS_OF_A_SEARCH = (ERRORS, COUNT)
"""Rules that a rate beyond the peak may break: that is how a search finds it."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A doubt: what is wrong, how that is known, what to do."""

    rule: str
    server: str
    state: str
    """What is wrong, in a sentence."""
    evidence: str
    next_step: str
    invalid: bool = True
    """False for a remark that leaves the figures standing."""

    def __str__(self) -> str:
        word = "INVALID" if self.invalid else "note"
        return f"{word}: {self.state} ({self.evidence}); {self.next_step}"


Found = Iterator[tuple[str, str, str]]
"""(state, evidence, next step) of each doubt."""


def check_answers_right(series: Series) -> Found:
    """Wrong answers are worth nothing, however fast."""
    answers = add_checks([one.answers for one in series.windows])
    if answers.wrong:
        yield (
            f"{answers.wrong} of {answers.checked} answers are wrong",
            "; ".join(answers.examples) + f" (expected: {answers.source})",
            "do not use this server; `make verify`, then look at the model log",
        )
    least = series.facts.least_agreement
    if answers.labels_compared and answers.labels_same < least * answers.labels_compared:
        yield (
            f"only {answers.labels_same / answers.labels_compared:.1%} of the labels are those of eager FP32",
            f"at least {least:.0%} are required, without near ties",
            "look at the accuracy of this precision for these payloads (CALIBRATION=, EVAL=)",
        )


def check_answers_seen(series: Series) -> Found:
    """Without a validated answer nothing is known of what was measured, where answers can be validated."""
    known = series.load.validated and series.facts.models and series.errors < series.requests
    if known and not sum(one.answers.checked for one in series.windows):
        yield (
            "no answer could be validated",
            "0 answers were kept",
            "see the errors; is this the right model and server?",
        )


def check_verify(series: Series) -> Found:
    """The server must be what was asked for, before and after."""
    facts = series.facts
    for moment, result in (("before", facts.verify_before), ("after", facts.verify_after)):
        if result is None or result.get("good"):
            continue
        yield (
            f"verify failed {moment} the run",
            _list_differing(result),
            "`make verify` has the fix",
        )


def _list_differing(result: Mapping[str, Any]) -> str:
    names = (f"{one.get('model') or 'server'}: {one['name']}" for one in result.get("findings", []))
    return ", ".join(dict.fromkeys(names)) or str(result.get("error", "no findings"))


def check_workers(series: Series) -> Found:
    """TorchServe starts a dead worker again in silence."""
    changed = set(series.facts.pids_before) ^ set(series.facts.pids_after)
    if changed:
        pids = f"processes {', '.join(map(str, sorted(changed)))}"
        evidence = "; ".join([pids, *series.facts.causes])
        yield "a worker died and was started again", evidence, "see its logs, measure again"


def check_errors(series: Series) -> Found:
    """Errors are fast answers; a rate that contains them, or leaves them out, misleads."""
    requests, errors = series.requests, series.errors
    if requests and not errors:
        return
    kinds = "; ".join(
        f"{count} × {text}" for one in series.windows for text, count in list(one.error_kinds.items())[:3]
    )
    yield (
        f"{errors} of {requests} requests failed",
        kinds or "no request began in the window",
        "see the server's logs, or ask for less load",
    )


def check_schedule(series: Series) -> Found:
    """A generator that is late measures itself."""
    lags = [one.lag_p99_ms for one in series.windows if one.lag_p99_ms is not None]
    medians = [one.p50_ms for one in series.windows if one.p50_ms is not None]
    limit = max(LAG_MS, LAG_SHARE * max(medians, default=0.0))
    if lags and max(lags) > limit:
        yield (
            "the generator fell behind its schedule",
            f"1 % of the requests were sent {max(lags):.0f} ms late or more; {limit:.0f} ms are accepted",
            "use more generator processes (--processes), another machine, or a lower RATE",
        )


def check_generator_cpu(series: Series) -> Found:
    """A generator without CPU time left is the limit; one on the server's machine takes from it."""
    busiest = max((max(one.generator_cores, default=0.0) for one in series.windows), default=0.0)
    together = max((sum(one.generator_cores) for one in series.windows), default=0.0)
    cpus = min((one.cpu.cpus for one in series.windows if one.cpu), default=0)
    share = together / cpus if cpus and series.generated_here else 0.0
    if busiest > GENERATOR_CORES or share > GENERATOR_SHARE:
        yield (
            "the generator used too much CPU",
            f"{busiest:.0%} of a core in one process (limit {GENERATOR_CORES:.0%}), {share:.0%} of all "
            f"CPUs together (limit {GENERATOR_SHARE:.0%})",
            "use --driver ab for a closed loop, or generate on another machine (--processes remote:N)",
        )


def check_count(series: Series) -> Found:
    """The quoted percentile needs enough requests; without an open loop no latency is quoted."""
    percentile = series.load.percentile
    needed = least_requests(percentile)
    good = series.requests - series.errors
    if series.load.is_open and good < needed:
        yield (
            f"too few requests for p{percentile:g}",
            f"{good} good requests; {needed} are needed",
            "run longer (DURATION=), or quote a lower percentile",
        )


def check_steal(series: Series) -> Found:
    """What the hypervisor gives to others, nobody here can account for."""
    worst = max((one.cpu.share(one.cpu.stolen) for one in series.windows if one.cpu), default=0.0)
    if worst > STEAL_SHARE:
        yield (
            "the host gave CPU time to others",
            f"{worst:.1%} of all CPU time in one repeat was stolen; {STEAL_SHARE:.0%} are accepted",
            "run again at a quieter time, or on a machine of its own",
        )


def check_others(series: Series) -> Found:
    """Neither server nor generator had this time. Of a server that is not ours nobody can tell."""
    if not series.facts.models:
        return
    worst = max((one.cpu.share(one.cpu.others) for one in series.windows if one.cpu), default=0.0)
    if worst > OTHERS_SHARE:
        yield (
            "other programs used the machine",
            f"{worst:.0%} of all CPU time in one repeat; {OTHERS_SHARE:.0%} are accepted",
            "end them and measure again",
        )


def note_spread(series: Series) -> Found:
    """Repeats far apart say that the mean means little; the interval shows it, and this says it."""
    rates = series.rates
    if not series.load.is_open and min(rates) < (1 - SPREAD_SHARE) * max(rates):
        yield (
            "the repeats differ more than a quiet machine's do",
            f"{min(rates):.1f} to {max(rates):.1f} requests/s; {SPREAD_SHARE:.0%} are usual",
            "run again at a quieter time, or longer (DURATION=)",
        )


def note_unverified(series: Series) -> Found:
    """A foreign server's settings are unknown; the figures stand, and say so."""
    if not series.facts.is_kit:
        yield (
            "it was not verified",
            "it is not the kit's, and has no plan",
            "measure the kit's own server for verified settings",
        )


def note_unvalidated(series: Series) -> Found:
    """The figures stand, and say what they do not; where answers could be validated, none is a fault."""
    unvalidated = series.windows and not sum(one.answers.checked for one in series.windows)
    if unvalidated and not any(check_answers_seen(series)):
        why = "it is not known what is right" if series.load.validated else f"{series.load.driver} keeps none"
        own = "a locustfile of one's own sent what it likes" if series.load.locustfile else why
        yield (
            "answers were not validated",
            f"their status alone counts: {own}",
            "use the kit's server and locustfile",
        )


def note_mix_ups(series: Series) -> Found:
    """Every answer is right for the only payload, whichever request it belongs to."""
    answers = add_checks([one.answers for one in series.windows])
    if series.facts.is_kit and answers.checked and answers.distinguishable_pairs is None:
        yield (
            "a mix-up of answers cannot be seen",
            "one payload was sent again and again",
            "send several: PAYLOADS=, a folder with requests of your own",
        )


Rule = Callable[[Series], Found]

# What makes figures meaningless first, then what makes them doubtful; reports print them in this order.
RULES: Mapping[str, Rule] = {
    "wrong answers": check_answers_right,
    "no answers": check_answers_seen,
    "verify": check_verify,
    "workers": check_workers,
    ERRORS: check_errors,
    LATE: check_schedule,
    BUSY_GENERATOR: check_generator_cpu,
    COUNT: check_count,
    STOLEN: check_steal,
    OTHERS: check_others,
}
NOTES: Mapping[str, Rule] = {
    "repeats differ": note_spread,
    "not verified": note_unverified,
    "not validated": note_unvalidated,
    "mix-ups": note_mix_ups,
}


def find_findings(series: Series) -> list[Finding]:
    """All doubts of a series; any that is `invalid` means that no figure of it may be shown."""
    return [
        Finding(
            rule=name,
            server=series.server,
            state=state,
            evidence=evidence,
            next_step=next_step,
            invalid=invalid,
        )
        for rules, invalid in ((RULES, True), (NOTES, False))
        for name, rule in rules.items()
        for state, evidence, next_step in rule(series)
    ]


def find_doubts(series: Series, *, without: tuple[str, ...] = ()) -> list[Finding]:
    """Those that make it INVALID."""
    return [one for one in find_findings(series) if one.invalid and one.rule not in without]


def is_disturbed(series: Series) -> bool:
    """Whether the machine, not the server, spoilt it: then it is worth measuring again."""
    return any(one.rule in OF_THE_MACHINE for one in find_doubts(series))
