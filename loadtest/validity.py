"""The rules that make a run INVALID: each says the state, the evidence and the next step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from loadtest.stats import least_requests
from loadtest.summary import Finding, StepSummary, Summary

LAG_MS, LAG_SHARE = 20.0, 0.1
"""A generator this late (p99), or by this share of the median latency if that is more, measures itself."""
GENERATOR_CORES = 0.85
"""Of one core: Locust's processes have one thread, and above this their own queue grows."""
GENERATOR_SHARE = 0.15
"""Of the machine that also serves: what the generator takes, the server lacks."""
STEAL_SHARE = 0.02
"""Of all CPU time: more taken by other guests moves figures by more than repeats differ."""
SPREAD_SHARE = 0.15
"""Of the fastest repeat: a quiet shared machine stays well within it."""
LEAST_AGREEMENT = 0.95
"""With the labels of eager FP32; the archive's own gate asks 0.99 of more inputs than are sent here."""


def check_answers_right(summary: Summary) -> Iterator[Finding]:
    """Wrong answers are worth nothing, however fast."""
    answers = summary.answers
    if answers.wrong:
        yield _of_run(
            "wrong answers",
            f"{answers.wrong} of {answers.checked} answers are wrong",
            "; ".join(answers.examples) + f" (expected: {answers.source})",
            "do not use this server; `make verify`, then look at the model log",
        )
    agreement = answers.fp32_agreement
    if agreement is not None and agreement < LEAST_AGREEMENT:
        yield _of_run(
            "wrong answers",
            f"only {agreement:.1%} of the labels are those of eager FP32",
            f"at least {LEAST_AGREEMENT:.0%} are asked for, near ties left out",
            f"look at the accuracy of {summary.precision} for these payloads (CALIBRATION=, EVAL=)",
        )


def check_answers_seen(summary: Summary) -> Iterator[Finding]:
    """Without a judged answer nothing is known of what was measured."""
    if not summary.answers.checked:
        yield _of_run(
            "no answers",
            "no answer could be judged",
            "0 answers were kept",
            "see the errors; is this the right model and server?",
        )


def check_verify(summary: Summary) -> Iterator[Finding]:
    """The server must be what was asked for, before and after."""
    for moment, result in summary.verify.items():
        if result is None or result.get("good"):
            continue
        differing = [one for one in result.get("findings", []) if one.get("state") == "DIFFERS"]
        items = ", ".join(
            dict.fromkeys(f"{one.get('model') or 'server'}: {one['item']}" for one in differing)
        )
        yield _of_run(
            "verify",
            f"verify failed {moment} the run",
            items or str(result.get("error", "no findings")),
            "`make verify` says how to cure it",
        )


def check_spread(summary: Summary) -> Iterator[Finding]:
    """Repeats far apart say that the mean means little; the interval shows it, and this says it."""
    for number, step in enumerate(summary.steps):
        rates = [one.rate for one in step.repeats]
        if not summary.scenario.is_open and min(rates) < (1 - SPREAD_SHARE) * max(rates):
            finding = _of_step(
                "repeats differ",
                number,
                "the repeats differ more than a quiet machine's do",
                f"{min(rates):.1f} to {max(rates):.1f} requests/s; {SPREAD_SHARE:.0%} are usual",
                "run again at a quieter time, or longer (DURATION=)",
            )
            yield replace(finding, invalid=False)


def check_unverified(summary: Summary) -> Iterator[Finding]:
    """A foreign server's settings are unknown; the figures stand, and say so."""
    if all(result is None for result in summary.verify.values()):
        finding = _of_run(
            "not verified",
            "the server was not verified",
            "it was given by its URL and has no plan",
            "measure the kit's own server for verified settings",
        )
        yield replace(finding, invalid=False)


def check_errors(summary: Summary) -> Iterator[Finding]:
    """Errors are fast answers; a rate that contains them, or leaves them out, misleads."""
    allowed = summary.scenario.allowed_error_share
    for number, step in enumerate(summary.steps):
        if step.requests and step.errors / step.requests <= allowed:
            continue
        kinds = "; ".join(f"{count} × {text}" for text, count in step.error_kinds.items())
        yield _of_step(
            "errors",
            number,
            f"{step.errors} of {step.requests} requests failed",
            kinds or "no request began in the window",
            f"allowed is a share of {allowed:g}; see the server's logs, or ask for less load",
        )


def check_schedule(summary: Summary) -> Iterator[Finding]:
    """A generator that is late measures itself."""
    for number, step in enumerate(summary.steps):
        yield from judge_lag(number, step)


def judge_lag(number: int, step: StepSummary) -> Iterator[Finding]:
    lags = [one.lag_p99_ms for one in step.repeats if one.lag_p99_ms is not None]
    medians = [one.p50_ms for one in step.repeats if one.p50_ms is not None]
    limit = max(LAG_MS, LAG_SHARE * max(medians, default=0.0))
    if lags and max(lags) > limit:
        yield _of_step(
            "generator late",
            number,
            "the generator fell behind its schedule",
            f"1 % of the requests were sent {max(lags):.0f} ms late or more; {limit:.0f} ms are accepted",
            "use more generator processes (PROCESSES=), another machine, or a lower RATE",
        )


def check_generator_cpu(summary: Summary) -> Iterator[Finding]:
    """A generator without CPU time left is the limit; one on the server's machine takes from it."""
    for number, step in enumerate(summary.steps):
        yield from judge_generator_cpu(number, step, summary.cpus if summary.generated_here else None)


def judge_generator_cpu(number: int, step: StepSummary, cpus: int | None) -> Iterator[Finding]:
    """`cpus` of the machine that serves too; None when the generators are elsewhere."""
    busiest = max((max(one.generator_cores, default=0.0) for one in step.repeats), default=0.0)
    together = max((sum(one.generator_cores) for one in step.repeats), default=0.0)
    share = together / cpus if cpus else 0.0
    if busiest > GENERATOR_CORES or share > GENERATOR_SHARE:
        yield _of_step(
            "generator CPU",
            number,
            "the generator used too much CPU",
            f"{busiest:.0%} of a core in one process (limit {GENERATOR_CORES:.0%}), {share:.0%} of all "
            f"CPUs together (limit {GENERATOR_SHARE:.0%})",
            "use DRIVER=ab for a closed loop, or generate on another machine (PROCESSES=remote:N)",
        )


def check_count(summary: Summary) -> Iterator[Finding]:
    """The quoted percentile needs enough requests; without an open loop no latency is quoted."""
    percentile = summary.scenario.latency.percentile
    needed = least_requests(percentile)
    for number, step in enumerate(summary.steps):
        good = step.requests - step.errors
        if summary.scenario.is_open and good < needed:
            yield _of_step(
                "too few requests",
                number,
                f"too few requests for p{percentile:g}",
                f"{good} good requests; its 95 % interval needs {needed}",
                "run longer (DURATION=), or quote a lower percentile in the scenario",
            )


def check_steal(summary: Summary) -> Iterator[Finding]:
    """What the hypervisor gives to others, nobody here can account for."""
    for number, step in enumerate(summary.steps):
        yield from judge_steal(number, step)


def judge_steal(number: int, step: StepSummary) -> Iterator[Finding]:
    worst = max((one.host.steal for one in step.repeats if one.host), default=0.0)
    if worst > STEAL_SHARE:
        yield _of_step(
            "CPU stolen",
            number,
            "the host gave CPU time to others",
            f"{worst:.1%} of all CPU time in one repeat was stolen (/proc/stat); "
            f"{STEAL_SHARE:.0%} are accepted",
            "run again at a quieter time, or on a machine of its own",
        )


Rule = Callable[[Summary], Iterator[Finding]]

# What makes figures meaningless first, then what makes them doubtful; reports print them in this order.
RULES: tuple[Rule, ...] = (
    check_answers_right,
    check_answers_seen,
    check_verify,
    check_errors,
    check_schedule,
    check_generator_cpu,
    check_count,
    check_steal,
    check_spread,
    check_unverified,
)


def judge(summary: Summary) -> Summary:
    """The summary with every rule's findings."""
    return replace(summary, findings=tuple(finding for rule in RULES for finding in rule(summary)))


def _of_run(rule: str, state: str, evidence: str, next_step: str) -> Finding:
    return Finding(rule=rule, step=None, state=state, evidence=evidence, next_step=next_step)


def _of_step(rule: str, step: int, state: str, evidence: str, next_step: str) -> Finding:
    return Finding(rule=rule, step=step, state=state, evidence=evidence, next_step=next_step)
